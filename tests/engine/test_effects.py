"""What a method does beside what it returns is told of."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Outcome
from fedtailor.core.rng import Turn
from fedtailor.core.tree import Tree
from fedtailor.engine import Simulation
from fedtailor.engine.effects import without_effects
from fedtailor.methods import fedavg
from tests.engine.test_simulation import RECIPE, everyone, make_task, world


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_server_that_a_client_changes_in_place(engine: str) -> None:
    """Else the second client would begin with what the first one left behind."""
    task, client_data = make_task(), world()
    plain = fedavg(task, recipe=RECIPE)

    def client(msg: Tree, state: Tree, data: Any, turn: Turn) -> Outcome:
        for leaf in tree.leaves(msg["params"]):
            leaf.mul_(0.5)
        return plain.client(msg, state, data, turn)

    simulation = Simulation(plain._replace(client=client), client_data, task, engine=engine)
    with pytest.raises(BadInput, match=r"changes params/\S+ of the server's state in place"):
        simulation.step(everyone(simulation))


def test_what_may_be_done() -> None:
    server = {"deep": {"w": torch.ones(2)}}
    with without_effects(server, torch.device("cpu")):
        assert (server["deep"]["w"] * 2).tolist() == [2, 2]
        torch.zeros(2).add_(1)


def test_torchs_own_random_numbers() -> None:
    with (
        pytest.raises(BadInput, match=r"draws from torch's own random numbers"),
        without_effects({}, torch.device("cpu")),
    ):
        torch.rand(1)


def test_tensors_whose_changes_torch_does_not_count() -> None:
    with torch.inference_mode():
        server = {"w": torch.ones(2)}
    with without_effects(server, torch.device("cpu")):
        pass
