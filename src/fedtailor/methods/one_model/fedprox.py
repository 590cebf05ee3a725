"""FedProx: FedAvg whose clients stay near the server's model."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.objectives import prox
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg


def fedprox(
    task: Task,
    *,
    mu: Annotated[NonNegative, Search(0.001, 10, log=True)] = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg with a proximal term in the clients' loss.

        min F_k(w_k) + μ/2 |w_k − w|²,   gradient  ∇F_k(w_k) + μ (w_k − w)

    Args:
      mu: strength μ of the proximal term; customary values are 0.001, 0.01, 0.1 and 1. With 0 this
        is FedAvg.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: the paper lets clients stop early at γ-inexact solutions; here all train for the
    recipe's epochs, as in every later comparison.

    Reference: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
    https://arxiv.org/abs/1812.06127

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedprox(toy_task(), mu=0.01)
    """
    return fedavg(task, weighting=weighting, recipe=recipe, loss=prox(task, mu))
