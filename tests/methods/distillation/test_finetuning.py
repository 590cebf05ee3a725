"""Methods whose networks teach each other are fine-tuned with the losses that they train with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import feddistill, fedkd, fml
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    play,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
)

RECIPE = Recipe(epochs=2, batch=4, lr=0.3)
METHODS = [fml, fedkd, feddistill]


def after_two_rounds(factory: Callable[..., Any], task: Task, engine: str = "vectorised") -> Any:
    """A simulation whose last client was held out."""
    method = factory(task, recipe=RECIPE)
    sim = simulate(method, ragged(), task, engine=engine, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 2, 3, 4]] * 2)
    return method, sim


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("factory", METHODS)
@pytest.mark.parametrize("met", [True, False])
def test_fine_tuning_is_a_turn_of_training(factory: Callable[..., Any], met: bool) -> None:
    task, turn = task_of("norm"), turn_of()
    method, sim = after_two_rounds(factory, task)
    data, cid = data_of(ragged(), 1), torch.tensor(1 if met else 5)
    message = method.send(sim.server, cid, turn)
    if met:
        (states,) = sim.clients.client_states(cid[None])
        state = tree.index(states.rows, 0)
    else:
        state = method.start(message, sim.initial, rng.key(9))
    model = method.personal(message, state, data, turn)
    tuned = method.finetune(message, state, model, data, turn, RECIPE)
    trained = method.client(message, state, data, turn).model
    assert same(tuned, trained)
    assert gap(tuned, fit(task, model, data, turn, RECIPE)) > 1e-4  # labels alone are another loss


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factory", [fml, fedkd])
def test_who_was_never_trained_tunes_a_network_of_its_own(
    factory: Callable[..., Any], engine: str
) -> None:
    """Without a step it is as the client would begin; untuned it is the common one."""
    task = task_of()
    _, sim = after_two_rounds(factory, task, engine)
    held = torch.tensor([5])
    ((_, untuned),) = sim.models(ids=held)
    ((_, begun),) = sim.models(Recipe(lr=0.0), ids=held)
    ((_, tuned),) = sim.models(RECIPE, ids=held)
    assert same(untuned, sim.server["params"]) and same(begun, sim.initial)
    assert gap(tuned, begun) > 1e-3
