"""FedProx-C: FedProx whose clients fine-tune the global model first."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.objectives import prox
from fedtailor.core.options import NonNegative, Search, Weighting, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedprox import fedprox
from fedtailor.methods.parts.start import with_finetuning


def fedprox_c(
    task: Task,
    *,
    F: Annotated[Whole, Search(1, 30, log=True)] = 15,
    mu: Annotated[NonNegative, Search(0.001, 10, log=True)] = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """As FedAvg-C, with FedProx's proximal term in fine-tuning and training.

        θ ← SGD on F_k + μ/2 |θ − w|² from w, F epochs, is tested;   w_k = the same from θ, E epochs

    Args:
      F: epochs of fine-tuning; with 0 this is FedProx.
      mu: strength μ of the proximal term around the received model.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: F is not given; the times in FedALA's Table 3 imply 14 to 15.

    Reference: Zhang et al., "FedALA", AAAI 2023, https://arxiv.org/abs/2212.01197 (its control)

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedprox_c(toy_task(), F=5, mu=0.01)
    """
    host = fedprox(task, mu=mu, weighting=weighting, recipe=recipe)
    return with_finetuning(host, task, recipe, F, prox(task, mu))
