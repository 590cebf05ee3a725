"""Partial sharing: which names travel, phases, and names that differ on the server."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount
from fedtailor.core.objectives import sam
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Simulation
from fedtailor.methods import fedalt, fedbabu, feddistill, fedper, fedrep, lg_fedavg, plgu_grep
from fedtailor.methods.check import toy_task
from fedtailor.methods.describe import among
from fedtailor.methods.parts.partial import Phase, all_names, lower_blocks, partial
from tests.methods.worlds import (
    deeper_mlp,
    gap,
    models,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_numbers,
)

HALF = Recipe(batch=0, lr=0.5)


def everyone(sim) -> torch.Tensor:
    return torch.arange(sim.client_data.clients)


def test_names() -> None:
    task = classification(
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2))
    )
    assert all_names(task) == tuple(task.init(torch.tensor(0)))
    assert lower_blocks(task, 1) == task.blocks[0]
    assert "1.running_mean" in lower_blocks(task, 1), "statistics belong to their block"
    # 0: the lower half, rounded down, but at least one block
    assert lower_blocks(task, 0) == task.blocks[0]
    assert lower_blocks(task, 2) == task.blocks[0] + task.blocks[1]
    assert lower_blocks(task, 99) == all_names(task)
    one = classification(lambda: nn.Linear(2, 2))
    assert lower_blocks(one, 0) == all_names(one)
    four = classification(lambda: nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)]))
    assert lower_blocks(four, 0) == four.blocks[0] + four.blocks[1]


def test_phases_run_one_after_another_and_an_empty_one_is_skipped() -> None:
    """b for 0 epochs (nothing), a for 2 (3/4 of the way), then both for 1 (half of the rest)."""
    task = two_numbers()
    phases = [Phase(["b"], 0), Phase(["a"], 2), Phase(["a", "b"], 1)]
    sim = simulate(partial(task, ["b"], phases, recipe=HALF), rows_of([[8.0]]), task)
    sim.step(everyone(sim))
    assert float(sim.server["shared"]["a"]) == 7.0
    assert float(sim.states.rows["personal"]["b"][0]) == 4.0


def test_a_phase_may_have_steps_and_a_gradient_of_its_own() -> None:
    """Three random batches of the only row: 7/8 of the way. SAM overshoots by ρ lr at each step."""
    task = two_numbers()
    phases = [Phase(["a"], 1, steps=3), Phase(["b"], 1, sam(0.5))]
    sim = simulate(partial(task, ["b"], phases, recipe=HALF), rows_of([[8.0]]), task)
    sim.step(everyone(sim))
    assert float(sim.server["shared"]["a"]) == 7.0
    # at b = 0 the gradient is -8, the worst point -0.5, the gradient there -8.5
    assert float(sim.states.rows["personal"]["b"][0]) == pytest.approx(4.25)


def test_the_server_may_have_other_names() -> None:
    """Client's a is the server's z."""
    task = two_numbers()
    method = partial(task, ["b"], [Phase(["a", "b"], 1)], recipe=HALF, on_server={"a": "z"})
    message = method.send({"shared": {"z": torch.tensor(3.0)}}, torch.tensor(0), None)
    assert message == {"shared": {"a": torch.tensor(3.0)}}
    state = method.start(message, task.init(torch.tensor(0)), torch.tensor(0))
    sim = simulate(partial(task, ["b"], [], recipe=HALF), rows_of([[8.0]]), task)
    data = sim.client_data.data(torch.tensor([0]))
    one = data._replace(
        rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
    )
    out = method.client(message, state, one, sim._turn(3))
    assert out.upload.mean["shared"].keys() == {"a"}
    assert float(method.admit(message, out.upload).mean["shared"]["z"]) == 5.5
    assert out.model.keys() == {"a", "b"}


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_nobody_but_the_client_sees_the_personal_part(engine: str) -> None:
    task, world = task_of("norm"), ragged()
    method = partial(task, task.head, [Phase(all_names(task), 1)], recipe=Recipe())
    sim = simulate(method, world, task, engine=engine)
    sim.step(everyone(sim))
    assert not set(sim.server["shared"]) & set(task.head)
    assert set(sim.server["shared"]) | set(task.head) == set(all_names(task))
    heads = tree.index(sim.states.rows["personal"], 0), tree.index(sim.states.rows["personal"], 1)
    assert not same(*heads)


def test_a_network_of_one_block_has_nothing_to_share() -> None:
    """Else FedRep on a linear model would be training alone under another name."""
    task = classification(lambda: nn.Linear(4, 3))
    for factory in (fedrep, fedper, fedbabu):
        with pytest.raises(BadInput, match="nothing is left to share: the network is one block"):
            factory(task)
    all_shared = fedalt(task).init(ClientCount(1), task.init(rng.key(0)), rng.key(0))
    assert set(all_shared["shared"]) == {"weight", "bias"}


@pytest.mark.parametrize("make", [fedper, fedrep, fedbabu, plgu_grep])
def test_a_head_of_more_blocks_than_there_are_is_refused(make: Any) -> None:
    with pytest.raises(BadInput, match="head_blocks is 9, but the network has 3 blocks: give 2 or"):
        make(toy_task(), head_blocks=9)


def test_a_method_that_needs_a_body_refuses_to_be_all_head() -> None:
    with pytest.raises(BadInput, match="head_blocks is 3, all of the network: PLGU-GRep perturbs"):
        plgu_grep(toy_task(), head_blocks=3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [lg_fedavg, feddistill])
def test_clients_of_unlike_bodies_play_together(make: Any) -> None:
    """One after another and all at once are the same; of LG-FedAvg the head alone is common."""
    deep, small, world, found = classification(deeper_mlp), task_of(), ragged(), []
    for engine in ("sequential", "vectorised"):
        known = among(make, (deep, small))
        one, two = (make(task, **known) for task in (deep, small))
        others = [(two, small, torch.tensor([1, 3]))]
        sim = Simulation(one, world, deep, others=others, rounds=5, engine=engine)
        for _ in range(2):
            sim.step(torch.arange(6))
        found.append(models(sim))
    assert gap(*found) < 1e-9
    heads = [found[0]["0"]["4.weight"], found[0]["1"]["2.weight"]]
    assert torch.equal(*heads) == (make is lg_fedavg)
    assert not torch.equal(found[0]["0"]["0.weight"], found[0]["2"]["0.weight"])


def test_clients_of_unlike_heads_have_none_in_common() -> None:
    wide = classification(lambda: nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 3)))
    with pytest.raises(BadInput, match=r"one head for all, but heads of clients have shapes .*12"):
        lg_fedavg(wide, networks=(classification(deeper_mlp), wide))
