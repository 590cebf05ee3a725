"""The Moreau envelope's gradient, by a few inner steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.task import Batch
from fedtailor.core.tree import Tree
from fedtailor.methods.regularised.pfedme import moreau_gradient

SEEN: list[int] = []  # keys of the batches that the loss was asked about


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def bowl(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Any, Tree]:
    """F(θ) = (θ - 2)²/2, and a statistic that counts passes."""
    SEEN.append(int(batch.key))
    away = theta["w"] - 2
    return {"w": away}, away.square() / 2, {"passes": carried["passes"] + 1}


def batch() -> Batch:
    one = torch.ones(1)
    return Batch(one, one.long(), one, torch.tensor(True), rng.key(3))


def carried(theta: float = 0.0) -> Tree:
    return {"theta": {"w": torch.tensor(theta)}, "rest": {"passes": torch.tensor(0)}}


def test_two_steps_by_hand() -> None:
    # λ = 1, steps of 0.25 from w = 0:  0 - 0.25 (-2 + 0) = 0.5;  0.5 - 0.25 (-1.5 + 0.5) = 0.75
    at = moreau_gradient(1.0, 2, 0.25)(bowl)
    slope, loss, changed = at({"w": torch.tensor(0.0)}, batch(), {}, carried(9.0))
    assert float(slope["w"]) == -0.75
    assert float(loss) == 1.5**2 / 2  # of the last pass, before its step
    assert float(changed["theta"]["w"]) == 0.75


def test_with_many_steps_it_is_the_gradient_of_the_moreau_gradient() -> None:
    """F_λ(w) = λ/(1 + λ) (w - 2)²/2."""
    for lam in (0.5, 3.0):
        for w in (-1.0, 2.0, 5.0):
            at = moreau_gradient(lam, 200, 0.1)(bowl)
            slope, _, changed = at({"w": torch.tensor(w)}, batch(), {}, carried())
            assert float(slope["w"]) == pytest.approx(lam / (1 + lam) * (w - 2), abs=1e-5)
            nearest = (2 + lam * w) / (1 + lam)
            assert float(changed["theta"]["w"]) == pytest.approx(nearest, abs=1e-5)


@pytest.mark.parametrize(("curvature", "settles"), [(7.0, True), (7.5, False)])
def test_steps_overshoot_where_the_loss_curves_too_much(curvature: float, settles: bool) -> None:
    """F(θ) = h/2 θ²: each step multiplies θ's distance to θ* by 1 − η_p (λ + h), which for the
    published λ = 15 and η_p = 0.09 is below −1 from h = 2/0.09 − 15 = 7.2 on."""

    def steep(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Any, Tree]:
        return {"w": curvature * theta["w"]}, curvature * theta["w"].square() / 2, {}

    def away(steps: int) -> float:
        at = moreau_gradient(15.0, steps, 0.09)(steep)
        theta = at({"w": torch.tensor(1.0)}, batch(), {}, carried())[2]["theta"]["w"]
        return abs(float(theta) - 15 / (15 + curvature))  # θ* = λ w / (λ + h)

    assert (away(25) < away(5)) is settles
    assert away(25) == pytest.approx(away(5) * abs(1 - 0.09 * (15 + curvature)) ** 20, rel=1e-3)


def test_a_warm_start_goes_on_from_where_it_was() -> None:
    """θ* = 1 for w = 0 and λ = 1: from there no step moves."""
    at = moreau_gradient(1.0, 3, 0.25, warm_start=True)(bowl)
    slope, _, changed = at({"w": torch.tensor(0.0)}, batch(), {}, carried(1.0))
    assert float(changed["theta"]["w"]) == 1
    assert float(slope["w"]) == -1


def test_every_pass_draws_its_own_and_sees_the_statistics_of_the_batch_before() -> None:
    at = moreau_gradient(1.0, 3, 0.25)(bowl)
    changed = at({"w": torch.tensor(0.0)}, batch(), {}, carried())[2]
    assert len(set(SEEN)) == 3
    assert int(batch().key) not in SEEN
    assert int(changed["rest"]["passes"]) == 1
