"""TERM: tilted averaging."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest

from fedtailor.core import tree
from fedtailor.methods import fedavg, term
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
    same,
    simulate,
    task_of,
)

ROWS = [[2.0], [4.0] * 3]


def path(engine: str, rounds: int = 1, task: Any = None, **options: Any) -> list[float]:
    task, found = task or one_number(), []
    sim = simulate(term(task, recipe=HALF, **options), rows_of(ROWS), task, engine=engine)
    for _ in range(rounds):
        play(sim)
        found.append(float(sim.server["params"]["w"]))
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("t", [0.1, 1.0, -0.5])
def test_two_clients_by_hand(t: float, engine: str) -> None:
    # w = 0: F = 2 and 8, w_k = 1 and 2;  n = 1 and 3
    # then w: F = (w - 2)²/2 and (w - 4)²/2, w_k half way, relative to the largest of before
    a, b = exp(2 * t), 3 * exp(8 * t)
    first = (a + 2 * b) / (a + b)
    a, b = exp(t * (first - 2) ** 2 / 2), 3 * exp(t * (first - 4) ** 2 / 2)
    second = (a * (first + 2) / 2 + b * (first + 4) / 2) / (a + b)
    assert path(engine, 2, t=t) == near(first, second)


@pytest.mark.usefixtures("double")
def test_equal_weights_by_hand() -> None:
    a, b = exp(0.2), exp(0.8)
    assert path("vectorised", weighting="uniform")[0] == near((a + 2 * b) / (a + b))


def test_without_tilt_it_is_fedavg() -> None:
    task, world = task_of("norm"), ragged()
    sims = [simulate(m, world, task) for m in (term(task, t=0.0), fedavg(task))]
    for sim in sims:
        play(sim, 2)
    assert same(sims[0].server["params"], sims[1].server["params"])


@pytest.mark.usefixtures("double")
def test_a_little_tilt_is_nearly_fedavg_and_statistics_are_its() -> None:
    task, world = task_of("norm"), ragged()
    sims = [simulate(m, world, task) for m in (term(task, t=1e-6), term(task), fedavg(task))]
    for sim in sims:
        play(sim)
    little, default, none = (sim.server["params"] for sim in sims)
    assert gap(little, none) < 1e-5
    assert gap(default, none) > 1e-4
    assert gap(tree.pick(default, task.buffers), tree.pick(none, task.buffers)) < 1e-12


@pytest.mark.usefixtures("double")
def test_a_constant_on_all_losses_changes_nothing() -> None:
    more = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2 + 5)
    assert path("vectorised", 2, more, t=0.5) == near(*path("vectorised", 2, t=0.5))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("sign", "expected"), [(1.0, 1.5), (-1.0, -1.5)])
def test_losses_count_client_by_client(sign: float, expected: float) -> None:
    """Two clients pull equally hard; with much tilt the one with more loss has its way."""
    task = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2 + 6 * (x * sign > 0))
    sim = simulate(term(task, t=5.0, recipe=HALF), rows_of([[3.0], [-3.0]]), task)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(expected)


@pytest.mark.parametrize(("t", "row"), [(50.0, 1.5), (-50.0, 1.0)])
def test_much_tilt_is_the_worst_clients_model_or_the_bests(t: float, row: float) -> None:
    """In single precision, too, and round after round."""
    # rows 1 and 1.5: exponents are 25 and 56, and no loss falls by more than 1.6 in a round
    task, found = one_number(), []
    sim = simulate(term(task, t=t, recipe=HALF), rows_of([[1.0], [1.5] * 3]), task)
    for _ in range(2):
        play(sim)
        found.append(float(sim.server["params"]["w"]))
    assert found == pytest.approx([row / 2, row * 3 / 4], abs=1e-5)


def test_weights_that_differ_too_much_are_cut_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And never become infinite, or all 0."""
    found = path("vectorised", 4, t=50.0)
    assert all(0 < value < 4 for value in found)
    assert [record.message for record in caplog.records] == [
        "t is 50: weights e^(t F) differ too much; those beyond e^±80 are cut"
    ]


def test_bytes() -> None:
    """A model and the largest exponent down; a model, its weight and its exponent up."""
    task = task_of("norm")
    (report,) = play(simulate(term(task), ragged(), task))
    assert report.down.tolist() == [4 * 76] * 6
    assert report.up.tolist() == [4 * 77] * 6
