"""LG-FedAvg: the lower blocks are each client's own, the upper ones are shared."""

from __future__ import annotations

from collections.abc import Sequence

from fedtailor.core.method import Method
from fedtailor.core.options import BlocksOrAuto
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, partial, upper_on_server


def lg_fedavg(
    task: Task,
    *,
    global_blocks: BlocksOrAuto = -1,
    weighting: Weighting = "uniform",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """Clients learn representations of their own below a classifier that is learnt together.

        (lower_k, upper_k) ← SGD((lower_k, upper); E);   upper ← mean of upper_k

    Args:
      global_blocks: how many blocks next to the output are shared; −1 takes 2, or 1 of a network of
        two, or of clients with several networks. All of them is FedAvg.
      weighting: a client's weight in the mean: `uniform` (official), `data` or `batches`.
      networks: those of all clients, the server's first, where they differ; their upper blocks must
        be alike.
      recipe: how a client trains in a round.

    Deviations: the official code begins with a model pre-trained by FedAvg, and its key order
    shares the lower layers, against the paper; here the upper ones are shared, from the start.

    Reference: Liang et al., "Think Locally, Act Globally", https://arxiv.org/abs/2001.01523

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = lg_fedavg(toy_task(), global_blocks=1)
    """
    usual = 1 if networks else max(1, min(2, len(task.blocks) - 1))
    count = global_blocks if global_blocks >= 0 else usual
    upper = task.top(count)
    lower = [name for name in all_names(task) if name not in upper]
    phases = [Phase(all_names(task), recipe.epochs)]
    there = upper_on_server(task, networks[0], count) if networks else None
    method = partial(task, lower, phases, recipe=recipe, weighting=weighting, on_server=there)
    return method._replace(own_networks="deepest")
