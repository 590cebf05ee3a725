"""q-FedAvg: clients whose loss is large count more."""

from __future__ import annotations

from typing import Any

import pytest

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, qfedavg
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    near,
    numbers,
    one_number,
    play,
    ragged,
    rows_of,
    simulate,
    task_of,
)


def ends(engine: str, rows: list[list[float]], rounds: int = 1, **options: Any) -> list[float]:
    task, found = one_number(), []
    sim = simulate(qfedavg(task, recipe=HALF, **options), rows_of(rows), task, engine=engine)
    for _ in range(rounds):
        play(sim)
        found.append(float(sim.server["params"]["w"]))
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # w = 0, η = 1/2: F = 2²/2 = 2 and 4²/2 = 8;  w_k = 1 and 2, u = 2 and 4
    # q = 1:  Δ = 4 and 32;  h = 4 + 2 2 = 8 and 16 + 2 8 = 32;  p = 1/4, 3/4
    #   w = (1 + 24)/(2 + 24) = 25/26
    # q = 2:  F² = 4, 64:  Δ = 8, 256;  h = 2 2 4 + 2 4 = 24 and 2 8 16 + 2 64 = 384
    rows = [[2.0], [4.0] * 3]
    assert ends(engine, rows, q=1.0)[0] == near(25 / 26)
    assert ends(engine, rows, q=2.0)[0] == near((2 + 192) / (6 + 288))
    assert ends(engine, rows, q=1.0, weighting="uniform")[0] == near(36 / 40)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_loss_is_that_of_the_model_received(engine: str) -> None:
    # round 0 as above: w = 0.9;  round 1: F = 1.1²/2 and 3.1²/2, u = 1.1 and 3.1
    #   Δ = 1.1³/2 + 3.1³/2,  h = 1.1² + 1.1² + 3.1² + 3.1²
    step = (1.1**3 + 3.1**3) / 4 / (1.1**2 + 3.1**2)
    found = ends(engine, [[2.0], [4.0] * 3], 2, q=1.0, weighting="uniform")
    assert found == near(0.9, 0.9 + step)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_without_q_it_is_fedavg(weighting: str) -> None:
    task, world = task_of("norm"), ragged()
    recipe = Recipe(epochs=2, lr_decay=0.5)
    sims = [
        simulate(m, world, task)
        for m in (
            qfedavg(task, q=0.0, weighting=weighting, recipe=recipe),
            fedavg(task, weighting=weighting, recipe=recipe),
        )
    ]
    for sim in sims:
        play(sim, [[0, 1, 3], [1, 2, 4, 5]])
    assert gap(sims[0].server["params"], sims[1].server["params"]) < 1e-12


@pytest.mark.usefixtures("double")
def test_equal_losses_give_the_direction_of_fedavg_for_every_q() -> None:
    """Rows at 3 and -3 from w = 0 have equal losses: moves cancel, however large q is."""
    for q in (0.5, 1.0, 5.0):
        assert ends("vectorised", [[3.0], [-3.0]], q=q)[0] == near(0.0)
    # three rows at 3 against one at -3: their mean is 1.5, and a step goes that way, only shorter
    found = [ends("vectorised", [[3.0] * 3, [-3.0]], q=q)[0] for q in (0.0, 1.0, 5.0)]
    # all F alike cancel: Δ/h = u/(q |u|²/F + 1/η), |u|² = 2 F
    assert found == near(1.5 / 2, 1.5 / 4, 1.5 / 12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_the_unit_of_losses_does_not_matter(q: float) -> None:
    """All losses times c, with a rate of 1/c: weights keep their ratios, and w its path."""
    found = []
    for c in (1.0, 7.0):
        task = one_number(factor=c)
        recipe = Recipe(batch=0, lr=0.5 / c)
        sim = simulate(qfedavg(task, q=q, recipe=recipe), rows_of([[2.0], [4.0] * 3]), task)
        play(sim, 2)
        found.append(float(sim.server["params"]["w"]))
    assert found[0] == near(found[1])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_losses_count_client_by_client(sign: float) -> None:
    """Two clients pull equally hard, but one has more loss: the server goes its way.

    A public code takes one loss for all, and would stay where it is.
    """
    # rows 3 and -3, 6 more for one of them: F = 10.5 and 4.5, u = ±3, q = 1
    # w = (3 10.5 - 3 4.5)/(9 + 2 10.5 + 9 + 2 4.5) = 18/48
    task = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2 + 6 * (x * sign > 0))
    sim = simulate(qfedavg(task, q=1.0, recipe=HALF), rows_of([[3.0], [-3.0]]), task)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(sign * 18 / 48)


@pytest.mark.usefixtures("double")
def test_a_loss_of_nothing_does_not_stop_the_others() -> None:
    """q < 1: F^(q-1) of a client whose loss is 0 is held at 0.001^(q-1)."""
    # rows 0 and 2 from w = 0, q = 1/2: F = 0.001 and 2, u = 0 and 2
    # w = 2 √2/(√0.001/0.5 + 0.5 2^-0.5 4 + √2/0.5)
    expected = 2 * 2**0.5 / (2 * 0.001**0.5 + 2 / 2**0.5 + 2 * 2**0.5)
    assert ends("vectorised", [[0.0], [2.0]], q=0.5)[0] == near(expected)


@pytest.mark.usefixtures("double")
def test_running_statistics_are_plain_means() -> None:
    task, world = task_of("norm"), ragged()
    sims = [simulate(m(task), world, task) for m in (qfedavg, fedavg)]
    for sim in sims:
        play(sim)
    mine, theirs = (sim.server["params"] for sim in sims)
    assert gap(tree.pick(mine, task.buffers), tree.pick(theirs, task.buffers)) < 1e-12
    assert gap(mine, theirs) > 1e-3


def test_larger_q_makes_losses_more_equal() -> None:
    """One client against nine rows' worth of another: w moves from their mean to the middle."""
    task, world = one_number(), rows_of([[0.0], [10.0] * 9])
    found = []
    for q in (0.0, 1.0, 5.0):
        sim = simulate(qfedavg(task, q=q, recipe=HALF), world, task)
        play(sim, 60)
        found.append(float(sim.server["params"]["w"]))
    # stationary: w^(2q+1) = 9 (10 - w)^(2q+1)
    expected = [10 * r / (1 + r) for r in (9 ** (1 / (2 * q + 1)) for q in (0, 1, 5))]
    assert found == pytest.approx(expected, abs=0.02)


def test_a_rate_of_nothing_is_refused():
    """It is divided by; before, all clients were said to have diverged: "lower --lr"."""
    with pytest.raises(BadInput, match="lr is 0"):
        qfedavg(task_of(), recipe=Recipe(lr=0.0))
