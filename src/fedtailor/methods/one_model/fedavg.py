"""FedAvg: one model for all."""

from __future__ import annotations

from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Download, Method, Outcome, Upload, beginning, by_size
from fedtailor.core.objectives import Gradient, Loss, as_is
from fedtailor.core.options import Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


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

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"params": initial}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"params": server["params"]}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = beginning(msg, msg["params"])
        given = {"anchor": msg["params"]} if loss else None
        params = fit(task, begin, data, turn, recipe, loss=loss, given=given, gradient=gradient)
        return Outcome(state, Upload({"params": params}, by_size(data, weighting)), params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return {"params": up.mean["params"]}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return beginning(msg, msg["params"])

    return Method(
        init,
        send,
        start,
        client,
        receive,
        personal,
        task.predict,
        download=Download("params", client),
    )
