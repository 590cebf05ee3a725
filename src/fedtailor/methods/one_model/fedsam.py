"""FedSAM: FedAvg with sharpness-aware clients."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.objectives import sam
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg


def fedsam(
    task: Task,
    *,
    rho: Annotated[NonNegative, Search(0.005, 0.5, log=True)] = 0.05,
    weighting: Weighting = "uniform",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg whose clients step along the gradient at the worst point nearby.

        w_k ← w_k − η ∇F(w_k + ρ g / |g|),   g = ∇F(w_k) on the same batch

    Args:
      rho: radius ρ; with 0 this is FedAvg.
      weighting: a client's weight in the mean: `uniform` (as in PLGU's comparison) or `data`.
      recipe: how a client trains in a round.

    Deviations: running statistics of BatchNorm come from the first of the two passes.

    Reference: Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML
    2022, https://arxiv.org/abs/2206.02618

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedsam(toy_task(), rho=0.1)
    """
    return fedavg(task, weighting=weighting, recipe=recipe, gradient=sam(rho))
