"""Ditto: a personal model beside the global one, kept near it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedtailor.core.data import Data
from fedtailor.core.method import Download, Method, Outcome, beginning
from fedtailor.core.objectives import prox
from fedtailor.core.options import NonNegative, Search, Weighting, Whole
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree
from fedtailor.methods.one_model.fedavg import fedavg


def ditto(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(0.01, 10, log=True)] = 1.0,
    own_epochs: Whole = 0,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg for the global model w; beside it each client trains its own v_k, pulled towards w.

        w-path:  FedAvg
        v_k  ←  s epochs with gradient  ∇F_k(v_k) + λ (v_k − w),   w as received this round

    The two paths do not interact: w is FedAvg's for every λ.

    Args:
      lam: strength λ of the pull; the official scripts use 1 (or choose from 0.1, 1, 2). With 0,
        v_k is training alone.
      own_epochs: epochs s for v_k per round; 0 takes as many as the recipe has.
      weighting: a client's weight in the mean: `data` or `uniform` (the official code).
      recipe: how a client trains in a round.

    Deviations: the official code takes a step of each path in turn; here the paths run one after
    the other, on the same batches. They do not interact, so the result is the same.

    Reference: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization",
    ICML 2021, https://arxiv.org/abs/2012.04221

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = ditto(toy_task(), lam=0.5)
    """
    shared = fedavg(task, weighting=weighting, recipe=recipe)
    near, own_recipe = prox(task, lam), replace(recipe, epochs=own_epochs or recipe.epochs)

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w = beginning(msg, msg["params"])
        upload = shared.client({"params": w}, {}, data, turn).upload
        given = {"anchor": w}
        own = fit(task, state["own"], data, turn, own_recipe, loss=near, given=given)
        return Outcome({"own": own}, upload, own)

    return shared._replace(
        start=lambda msg, initial, key: {"own": initial},
        client=client,
        personal=lambda msg, state, data, turn: state["own"],
        general=lambda msg, state: msg["params"],
        download=Download("params", client, tested=False),
    )
