"""FedAlt: shared and personal blocks trained in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Count, NonNegative, Search, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, partial, shared_by_all


def fedalt(
    task: Task,
    *,
    shared_blocks: Whole = 0,
    personal_epochs: Annotated[Count, Search(1, 10, log=True)] = 1,
    stateless: bool = False,
    server_lr: Annotated[NonNegative, Search(0.1, 2, log=True)] = 1.0,
    weighting: Weighting = "batches",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """The blocks u near the input are learnt together, the others, v_k, by each client alone.

        v_k ← τ_v epochs, u fixed;   u_k ← τ_u epochs, the new v_k fixed
        u ← u − η_s Σ_k Ω_k (u − u_k)

    Clients may have networks of different depths and kinds: u are the blocks that all of them have
    at the same place and with the same shapes.

    Args:
      shared_blocks: how many blocks from the input on are shared; 0 takes the lower half or, of
        networks that differ, all that they have in common.
      personal_epochs: τ_v; τ_u is the recipe's number of epochs.
      stateless: v_k starts from its first value every round, as pMixFed describes FedAlt.
      server_lr: η_s.
      weighting: a client's weight: number of local `batches` (authors' code), `data`, `uniform`.
      networks: those of all clients, the server's first, where they differ.
      recipe: how a client trains in a round.

    Deviations: the final fit of v at all clients, an option of the authors' code, is the run's
    fine-tuning.

    Reference: Pillutla et al., "Federated Learning with Partial Model Personalization", ICML 2022,
    https://arxiv.org/abs/2204.03809

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedalt(toy_task(), shared_blocks=1)
    """
    shared = shared_by_all(task, shared_blocks, networks)
    personal = [name for name in all_names(task) if name not in shared]
    method = partial(
        task,
        personal,
        [Phase(personal, personal_epochs), Phase(list(shared), recipe.epochs)],
        recipe=recipe,
        weighting=weighting,
        server_lr=server_lr,
        stateless=stateless,
        on_server=shared if networks else None,
    )
    return method._replace(own_networks="deepest")
