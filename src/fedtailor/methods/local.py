"""Local: every client trains alone."""

from __future__ import annotations

from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree


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

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own = fit(task, state["own"], data, turn, recipe)
        return Outcome({"own": own}, Upload(), own)

    return Method(
        init=lambda clients, initial, key: {},
        send=lambda server, cid, turn: {},
        start=lambda msg, initial, key: {"own": initial},
        client=client,
        receive=lambda server, ids, up, turn: server,
        personal=lambda msg, state, data, turn: state["own"],
        predict=task.predict,
        alone=True,
        own_networks="deepest",
    )
