"""FedAvg+Data: FedAvg on each client's rows and a small public pool."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Search, Share, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg


def fedavg_data(
    task: Task,
    *,
    beta: Annotated[Share, Search(0.01, 0.2)] = 0.05,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Once, every client gives a share of its training rows to a pool that all train on.

        D_k := D_k ∪ pool,  n_k counted accordingly;  then FedAvg

    The pool's bytes are counted once per client, when it first takes part. Held-out clients neither
    give nor get rows. Rows travel as they are: there is no DP-SGD with it.

    Args:
      beta: share β that each client gives; with 0 this is FedAvg.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: FedFomo's code gives arg · n_k / N rows, with an argument that is not known.

    Reference: Zhao et al., "Federated Learning with Non-IID Data",
    https://arxiv.org/abs/1806.00582

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedavg_data(toy_task(), beta=0.02)
    """
    method = fedavg(task, weighting=weighting, recipe=recipe)
    why = (
        "clients give rows away as they are, so there is no guarantee: choose another method "
        "(with beta=0 it is FedAvg)"
    )
    return method._replace(donate=beta, not_private=why if beta else "")
