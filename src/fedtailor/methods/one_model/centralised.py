"""Centralised: one model, trained on everybody's rows in one place."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg


def centralised(task: Task, *, recipe: Recipe = Recipe()) -> Method:
    """No federation: all training rows are gathered, and one model is trained on them.

        w ← SGD(w; E) on ∪_k D_k        E epochs over the rows of all clients are a round

    What federation tries to reach without moving data, and so a bound for methods with one model;
    personal models may be better still. Every client is tested with w. Participation does not
    matter: everybody's rows are there from the first round on, but for those of held-out clients.
    A client's bytes are its rows, sent once.

    Args:
      recipe: how the model is trained in a round; batches are drawn from all rows together.

    Deviations: none. An optimiser's momentum begins anew in each round, as it does at clients.

    Reference: the "pooled" rows of papers on federated learning.

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = centralised(toy_task(), recipe=Recipe(epochs=5, lr=0.05))
    """
    return fedavg(task, recipe=recipe)._replace(
        gathered=True,
        # not a point that clients move, nor one that they begin with
        common="",
        download=None,
        not_private="all rows are gathered as they are, so there is no guarantee: choose another "
        "method",
    )
