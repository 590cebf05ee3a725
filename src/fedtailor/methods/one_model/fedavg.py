"""FedAvg: one model for all."""

from __future__ import annotations

from fedtailor.core.data import Data
from fedtailor.core.method import Download, Method, Outcome, Upload, beginning, by_size
from fedtailor.core.objectives import Gradient, Loss, as_is
from fedtailor.core.options import Weighting
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree


def fedavg(
    task: Task,
    *,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
    loss: Loss | None = None,
    gradient: Gradient = as_is,
) -> Method:
    """Clients train the server's model; the server averages what they return.

        w_k = SGD(w; E)            at each client k of the cohort S
        w  ← Σ_k Ω_k w_k           Ω_k = n_k / Σ_{j∈S} n_j

    Learnt on the server: w. Learnt on the client: nothing that stays there.

    Args:
      weighting: a client's weight in the mean: `data` (its number of training rows) or `uniform`.
      recipe: how a client trains in a round.
      loss: for methods built on this one: another local loss, which is `given` the received model
        as its `anchor`.
      gradient: for methods built on this one: how steps come from gradients.

    Deviations: none. BatchNorm's running statistics are averaged like parameters.

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedavg(toy_task(), weighting="uniform", recipe=Recipe(epochs=2))
    """

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = beginning(msg, msg["params"])
        given = {"anchor": msg["params"]} if loss else None
        params = fit(task, begin, data, turn, recipe, loss=loss, given=given, gradient=gradient)
        return Outcome(state, Upload({"params": params}, by_size(data, weighting)), params)

    return Method(
        init=lambda clients, initial, key: {"params": initial},
        send=lambda server, cid, turn: {"params": server["params"]},
        start=lambda msg, initial, key: {},
        client=client,
        receive=lambda server, ids, up, turn: {"params": up.mean["params"]},
        personal=lambda msg, state, data, turn: beginning(msg, msg["params"]),
        predict=task.predict,
        download=Download("params", client),
        common="params",
    )
