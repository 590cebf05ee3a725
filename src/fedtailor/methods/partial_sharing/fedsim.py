"""FedSim: shared and personal blocks trained at once."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Search, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, lower_blocks, partial


def fedsim(
    task: Task,
    *,
    shared_blocks: Whole = 0,
    stateless: bool = False,
    server_lr: Annotated[NonNegative, Search(0.1, 2, log=True)] = 1.0,
    weighting: Weighting = "batches",
    recipe: Recipe = Recipe(),
) -> Method:
    """As FedAlt, but u and v_k are trained together in the same passes.

        (u_k, v_k) ← τ epochs;   u ← u − η_s Σ_k Ω_k (u − u_k)

    With the head alone as v_k this is FedPer.

    Args:
      shared_blocks: how many blocks from the input on are shared; 0 takes the lower half.
      stateless: v_k starts from its first value every round.
      server_lr: η_s.
      weighting: a client's weight: number of local `batches` (authors' code), `data`, `uniform`.
      recipe: how a client trains in a round.

    Deviations: none.

    Reference: Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022,
    https://arxiv.org/abs/2204.03809

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedsim(toy_task(), shared_blocks=1)
    """
    shared = lower_blocks(task, shared_blocks)
    personal = [name for name in all_names(task) if name not in shared]
    return partial(
        task,
        personal,
        [Phase(all_names(task), recipe.epochs)],
        recipe=recipe,
        weighting=weighting,
        server_lr=server_lr,
        stateless=stateless,
    )
