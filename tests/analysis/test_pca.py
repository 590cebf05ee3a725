"""Principal planes: exact where points lie in one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor.analysis.pca import frame, model_plane, principal_plane
from fedtailor.analysis.surface import plane


def in_a_plane(count: int = 9, width: int = 30) -> np.ndarray:
    draw = np.random.default_rng(0)
    first, second, origin = draw.normal(size=(3, width))
    steps = draw.normal(size=(count, 2))
    return origin + steps[:, :1] * first + steps[:, 1:] * second


def test_points_of_a_plane_are_reproduced_exactly() -> None:
    points = in_a_plane()
    found = principal_plane(points)
    assert np.allclose(found.origin + found.places @ found.axes, points, atol=1e-12)
    assert found.shares.sum() == pytest.approx(1)
    assert np.allclose(found.axes @ found.axes.T, np.eye(2))
    assert found.shares[0] >= found.shares[1]


def test_the_first_axis_is_where_points_are_spread_most() -> None:
    points = np.zeros((4, 3))
    points[:, 2] = [-6, -2, 2, 6]
    points[:, 0] = [1, -1, -1, 1]
    found = principal_plane(points)
    assert np.allclose(found.axes, [[0, 0, 1], [1, 0, 0]])
    assert found.shares.tolist() == pytest.approx([80 / 84, 4 / 84])


def test_equal_points_have_no_extent() -> None:
    found = principal_plane(np.ones((3, 4)))
    assert np.allclose(found.places, 0)
    assert np.isfinite(found.shares).all()
    across, up = frame(found.places, 3)
    assert across.tolist() == up.tolist() == [-1, 0, 1]


def test_models_are_found_again_on_their_plane() -> None:
    points = torch.from_numpy(in_a_plane(6, 7))
    models = [
        {"a": {"w": row[:6].reshape(2, 3)}, "b": row[6:], "var": torch.tensor([i + 1.0])}
        for i, row in enumerate(points)
    ]
    found = model_plane(models, ["var"])
    at = plane(found.origin, found.first, found.second)
    for place, model in zip(found.plane.places, models, strict=True):
        there = at(torch.from_numpy(place))
        assert torch.allclose(there["a"]["w"], model["a"]["w"])
        assert torch.allclose(there["b"], model["b"])
        assert there["var"].item() == 3.5  # the mean: statistics do not move


def test_a_frame_is_square_and_holds_all_places() -> None:
    across, up = frame(np.array([[0.0, 10.0], [4.0, 12.0]]), 5)
    assert across[-1] - across[0] == pytest.approx(6)  # 4, and a quarter of it on each side
    assert up[-1] - up[0] == pytest.approx(6)
    assert across[0] == pytest.approx(-1)
    assert up[2] == pytest.approx(11)
