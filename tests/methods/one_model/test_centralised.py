"""Centralised: one model trained on everybody's rows in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import fedtailor
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe
from fedtailor.engine.simulation import Diverged
from fedtailor.methods import centralised, fedavg
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    models,
    module_of,
    near,
    of_models,
    one_number,
    outcome,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_by_hand(engine: str) -> None:
    # rows 2, 7, 8, 9 together: mean 6.5;  w halves the way in a round, whoever is drawn
    task = one_number()
    method = centralised(task, recipe=HALF)
    sim = simulate(method, rows_of([[2.0], [7.0, 8.0, 9.0]]), task, engine=engine)
    play(sim, [[0], [1]])
    assert float(sim.server["params"]["w"]) == near(4.875)
    assert of_models(sim, "w") == near(4.875, 4.875)


def spied(task: Task, seen: list[tuple[Tensor, Tensor]]) -> Task:
    """The task, noting the rows of every batch that it is trained on."""

    def loss(params: Any, batch: Batch) -> Any:
        real = batch.weight > 0
        seen.append((batch.x[real], batch.y[real]))
        return task.loss(params, batch)

    return task._replace(loss=loss)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_it_is_an_ordinary_loop_over_all_rows(optimizer: str, double: None) -> None:
    """Plain torch on the same batches; each round goes over every training row once per epoch."""
    task, world, seen = task_of(), ragged(), []
    recipe = Recipe(epochs=2, batch=8, lr=0.05, optimizer=optimizer)
    method = centralised(spied(task, seen), recipe=recipe)
    sim = simulate(method, world, task, engine="sequential")
    module = module_of("mlp", sim.initial)
    rows = int(world.train.n.sum())
    every = sorted(world.x[world.train.flat].sum(1).tolist() * 2)
    for _ in range(3):
        seen.clear()
        play(sim)
        assert sum(len(y) for _, y in seen) == 2 * rows
        assert len(seen) == 2 * -(-rows // 8)
        assert sorted(torch.cat([x for x, _ in seen]).sum(1).tolist()) == pytest.approx(every)
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
        step = kind(module.parameters(), lr=0.05)
        for x, y in seen:
            step.zero_grad()
            functional.cross_entropy(module(x), y).backward()
            step.step()
        assert gap(sim.server["params"], dict(module.state_dict())) < 1e-9


@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_with_one_client_it_is_fedavg(net: str) -> None:
    task, world, recipe = task_of(net), ragged((23,)), Recipe(epochs=2, batch=8, lr=0.1)
    sims = [
        simulate(factory(task, recipe=recipe), world, task) for factory in (fedavg, centralised)
    ]
    for sim in sims:
        play(sim, 3)
    assert same(sims[0].server, sims[1].server)
    assert same(*map(models, sims))


def test_engines_agree(double: None) -> None:
    task, world = task_of("norm"), ragged()
    found = []
    for options in ({"engine": "sequential"}, {"engine": "vectorised"}, {"loop_mode": "traced"}):
        sim = simulate(centralised(task, recipe=Recipe(batch=8)), world, task, **options)
        play(sim, COHORTS)
        found.append(outcome(sim))
        sim.close()
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[0], found[2]) < 1e-9


def test_held_out_clients_give_no_rows_and_use_the_model() -> None:
    task, world, held = task_of(), ragged(), torch.tensor([1, 4])
    sim = simulate(centralised(task), world, task, held_out=held)
    given = set(sim.centre.client_data.train.flat.tolist())
    own = [set(r.tolist()) for r in world.train.flat.split(world.train.n.tolist())]
    assert given == set().union(*(own[i] for i in (0, 2, 3, 5)))
    (report,) = play(sim, [[0, 2]])
    assert report.ids.tolist() == report.taken.tolist() == [0, 2, 3, 5]
    assert all(same(model, sim.server["params"]) for model in models(sim).values())


def test_rows_are_sent_once_and_no_model_is() -> None:
    task, world = task_of(), ragged()
    sim = simulate(centralised(task), world, task)
    first, second = play(sim, [[0], [0, 1]])
    row = 4 * 4 + 8  # four numbers as float32, the label as int64
    assert first.up.tolist() == [row * n for n in world.train.n.tolist()]
    assert second.up.tolist() == first.down.tolist() == second.down.tolist() == [0] * 6


def test_everybodys_own_rows_stay_for_testing_and_fine_tuning() -> None:
    task, world = task_of(), ragged()
    sim = simulate(centralised(task), world, task)
    play(sim)
    assert sim.client_data is world
    tuned = dict(sim.models(Recipe(epochs=2, lr=0.3)))
    assert not same(tuned[0], tuned[1]) and not same(tuned[0], sim.server["params"])


def test_divergence_names_all_clients() -> None:
    task = one_number()
    sim = simulate(centralised(task, recipe=Recipe(lr=1e30)), rows_of([[2.0], [8.0]]), task)
    with pytest.raises(Diverged, match="all clients diverged"):
        play(sim, 5)


def test_it_takes_no_part_and_promises_no_privacy() -> None:
    for part in ("ala", "adam"):
        with pytest.raises(fedtailor.BadInput, match=f"'centralised' cannot take '\\+{part}'"):
            fedtailor.run(f"centralised+{part}", rounds=1)
    with pytest.raises(fedtailor.BadInput, match="all rows are gathered as they are"):
        fedtailor.run("centralised", rounds=1, clients=3, dp_clip=1.0, dp_noise=1.0)
