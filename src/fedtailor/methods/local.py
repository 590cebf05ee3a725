"""Local: every client trains alone."""

from __future__ import annotations

from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def local(task: Task, *, recipe: Recipe = Recipe()) -> Method:
    """Each client trains its own model on its own data; nothing is sent.

    The yardstick of personalised federated learning: a method is worth its bytes to a client only
    if the client ends better off than this. Clients train in exactly the rounds in which they
    would have taken part, from the common initial model:

        θ_k ← SGD(θ_k; E)

    Args:
      recipe: how a client trains in a round.

    Deviations: none.

    Reference: the "Local Training" rows of the papers that this package covers.

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = local(toy_task(), recipe=Recipe(epochs=5, lr=0.05))
    """

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"own": initial}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own = fit(task, state["own"], data, turn, recipe)
        return Outcome({"own": own}, Upload(), own)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return server

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        own: Params = state["own"]
        return own

    return Method(init, send, start, client, receive, personal, task.predict)
