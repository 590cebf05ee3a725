"""Where local training begins: a part that methods with one downloaded model can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fedtailor.core.data import Data
from fedtailor.core.rng import Turn
from fedtailor.core.task import Blocks, Task
from fedtailor.core.training import Loss, Recipe, fit
from fedtailor.core.tree import Params, Tree


class Begun(NamedTuple):
    """Attributes:
    params: where training begins.
    memory: what the client has to remember of that.
    notes: small numbers for the record, by name.
    given: tensors for the hooks of the training that follows.
    """

    params: Params
    memory: Tree
    notes: Tree
    given: Tree = {}  # noqa: RUF012


class Begin(NamedTuple):
    """Attributes:
    start: (received, common initial parameters) -> memory of a client that is here for the first
      time.
    adapt: (received, memory, rest, data, turn) -> begun. `rest` are the parameters of the whole
      model that are not downloaded.
    keep: (memory, trained parameters) -> memory for the next round.
    trivial: whether training just begins with what was received.
    """

    start: Callable[[Params, Params], Tree]
    adapt: Callable[[Params, Tree, Params, Data, Turn], Begun]
    keep: Callable[[Tree, Params], Tree]
    trivial: bool = False


# (task, the blocks that are downloaded, how clients train) -> begin
Starter = Callable[[Task, Blocks, Recipe], Begin]


def as_received(task: Task, blocks: Blocks, recipe: Recipe) -> Begin:
    """Training begins with what was received; nothing is remembered."""

    def adapt(received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Begun:
        return Begun(received, memory, {})

    return Begin(lambda received, initial: {}, adapt, lambda memory, trained: memory, True)


def finetuned(epochs: int, loss: Loss | None = None) -> Starter:
    """Training begins with what was received after some epochs of fine-tuning.

    Args:
      epochs: of fine-tuning; 0 is `as_received`.
      loss: instead of the task's; it is `given` the received model as its `anchor`.
    """

    def starter(task: Task, blocks: Blocks, recipe: Recipe) -> Begin:
        if epochs == 0:
            return as_received(task, blocks, recipe)
        how = replace(recipe, epochs=epochs, steps=0)

        def adapt(received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Begun:
            given = {"anchor": received}
            whole = fit(task, rest | received, data, turn, how, loss=loss, given=given)
            return Begun({k: whole[k] for k in received}, memory, {})

        return Begin(lambda received, initial: {}, adapt, lambda memory, trained: memory)

    return starter
