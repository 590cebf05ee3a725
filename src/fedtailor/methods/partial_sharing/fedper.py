"""FedPer: a shared body and a personal head, trained together."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Search, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, head_names, partial


def fedper(
    task: Task,
    *,
    head_blocks: Annotated[Whole, Search(1, 3)] = 1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The body is averaged, the head stays with its client; both are trained in the same passes.

        (φ_k, h_k) ← SGD((φ, h_k); E);   φ ← Σ_k Ω_k φ_k

    Args:
      head_blocks: how many blocks next to the output are personal.
      weighting: a client's weight in the mean: `data`, `uniform` or `batches`.
      recipe: how a client trains in a round.

    Deviations: none. It is FedSim with the head as its personal part.

    Reference: Arivazhagan et al., "Federated Learning with Personalization Layers",
    https://arxiv.org/abs/1912.00818

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedper(toy_task(), head_blocks=2)
    """
    phases = [Phase(all_names(task), recipe.epochs)]
    head = head_names(task, head_blocks)
    return partial(task, head, phases, recipe=recipe, weighting=weighting)
