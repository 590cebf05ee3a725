"""FedBABU: the body is trained together under a fixed random head, then all is fine-tuned."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedtailor.core.data import Data
from fedtailor.core.method import Method
from fedtailor.core.options import Count, Search, Whole
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.partial import Phase, Weighting, all_names, head_names, partial


def fedbabu(
    task: Task,
    *,
    F: Whole = 5,
    head_blocks: Annotated[Count, Search(1, 3)] = 1,
    weighting: Weighting = "uniform",
    recipe: Recipe = Recipe(),
) -> Method:
    """One random head, the same everywhere and never trained; clients train the body only.

        φ_k ← SGD(φ; E), head fixed;   φ ← mean of φ_k;   tested after F epochs on the whole net

    The head is a common constant: it travels with the initial model, not with rounds. The global
    model (body and random head) is tested too, before fine-tuning.

    Args:
      F: epochs of fine-tuning before a client uses its model.
      head_blocks: how many blocks next to the output are the head.
      weighting: a client's weight in the mean: `uniform` (official), `data` or `batches`.
      recipe: how a client trains in a round.

    Deviations: none.

    Reference: Oh et al., "FedBABU: Towards Enhanced Representation for Federated Image
    Classification", ICLR 2022, https://arxiv.org/abs/2106.06042

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedbabu(toy_task(), F=1)
    """
    head = head_names(task, head_blocks)
    body = [name for name in all_names(task) if name not in head]
    method = partial(task, head, [Phase(body, recipe.epochs)], recipe=recipe, weighting=weighting)

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        model: Params = method.personal(msg, state, data, turn)
        return fit(task, model, data, turn, replace(recipe, epochs=F, steps=0)) if F else model

    return method._replace(
        personal=personal, general=lambda msg, state: msg["shared"] | state["personal"]
    )
