"""FedNova: moves divided by how far an optimiser goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor import BadInput
from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fednova
from fedtailor.methods.parts.robust import CoordinateMedian, with_max_norm, with_robust_mean
from tests.methods.worlds import (
    ENGINES,
    gap,
    near,
    of_models,
    one_number,
    play,
    ragged,
    rows_of,
    simulate,
    task_of,
)

ONE = Recipe(batch=1, lr=0.5)  # a step for each row


def end(engine: str, recipe: Recipe = ONE, **options: Any) -> float:
    """Where the server is after a round of one row 2 against three rows 8, from 0."""
    task = one_number()
    sim = simulate(
        fednova(task, recipe=recipe, **options), rows_of([[2.0], [8.0] * 3]), task, engine=engine
    )
    play(sim)
    assert of_models(sim, "w") == near(*[float(sim.server["params"]["w"])] * 2)
    return float(sim.server["params"]["w"])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # client 0: one step to 1, d = -1;  client 1: 0 -> 4 -> 6 -> 7, d = -7/3;  p = 1/4, 3/4
    # τ = 1/4 + 9/4 = 5/2, Σ p d = -1/4 - 7/4 = -2: w = 5 (FedAvg: 1/4 + 21/4 = 5.5)
    assert end(engine) == near(5.0)
    # p = 1/2 each: τ = 2, Σ p d = -5/3
    assert end(engine, weighting="uniform") == near(10 / 3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_momentum_by_hand(engine: str) -> None:
    # a = 1 and 1 + 1.5 + 1.75 = 4.25;  client 1: v = -8, w = 4;  v = -4 - 4, w = 8;  v = -4, w = 10
    # τ = 1/4 + 3/4 4.25 = 3.4375, Σ p d = -1/4 - 3/4 10/4.25
    recipe = Recipe(batch=1, lr=0.5, momentum=0.5)
    assert end(engine, recipe) == near(3.4375 * (0.25 + 7.5 / 4.25))
    # K instead of a for the server's step: τ = 1/4 + 9/4
    assert end(engine, recipe, tau_eff="steps") == near(2.5 * (0.25 + 7.5 / 4.25))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_pull_by_hand(engine: str) -> None:
    # μ = 1, η = 1/2: a = 1 and 1 + 1/2 + 1/4 = 1.75;  client 1: 0 -> 4, where -4 + 4 = 0: stays
    # τ = 1/4 + 3/4 1.75 = 1.5625, Σ p d = -1/4 - 3/1.75
    assert end(engine, mu=1.0) == near(1.5625 * (0.25 + 3 / 1.75))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_numbers_of_steps_it_is_fedavg(momentum: float, engine: str) -> None:
    recipe = Recipe(steps=4, batch=5, momentum=momentum)
    task, world = task_of("norm"), ragged()
    sims = [simulate(m(task, recipe=recipe), world, task, engine=engine) for m in (fednova, fedavg)]
    for sim in sims:
        play(sim, [[0, 1, 3], [1, 2, 4, 5]])
    assert gap(sims[0].server["params"], sims[1].server["params"]) < 1e-12


@pytest.mark.usefixtures("double")
def test_with_unequal_ones_it_is_not_and_statistics_are_plain_means() -> None:
    task, world = task_of("norm"), ragged()
    sims = [simulate(m(task), world, task) for m in (fednova, fedavg)]
    for sim in sims:
        play(sim)
    mine, theirs = (sim.server["params"] for sim in sims)
    assert gap(tree.drop(mine, task.buffers), tree.drop(theirs, task.buffers)) > 1e-3
    assert gap(tree.pick(mine, task.buffers), tree.pick(theirs, task.buffers)) < 1e-12
    assert list(mine) == list(theirs)


@pytest.mark.usefixtures("double")
def test_one_client_is_training_alone() -> None:
    task, world = task_of(), ragged([23])
    sims = [simulate(m(task), world, task) for m in (fednova, fedavg)]
    for sim in sims:
        play(sim, 3)
    assert gap(sims[0].server["params"], sims[1].server["params"]) < 1e-12


@pytest.mark.usefixtures("double")
def test_its_fixed_point_is_the_optimum_of_all_rows() -> None:
    """Slow steps: the error shrinks with η, while FedAvg leans to those who take more steps."""
    # c = 0 with 2 rows and 2 steps, c = 10 with 8 rows and 8 steps, weights as rows: optimum 8;
    # FedAvg's moves weigh n K = 4 against 64: 10 64/68 = 9.41
    # a round takes w to A w + b: two rounds from 0 give b and A b + b, and so the fixed point
    task, world = one_number(), rows_of([[0.0] * 2, [10.0] * 8])
    errors = {}
    for lr in (0.02, 0.002):
        for factory in (fednova, fedavg):
            sim = simulate(factory(task, recipe=Recipe(batch=1, lr=lr)), world, task)
            play(sim)
            first = float(sim.server["params"]["w"])
            play(sim)
            kept = float(sim.server["params"]["w"]) / first - 1
            errors[factory.__name__, lr] = abs(first / (1 - kept) - 8)
    assert errors["fednova", 0.02] < 0.15
    assert errors["fednova", 0.002] < errors["fednova", 0.02] / 8
    assert errors["fedavg", 0.002] > 1.2


def test_who_does_not_move_moves_nothing() -> None:
    """One public code weighs models by p_k τ/a_k, which sum to more than 1: it would grow."""
    task, world = task_of(), ragged()
    sim = simulate(fednova(task, recipe=Recipe(lr=0.0)), world, task)
    play(sim)
    assert gap(sim.server["params"], sim.initial) == 0


def test_bytes_are_fedavgs_and_one_number_more() -> None:
    task = task_of("norm")
    (report,) = play(simulate(fednova(task), ragged(), task))
    assert report.down.tolist() == [4 * 75] * 6
    assert report.up.tolist() == [4 * 76] * 6


def test_a_client_without_a_step_moves_nothing() -> None:
    """Fewer rows than a batch, and short batches are dropped: no division by 0."""
    task = one_number()
    recipe = Recipe(batch=2, lr=0.5, last="drop")
    sim = simulate(fednova(task, recipe=recipe), rows_of([[2.0], [8.0] * 3]), task)
    play(sim)
    # client 1 alone: 4 in one step; τ = 3/4, Σ p d = -3/4 4
    assert float(sim.server["params"]["w"]) == near(9 / 4)


def test_what_cannot_be_is_refused() -> None:
    task = task_of()
    with pytest.raises(
        BadInput, match=r"mu is 0.1, but with optimizer 'adam' .*: use sgd, or mu=0"
    ):
        fednova(task, mu=0.1, recipe=Recipe(optimizer="adam"))
    with pytest.raises(BadInput, match=r"a robust mean does not go with .*: leave it out"):
        with_robust_mean(fednova(task), task, CoordinateMedian())
    with pytest.raises(BadInput, match=r"max-norm does not go with .*: leave it out"):
        with_max_norm(fednova(task), task, 1.0)


def test_adam_counts_its_steps() -> None:
    task = one_number()
    recipe = Recipe(batch=1, lr=0.5, optimizer="adam")
    sim = simulate(fednova(task, recipe=recipe), rows_of([[2.0], [8.0] * 3]), task)
    play(sim)
    moved = torch.tensor([0.5, 1.5])  # by about η a step towards rows far away
    expected = 2.5 * float((torch.tensor([0.25, 0.75]) * moved / torch.tensor([1, 3])).sum())
    assert float(sim.server["params"]["w"]) == pytest.approx(expected, abs=0.02)
