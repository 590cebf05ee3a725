"""FedSim: shared and personal blocks trained at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import NonNegative, Search, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, partial, shared_by_all


def fedsim(
    task: Task,
    *,
    shared_blocks: Whole = 0,
    stateless: bool = False,
    server_lr: Annotated[NonNegative, Search(0.1, 2, log=True)] = 1.0,
    weighting: Weighting = "batches",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """As FedAlt, but u and v_k are trained together in the same passes.

        (u_k, v_k) ← τ epochs;   u ← u − η_s Σ_k Ω_k (u − u_k)

    With the head alone as v_k this is FedPer. Of networks that differ, u is as FedAlt's.

    Args:
      shared_blocks: how many blocks from the input on are shared; 0 takes the lower half or, of
        networks that differ, all that they have in common.
      stateless: v_k starts from its first value every round.
      server_lr: η_s.
      weighting: a client's weight: number of local `batches` (authors' code), `data`, `uniform`.
      networks: those of all clients, the server's first, where they differ.
      recipe: how a client trains in a round.

    Deviations: none.

    Reference: Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022,
    https://arxiv.org/abs/2204.03809

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedsim(toy_task(), shared_blocks=1)
    """
    shared = shared_by_all(task, shared_blocks, networks)
    personal = [name for name in all_names(task) if name not in shared]
    method = partial(
        task,
        personal,
        [Phase(all_names(task), recipe.epochs)],
        recipe=recipe,
        weighting=weighting,
        server_lr=server_lr,
        stateless=stateless,
        on_server=shared if networks else None,
    )
    return method._replace(own_networks="deepest")
