"""FedBN: FedAvg that leaves BatchNorm with the clients."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, partial


def fedbn(
    task: Task,
    *,
    weighting: Weighting = "uniform",
    recipe: Recipe = Recipe(),
) -> Method:
    """Everything is averaged but BatchNorm's parameters and running statistics.

        w_k ← SGD(w_k; E);   w ← mean of w_k over all names outside BatchNorm

    On a network without BatchNorm this is FedAvg.

    Args:
      weighting: a client's weight in the mean: `uniform` (official), `data` or `batches`.
      recipe: how a client trains in a round.

    Deviations: BatchNorm is found by the type of its modules (the code: by "bn" in a name, which
    misses layers).

    Reference: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization", ICLR 2021, https://arxiv.org/abs/2102.07623

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedbn(toy_task(), weighting="data")
    """
    phases = [Phase(all_names(task), recipe.epochs)]
    return partial(task, task.batch_norm, phases, recipe=recipe, weighting=weighting)
