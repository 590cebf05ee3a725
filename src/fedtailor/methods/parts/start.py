"""Where local training begins: wrappers for methods whose clients download one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, download_of
from fedtailor.core.objectives import Loss
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


class Start(NamedTuple):
    """Where a client's training begins in a round.

    Attributes:
      params: in place of what was received.
      memory: what the client remembers of it.
      notes: small numbers for the record, by name.
    """

    params: Params
    memory: Tree
    notes: Tree


def with_start(
    host: Method,
    remember: Callable[[Params, Params], Tree],
    adapt: Callable[[Params, Tree, Params, Data, Turn], Start],
) -> Method:
    """A method whose local training begins with `adapt` of what was received.

    The host still sees what was really received, so that a proximal term stays around it.

    Args:
      host: a method whose clients download one model (`Method.download`).
      remember: (received, common initial parameters of the same names) -> the first memory. Its
        entry `own`, if it has one, is after each turn what the host has made of the download.
      adapt: (received, memory, the rest of the whole model, data, turn) -> where to begin.

    Raises:
      BadInput: the host's clients download no model, or several.
    """
    download = download_of(host)
    if download is None:
        raise BadInput("this method cannot begin elsewhere: its clients do not download one model")
    entry, rest, tested = download.entry, download.rest, download.tested

    def inner(state: Tree) -> Tree:
        return {"host": state} if state else {}

    def begin(msg: Tree, state: Tree, data: Data, turn: Turn, training: bool) -> Start:
        others = rest(state.get("host", {}), training) if rest else {}
        return adapt(msg[entry], state, others, data, turn.aside())

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        memory = remember(msg[entry], tree.pick(initial, msg[entry]))
        return memory | inner(host.start(msg, initial, key))

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        here = begin(msg, state, data, turn, True)
        out = host.client(msg | {"begin": here.params}, state.get("host", {}), data, turn)
        kept = here.memory | inner(out.state)
        if "own" in kept:
            kept["own"] = (out.upload.mean | out.upload.each)[entry]
        return out._replace(state=kept, notes=out.notes | here.notes)

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        if tested:
            msg = msg | {"begin": begin(msg, state, data, turn, False).params}
        model: Params = host.personal(msg, state.get("host", {}), data, turn)
        return model

    general = None
    if host.general is not None:
        shared = host.general
        general = lambda msg, state: shared(msg, state.get("host", {}))
    elif tested and rest is None:  # the host's personal model was the global one
        general = lambda msg, state: msg[entry]
    finetune, tune = None, host.finetune
    if tune is not None:
        finetune = lambda msg, state, *more: tune(msg, state.get("host", {}), *more)
    return host._replace(
        start=start, client=client, personal=personal, general=general, finetune=finetune
    )


def with_finetuning(
    host: Method, task: Task, recipe: Recipe, epochs: int, loss: Loss | None = None
) -> Method:
    """A method whose local training begins with the received model after some fine-tuning.

    Args:
      host: a method whose clients download one model.
      task: the network.
      recipe: how to fine-tune.
      epochs: for how long; with 0 this is the host.
      loss: instead of the task's; it is `given` the received model as its `anchor`.

    Example:
      >>> from fedtailor.methods import fedavg
      >>> from fedtailor.methods.check import toy_task
      >>> task = toy_task()
      >>> method = with_finetuning(fedavg(task), task, Recipe(lr=0.01), epochs=3)
    """
    if epochs == 0:
        return host
    how = replace(recipe, epochs=epochs, steps=0)

    def adapt(received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Start:
        given = {"anchor": received}
        whole = fit(task, rest | received, data, turn, how, loss=loss, given=given)
        return Start({k: whole[k] for k in received}, {}, {})

    return with_start(host, lambda received, initial: {}, adapt)
