"""How much more a method computes than FedAvg: counted, on a federation small enough for that."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedtailor.core.method import Method
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, Simulation
from fedtailor.methods.describe import find
from fedtailor.results.config import Config

FEATURES, CLASSES, LAYERS = 8, 4, 12  # as deep as networks whose blocks options count
CLIENTS, ROWS, HELD = 2, 16, 4  # rows per client: for training, and for validation and testing
BATCH = 8
ROUND = 3  # that is counted; before it clients have no state, and FedALA learns all of its weights


class Effort(NamedTuple):
    """Operations, FedAvg's being 1.

    Attributes:
      training: of clients in a round.
      testing: of a test of all clients' models, before which some methods train them.
    """

    training: float = 1.0
    testing: float = 1.0


def _network() -> nn.Module:
    inner = [layer for _ in range(LAYERS - 1) for layer in (_layer(FEATURES), nn.ReLU())]
    return nn.Sequential(*inner, _layer(CLASSES))


def _layer(out: int) -> nn.Module:
    return nn.Linear(FEATURES, out)


def _federation() -> ClientData:
    draw = np.random.default_rng(0)
    each = ROWS + 2 * HELD
    x = torch.tensor(draw.standard_normal((CLIENTS * each, FEATURES)), dtype=torch.float32)
    y = torch.tensor(draw.integers(0, CLASSES, len(x)))
    cut = [np.split(np.arange(i * each, (i + 1) * each), [ROWS, -HELD]) for i in range(CLIENTS)]
    train, val, test = zip(*cut, strict=True)
    return ClientData.of(x, y, train, val, test)


def _counted(name: str, options: dict[str, Any], recipe: Recipe) -> Effort:
    """Operations of a method, as they are."""
    from torch.utils.flop_counter import FlopCounterMode

    training, testing = FlopCounterMode(display=False), FlopCounterMode(display=False)
    task = classification(_network)
    method: Method = find(name)(task, recipe=recipe, **options)

    def client(*given: Any) -> Any:  # a server's networks would be too large beside such a model
        if simulation.round < ROUND - 1:
            return method.client(*given)
        with training:
            return method.client(*given)

    counting = method._replace(client=client)
    simulation = Simulation(counting, _federation(), task, recipe=recipe, engine="sequential")
    for _ in range(ROUND):
        simulation.step(torch.arange(CLIENTS), on_nan="skip")
    with testing:
        simulation.score()
    simulation.close()
    return Effort(float(training.get_total_flops()), float(testing.get_total_flops()))


@cache
def _usual(recipe: Recipe) -> Effort:
    return _counted("fedavg", {}, recipe)


def effort_of(method: str, options: dict[str, Any], recipe: Recipe) -> Effort:
    """What a method computes beside FedAvg with the same recipe."""
    small = replace(recipe, batch=BATCH, steps=0, dp_clip=0.0, dp_noise=0.0)
    own, usual = _counted(method, options, small), _usual(small)
    return Effort(own.training / usual.training, own.testing / usual.testing)


def effort_name(config: Config) -> str:
    """What efforts are remembered by: all that they depend on."""
    recipe = config.recipe()
    options = json.dumps(config.options, sort_keys=True)
    return f"{config.method} {options} {recipe.epochs} {recipe.optimizer}"


@cache
def _known() -> dict[str, list[float]]:
    """What was counted before, by benchmarks/efforts.py: it takes half a second for each."""
    text = resources.files(__package__).joinpath("efforts.json").read_text(encoding="utf-8")
    found: dict[str, list[float]] = json.loads(text)
    return found


def effort(config: Config) -> Effort:
    """What the method of a run computes; 1 where it cannot be counted."""
    name, known = effort_name(config), _known()
    if name not in known:
        try:
            known[name] = list(effort_of(config.method, config.options, config.recipe()))
        except Exception:  # a method of somebody's own may do anything: an estimate stops no run
            known[name] = list(Effort())
    return Effort(*known[name])
