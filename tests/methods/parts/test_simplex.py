"""Weights on the simplex: the nearest, and the best for a quadratic."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fedtailor.methods.parts import simplex
from fedtailor.methods.parts.simplex import mixing_weights, onto_simplex

pytestmark = pytest.mark.usefixtures("double")


def test_the_nearest_point_by_hand() -> None:
    # (2, 1, 0) less 1 each: (1, 0, -1) -> (1, 0, 0);  (0, 0, 0) -> thirds;  inside it stays
    rows = torch.tensor([[2.0, 1, 0], [0, 0, 0], [0.2, 0.3, 0.5], [1, 0.5, -4]])
    expected = torch.tensor([[1.0, 0, 0], [1 / 3] * 3, [0.2, 0.3, 0.5], [0.75, 0.25, 0]])
    torch.testing.assert_close(onto_simplex(rows), expected)


def test_no_other_point_is_nearer() -> None:
    rows = 2 * torch.randn(20, 5)
    found = onto_simplex(rows)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(20))
    others = torch.rand(500, 1, 5).softmax(-1)
    assert ((rows - others).norm(dim=-1) + 1e-12 >= (rows - found).norm(dim=-1)).all()


def value(weights: Tensor, i: int, points: Tensor, variance: Tensor) -> float:
    mixed = weights @ points
    return float((weights**2 * variance).sum() + (points[i] - mixed).square().sum())


def test_two_clients_by_hand() -> None:
    # h = 0 and 2, V = 1 and 3: for i = 0 with a_1 = b: (1 - b)² + 3 b² + 4 b² -> b = 1/8
    # for i = 1: (1 - b)² + 3 b² + 4 (1 - b)² -> 8 b = 5
    found = mixing_weights(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(found, torch.tensor([[7 / 8, 1 / 8], [3 / 8, 5 / 8]]))


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_weights_meet_the_conditions_of_a_minimum(shift: float) -> None:
    """The slope is the same for all weights above 0, and not smaller for those at 0."""
    points, variance = torch.randn(12, 30) + shift, torch.rand(12) * 5 + 0.1
    found = mixing_weights(points, variance)
    torch.testing.assert_close(found.sum(1), torch.ones(12))
    for i, row in enumerate(found):
        slope = 2 * (variance * row + (row @ points - points[i]) @ points.mT)
        used = row > 1e-9
        assert float(slope[used].max() - slope[used].min()) < 1e-6 * max(1, shift)
        assert float(slope.min()) > float(slope[used].max()) - 1e-6 * max(1, shift)


def too_steep(found: Tensor, points: Tensor, variance: Tensor) -> float:
    """How much the value falls at most per unit of weight that moves, as a part of |h|² + V."""
    points = points - points.mean(0)
    slope = variance * found + (found @ points - points) @ points.mT
    gain = (slope * found).sum(1) - slope.min(1).values
    return float(gain.max() / (points.square().sum(1) + variance).max())


def class_means(kind: str) -> tuple[Tensor, Tensor]:
    """Clients' h and V as FedPAC's server gets them: 40 clients with rows of 5 classes."""
    shares = {
        "iid": torch.full((40, 5), 0.2),
        "dirichlet": torch.distributions.Dirichlet(torch.full((5,), 0.1)).sample((40,)),
        "two classes each": torch.rand(40, 5).argsort(1).argsort(1).lt(2) / 2,
        "clusters": torch.eye(5).repeat(8, 1),
    }[kind]
    means, rows = torch.randn(5, 16), 60
    z = means + torch.randn(40, rows, 5, 16)
    h = shares[..., None] * z.mean(1)
    spread = (shares[:, None, :, None] * z.square()).sum((2, 3)).mean(1) - h.square().sum((1, 2))
    return h.flatten(1), spread / rows


@pytest.mark.parametrize("variance", ["as it is", "tiny", "none", "of all sizes"])
@pytest.mark.parametrize("twins", [False, True])
@pytest.mark.parametrize("kind", ["iid", "dirichlet", "two classes each", "clusters"])
def test_weights_are_exact_for_clients_of_all_kinds(kind: str, twins: bool, variance: str) -> None:
    """Also where twins, no rows and vanishing variances make the form all but singular."""
    h, V = class_means(kind)
    if variance == "of all sizes":
        V = 10 ** (10 * torch.rand(40) - 8)
    else:
        V = V * {"as it is": 1.0, "tiny": 1e-6, "none": 0.0}[variance] + 1e-8
    h[3], V[3] = 0.0, 1e-8  # without rows
    if twins:
        h[20:], V[20:] = h[:20].clone(), V[:20].clone()
    found = mixing_weights(h, V)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(1), torch.ones(40))
    assert too_steep(found, h, V) < 1e-12


def test_rows_whose_corrections_go_in_circles_are_solved_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ways to the same weights, and each is taken: without corrections, and with them."""
    points, variance = torch.randn(60, 8), 10 ** (10 * torch.rand(60) - 8)
    slow, left = simplex._lawson_hanson, []

    def watched(linear, own, rows):  # type: ignore[no-untyped-def]
        left.append(len(rows))
        return slow(linear, own, rows)

    monkeypatch.setattr(simplex, "_lawson_hanson", watched)
    found = mixing_weights(points, variance)
    assert 0 < left[0] < 60
    assert too_steep(found, points, variance) < 1e-12
    monkeypatch.setattr(simplex, "PASSES", 0)
    torch.testing.assert_close(mixing_weights(points, variance), found, rtol=0, atol=1e-6)
    assert left[1] == 60


def test_three_clients_against_a_grid() -> None:
    points, variance = torch.randn(3, 4), torch.rand(3)
    found = mixing_weights(points, variance)
    steps = [i / 50 for i in range(51)]
    grid = [(a, b, 1 - a - b) for a, b in itertools.product(steps, steps) if a + b <= 1]
    for i in range(3):
        least = min(value(torch.tensor(one), i, points, variance) for one in grid)
        best = value(found[i], i, points, variance)
        assert best <= least + 1e-12
        assert best > least - 1e-2


def test_limits() -> None:
    points, variance = torch.randn(6, 9), torch.rand(6) + 0.1
    alone = mixing_weights(points, variance * 1e-12)
    torch.testing.assert_close(alone, torch.eye(6), rtol=0, atol=1e-6)
    alike = mixing_weights(torch.ones(6, 9), variance)
    torch.testing.assert_close(alike[2], (1 / variance) / (1 / variance).sum())
    order = torch.randperm(6)
    moved = mixing_weights(points[order], variance[order])
    torch.testing.assert_close(moved, mixing_weights(points, variance)[order][:, order])
    scaled = mixing_weights(7 * points, 49 * variance)
    torch.testing.assert_close(scaled, mixing_weights(points, variance))
    assert mixing_weights(torch.ones(1, 3), torch.ones(1)).tolist() == [[1.0]]
