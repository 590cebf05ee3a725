"""FedRep: a shared body, a head of one's own."""

from __future__ import annotations

from typing import Annotated

from fedtailor.core.method import Method
from fedtailor.core.options import Search, Weighting, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, all_names, head_names, partial


def fedrep(
    task: Task,
    *,
    head_epochs: Annotated[Whole, Search(1, 20, log=True)] = 3,
    head_blocks: Annotated[Whole, Search(1, 3)] = 1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The body φ is learnt together, the head h_k by each client alone; only the body travels.

        h_k ← E_h epochs on the head, body fixed at the received φ
        φ_k ← E_b epochs on the body, head fixed at the new h_k
        φ   ← Σ_k Ω_k φ_k

    Args:
      head_epochs: E_h. The official code uses 10 (with the run's rate of 0.05 heads then diverge
        on CIFAR-10), PFLlib and FedALA's comparison 1. E_b is the recipe's number of epochs.
      head_blocks: how many blocks next to the output are the head.
      weighting: a client's weight in the mean: `data`, or `uniform` (the official code on CIFAR).
      recipe: how a client trains in a round.

    Deviations: the official code ends with 10 epochs on the head at all clients; ask for that with
    the run's fine-tuning. It decays weights alone (0.0001): `--decay-biases no`. Running statistics
    of the body follow in both phases.

    Reference: Collins et al., "Exploiting Shared Representations for Personalized Federated
    Learning", ICML 2021, https://arxiv.org/abs/2102.07078

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedrep(toy_task(), head_epochs=1)
    """
    head = head_names(task, head_blocks)
    body = [name for name in all_names(task) if name not in head]
    phases = [Phase(head, head_epochs), Phase(body, recipe.epochs)]
    return partial(task, head, phases, recipe=recipe, weighting=weighting)
