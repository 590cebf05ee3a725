"""How many steps a client takes, and how far they go on a gradient of 1."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from fedtailor.core.data import Data
from fedtailor.core.objectives import prox
from fedtailor.core.training import Recipe, fit
from fedtailor.methods.parts.local_steps import local_steps, unit_distance
from tests.methods.worlds import numbers, turn_of

RECIPES = [
    Recipe(batch=8, epochs=2),
    Recipe(batch=8, last="drop"),
    Recipe(batch=8, last="wrap", epochs=2),
    Recipe(steps=3, batch=4),
    Recipe(batch=0, epochs=3, last="drop"),
]


def rows(count: int) -> Data:
    return Data.of(torch.zeros(count), torch.zeros(count).long())


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 24])
def test_steps_are_those_that_a_recipe_counts(recipe: Recipe, count: int) -> None:
    assert int(local_steps(recipe, rows(count))) == recipe.count(count)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("count", [1, 6, 7, 33])
def test_the_distance_is_that_of_real_training(mu: float, momentum: float, count: int) -> None:
    """A loss whose slope is 1 everywhere: what the client moves, over its learning rate."""
    task = numbers({"w": 0.0}, lambda p, x: p["w"] + 0 * x)
    recipe, data = Recipe(batch=2, epochs=2, lr=0.05, momentum=momentum), rows(count)
    params = {"w": torch.tensor(0.3)}
    given = {"anchor": params}
    end = fit(task, params, data, turn_of(), recipe, loss=prox(task, mu), given=given)
    gone = float(params["w"] - end["w"]) / 0.05
    assert float(unit_distance(recipe, data, 0.05, mu)) == pytest.approx(gone, rel=1e-10)


@pytest.mark.usefixtures("double")
def test_distances_that_others_have_worked_out() -> None:
    """ρ = 0.9 alone 23.05 and μ = 1 alone 6.03, with η = 0.05 and 7 steps; Adam goes η a step."""
    data = rows(7)
    of = lambda mu=0.0, **how: float(unit_distance(Recipe(batch=1, **how), data, 0.05, mu))
    assert of(momentum=0.9) == pytest.approx((7 - 0.9 * (1 - 0.9**7) / 0.1) / 0.1)
    assert of(momentum=0.9) == pytest.approx(23.05, abs=0.005)
    assert of(mu=1.0) == pytest.approx((1 - 0.95**7) / 0.05)
    assert of(mu=1.0) == pytest.approx(6.03, abs=0.005)
    assert of(optimizer="adam", momentum=0.9) == 7
    # both: here the pull goes through momentum, as training has it; beside momentum it would be
    # 20.73, and the 25.72 of the authors' code is neither
    assert of(mu=1.0, momentum=0.9) == pytest.approx(18.31, abs=0.005)


def test_clients_of_several_sizes_share_a_call() -> None:
    """Padded to the longest client's rows: each has the distance that it has alone."""
    recipe, sizes = Recipe(batch=2, epochs=3, momentum=0.9), torch.tensor([0, 1, 7, 20])
    found = vmap(lambda n: unit_distance(recipe, rows(20)._replace(n=n), 0.1, 0.5))(sizes)
    alone = [float(unit_distance(recipe, rows(int(n)), 0.1, 0.5)) for n in sizes]
    assert found.tolist() == pytest.approx(alone, rel=1e-6)
    assert found[0] == 0
