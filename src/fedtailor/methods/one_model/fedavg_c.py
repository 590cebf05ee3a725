"""FedAvg-C: FedAvg whose clients fine-tune the global model first."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Search, Weighting, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.start import with_finetuning


def fedavg_c(
    task: Task,
    *,
    F: Annotated[Whole, Search(1, 30, log=True)] = 15,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedALA's fine-tuning control: the downloaded model is fine-tuned, tested, then trained.

        θ ← SGD(w; F)  is tested;   w_k = SGD(θ; E);   w ← Σ_k Ω_k w_k

    Args:
      F: epochs of fine-tuning; with 0 this is FedAvg.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: F is not given; the times in FedALA's Table 3 imply 14 to 15.

    Reference: Zhang et al., "FedALA", AAAI 2023, https://arxiv.org/abs/2212.01197 (its control)

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedavg_c(toy_task(), F=5)
    """
    return with_finetuning(fedavg(task, weighting=weighting, recipe=recipe), task, recipe, F)
