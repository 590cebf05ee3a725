"""Slopes of a blend of two models, and of its share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import grad

from fedtailor.core import rng
from fedtailor.core.task import Batch
from fedtailor.core.tree import Tree
from fedtailor.methods.mixture.apfl import models_slope, share_slope

W = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor(4.0)}
V = {"a": torch.tensor([3.0, 2.0]), "b": torch.tensor(0.0)}


def bowl(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Any, Tree]:
    """F = |a - 2|²/2 + b²/2; the statistic is where it was asked last."""
    grads = {"a": theta["a"] - 2, "b": theta["b"]}
    loss = (grads["a"].square().sum() + grads["b"].square()) / 2
    return grads, loss, {"at": theta["b"], "key": batch.key}


def batch() -> Batch:
    one = torch.ones(1)
    return Batch(one, one.long(), one, torch.tensor(True), rng.key(3))


def test_the_slopes_of_the_models_by_hand() -> None:
    # α = 1/4:  v̄ = (1.5, 0.5), 3;  ∇F(w) = (-1, -2), 4;  α ∇F(v̄) = (-0.5, -1.5)/4, 3/4
    at = models_slope(bowl)
    stats = {"w": {"at": torch.tensor(0.0)}, "v": {"at": torch.tensor(0.0)}}
    slope, loss, changed = at({"w": W, "v": V}, batch(), {"alpha": torch.tensor(0.25)}, stats)
    assert slope["w"]["a"].tolist() == [-1, -2]
    assert float(slope["w"]["b"]) == 4
    assert slope["v"]["a"].tolist() == [-0.125, -0.375]
    assert float(slope["v"]["b"]) == 0.75
    assert float(loss) == (0.25 + 2.25 + 9) / 2  # the blend's
    # each model has statistics and noise of its own
    assert float(changed["w"]["at"]) == 4
    assert float(changed["v"]["at"]) == 3
    assert int(changed["w"]["key"]) != int(changed["v"]["key"])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_at_the_ends(alpha: float) -> None:
    """α = 0: v learns nothing. α = 1: v learns alone, w as ever."""
    at = models_slope(bowl)
    given = {"alpha": torch.tensor(alpha)}
    slope = at({"w": W, "v": V}, batch(), given, {"w": {}, "v": {}})[0]
    assert slope["v"]["a"].tolist() == [alpha * 1, alpha * 0]
    assert slope["w"]["a"].tolist() == [-1, -2]


def test_the_slope_of_the_share_by_hand() -> None:
    # v - w = (2, 2), -4;  ∇F(v̄) = (-0.5, -1.5), 3:  -1 - 3 - 12
    at = share_slope(bowl)
    slope, loss, changed = at({"alpha": torch.tensor(0.25)}, batch(), {"w": W, "v": V}, {})
    assert float(slope["alpha"]) == -16
    assert float(loss) == (0.25 + 2.25 + 9) / 2
    assert changed == {}


def test_the_slope_of_the_share_is_the_derivative() -> None:
    def loss(alpha: torch.Tensor) -> torch.Tensor:
        mixed = {k: alpha * V[k] + (1 - alpha) * W[k] for k in W}
        return bowl(mixed, batch(), {}, {})[1]

    for share in (0.0, 0.3, 1.0):
        alpha = torch.tensor(share)
        slope = share_slope(bowl)({"alpha": alpha}, batch(), {"w": W, "v": V}, {})[0]
        torch.testing.assert_close(slope["alpha"], grad(loss)(alpha))
