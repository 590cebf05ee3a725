"""What a method keeps and sends, in units of one model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fedtailor.core import tree
from fedtailor.methods.check import Trial
from fedtailor.methods.describe import Factory


class Footprint(NamedTuple):
    """Sizes in units of one model, measured on a small federation with full participation.

    Attributes:
      down: received by a client per round.
      up: sent by a client per round.
      client: kept by a client between rounds.
      server: kept by the server.
      clients: how many clients there were.
      parameters: numbers in one model.
    """

    down: float
    up: float
    client: float
    server: float
    clients: int
    parameters: int


def footprint(factory: Factory, **options: Any) -> Footprint:
    """What a method keeps and sends, counted in a round that is not the first.

    Example:
      >>> from fedtailor.methods import scaffold
      >>> footprint(scaffold).up  # a model and a control variate
      2.0
    """
    trial = Trial(factory, options, "dense")
    sim = trial.play(rounds=0)
    everyone = torch.arange(trial.client_data.clients)
    sim.step(everyone)
    report = sim.step(everyone)  # everyone has uploaded by now
    one = sum(p.numel() for p in sim.initial.values())
    width = next(iter(sim.initial.values())).element_size()

    def models(values: tree.Tree) -> float:
        return sum(leaf.numel() for leaf in tree.leaves(values)) / one

    return Footprint(
        float(report.down.double().mean()) / (one * width),
        float(report.up.double().mean()) / (one * width),
        models(sim.states.rows) / trial.client_data.clients,
        models(sim.server),
        trial.client_data.clients,
        one,
    )
