"""A client's turn, played in one place: engines map it over clients, a site plays its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.their_code import line_of
from fedtailor.core.ledger import Ledger, charged
from fedtailor.core.method import Method, Model, Outcome, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend, fit, trained_names
from fedtailor.core.tree import Params, Tree


class ClientTurn(NamedTuple):
    """One client's turn, from the message that it received on. Playing it changes nothing here.

    Attributes:
      method: what is played.
      initial: common initial parameters.
      message: what the client received.
      data: its rows.
      turn: as `send` saw it.
      kept: its state after its last turn; None if it was never met.
      fresh: whether it was never met, where clients that share a call differ in that.
      secret: makes the client's random numbers its own secret.
    """

    method: Method
    initial: Params
    message: Tree
    data: Data
    turn: Turn
    kept: Tree | None = None
    fresh: Tensor | None = None
    secret: bytes = b""

    def state(self) -> Tree:
        """The state that the turn begins with: what was kept, or at first contact `start`'s."""
        if self.kept is not None and (self.fresh is None or not tree.leaves(self.kept)):
            return self.kept
        made = first_state(self.method, self.message, self.initial, self.turn)
        if self.kept is None or self.fresh is None:
            return made
        return tree.where(self.fresh, made, self.kept)

    def _own(self) -> tuple[Turn, Ledger]:
        """The client's part of the turn, with a new ledger."""
        ledger = Ledger(secret=self.secret)
        number = int.from_bytes(self.secret[:8]) >> 1 if self.secret else None  # has 63 bits
        return self.turn.at_client(number)._replace(ledger=ledger), ledger

    def _given(self, state: Tree) -> tuple[Tree, Tree]:
        """Message and state in dicts that the method may change."""
        return tree.in_new_dicts(self.message), tree.in_new_dicts(state)

    def play(self) -> tuple[Outcome, Tensor]:
        """What the turn ends with, and what noisy gradients it took (a row of `Spent`)."""
        own, ledger = self._own()
        before = self.state()
        with autograd_is_off("client"):
            outcome = self.method.client(*self._given(before), self.data, own)
        _demand_sound(outcome, before)
        return outcome, charged(ledger.entries, self.data.n)

    def personal(
        self, task: Task | None = None, recipe: Recipe | None = None
    ) -> tuple[Model, Tensor]:
        """The model that the client would use now, and what noisy gradients making it took.

        Args:
          task: the network and its loss, where there is a `recipe`.
          recipe: trains the model further, see `finetuned`.
        """
        own, ledger = self._own()
        before, after = own.split()
        state = self.state()
        with autograd_is_off("personal"):
            model = self.method.personal(*self._given(state), self.data, before)
        demand_tensors("personal", "model", model)
        if task is not None and recipe is not None:
            given = self._given(state)
            model = finetuned(self.method, task, *given, model, self.data, after, recipe)
        return model, charged(ledger.entries, self.data.n)

    def general(self) -> Model:
        """The global model as the client has it, where the method has one."""
        assert self.method.general is not None
        model = self.method.general(*self._given(self.state()))
        demand_tensors("general", "model", model)
        return model

    def admitted(self, upload: Upload) -> Upload:
        """What the server takes in of the client's upload."""
        admitted: Any = self.method.admit(self.message, upload)
        if not isinstance(admitted, Upload):
            told = type(admitted).__name__
            raise BadInput(f"admit returns {told}: return the Upload that the server takes in")
        for values in (admitted.mean, admitted.each):
            demand_tensors("admit", "upload", values)
        return admitted


@contextmanager
def autograd_is_off(function: str) -> Iterator[None]:
    """Says what to do instead where a method's function asks autograd for a gradient."""
    try:
        yield
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise BadInput(
            f"{function} asks autograd for a gradient, which is off while a method is played: "
            "train with fit, or use torch.func.grad, or put torch.enable_grad() around your own "
            "training"
        ) from error


def first_state(method: Method, message: Tree, initial: Params, turn: Turn) -> Tree:
    """A client's state at first contact.

    Raises:
      BadInput: it, or the message, is no tree of tensors.
    """
    demand_tensors("send", "message", message)
    made = method.start(tree.in_new_dicts(message), tree.in_new_dicts(initial), turn.at_start())
    demand_tensors("start", "state", made)
    return made


def received(method: Method, server: Tree, ids: Tensor, upload: Upload, turn: Turn) -> Tree:
    """The server's state after it took in what a cohort uploaded.

    Raises:
      BadInput: it is no tree of tensors, its common parameters have changed their form (others
        would be broadcast to theirs in silence), or it asks for what no client sent.
    """
    sent = (*upload.mean, *upload.each)
    try:
        with autograd_is_off("receive"):
            after = method.receive(server, ids, upload, turn)
    except KeyError as error:
        name = error.args[0] if error.args else ""
        stranger = line_of(error)  # then that line says more
        if stranger or not isinstance(name, str) or " " in name or name in sent:
            raise
        raise BadInput(
            f"receive asks for '{name}', but clients upload {', '.join(sent) or 'nothing'}: let "
            "client's Upload have the names that receive asks for"
        ) from error
    demand_tensors("receive", "server state", after)
    if (name := method.common) in server:
        was, now = ({name: one[name]} if name in one else {} for one in (server, after))
        what = "receive's server state"
        demand_same_form(what, "round", was, now, "parameters keep", "init gave them")
    return after


def _demand_sound(outcome: Any, before: Tree) -> None:
    """Refuses what no engine can keep, send or average: only forms are looked at, no numbers.

    Raises:
      BadInput: what of it, and what it should be.
    """
    if not isinstance(outcome, Outcome):
        told = type(outcome).__name__
        raise BadInput(f"client returns {told}: return Outcome(state, upload, model)")
    state: Any = outcome.state
    upload: Any = outcome.upload
    if not isinstance(upload, Upload):
        told = type(upload).__name__
        raise BadInput(f"client's upload is of type {told}: make it Upload(mean, weight, each)")
    for name, values in (
        ("state", state),
        ("upload", upload.mean),
        ("upload", upload.each),
        ("model", outcome.model),
    ):
        demand_tensors("client", name, values)
    if not isinstance(upload.weight, int | float | Tensor | dict):
        told = f"is of type {type(upload.weight).__name__}"
        raise BadInput(f"client's upload: its weight {told}: give one number, as by_size does")
    if (shape := tuple(getattr(upload.weight, "shape", ()))) or isinstance(upload.weight, dict):
        told = f"has shape {shape}" if shape else "is a dict"
        raise BadInput(f"client's upload: its weight {told}: give one number, as by_size does")
    demand_same_form("client's state", "turn", before, state, "a state keeps", "start gave it")


def demand_same_form(
    what: str, when: str, before: Tree, after: Tree, keeps: str, origin: str
) -> None:
    """Refuses a tree that has other names, shapes or types than it had.

    Example:
      >>> import torch
      >>> was, now = {"w": torch.zeros(2)}, {"w": torch.zeros(3)}
      >>> demand_same_form("client's state", "turn", was, now, "a state keeps", "start gave it")
      Traceback (most recent call last):
          ...
      fedtailor.core.errors.BadInput: client's state: 'w' is float32 of shape (2,) before a turn \
and float32 of shape (3,) after: a state keeps the shapes and types that start gave it
    """
    was, now = tree.flatten(before), tree.flatten(after)
    if was.keys() != now.keys():
        name = min(was.keys() ^ now.keys())
        told = "has" if name in now else "lacks"
        raise BadInput(
            f"{what} {told} '{name}' after a {when}, other than before: {keeps} the names that "
            f"{origin}"
        )
    for name, leaf in now.items():
        if leaf.shape != was[name].shape or leaf.dtype != was[name].dtype:
            raise BadInput(
                f"{what}: '{name}' is {_form(was[name])} before a {when} and {_form(leaf)} "
                f"after: {keeps} the shapes and types that {origin}"
            )


def demand_tensors(function: str, what: str, values: Any) -> None:
    """Refuses what a method's function returns if it is no tree of tensors.

    Example:
      >>> demand_tensors("send", "message", None)
      Traceback (most recent call last):
          ...
      fedtailor.core.errors.BadInput: send's message is of type NoneType: make it a dict of tensors
    """
    if not isinstance(values, dict):
        told = type(values).__name__
        raise BadInput(f"{function}'s {what} is of type {told}: make it a dict of tensors")
    leaves: dict[str, Any] = dict(tree.flatten(values))
    for name, leaf in leaves.items():
        if not isinstance(leaf, Tensor):
            raise BadInput(
                f"{function}'s {what}: '{name}' is of type {type(leaf).__name__}: make it a tensor "
                "(torch.full((), value)), so that it can be mapped, kept and sent"
            )


def _form(leaf: Tensor) -> str:
    return f"{leaf.dtype} of shape {tuple(leaf.shape)}".removeprefix("torch.")


def is_network(task: Task, model: Model) -> bool:
    """Whether a model is the network's parameters and nothing else."""
    plain = all(isinstance(leaf, Tensor) for leaf in model.values())
    return plain and model.keys() == {name for block in task.blocks for name in block}


def predict_general(method: Method, task: Task) -> Callable[[Model, Tensor], Tensor]:
    """(global model, x) -> outputs.

    A global model may be the network's parameters where personal ones are more: then the network
    itself predicts.
    """
    if method.general_predict is not None:
        return method.general_predict
    if method.predict is task.predict:
        return task.predict
    return lambda model, x: (task if is_network(task, model) else method).predict(model, x)


def finetuned(
    method: Method,
    task: Task,
    message: Tree,
    state: Tree,
    model: Model,
    data: Data,
    turn: Turn,
    recipe: Recipe,
) -> Model:
    """A client's model after more training on its own rows.

    A method may have a way of its own (`Method.finetune`). Else a network's parameters are trained
    as ever, and a model that is more, a tree of a method's own, by `finetuned_entries`.
    """
    if method.finetune is not None:
        return method.finetune(message, state, model, data, turn, recipe)
    if is_network(task, model):
        return fit(task, model, data, turn, recipe)
    return finetuned_entries(method.predict, task, model, data, turn, recipe)


def finetuned_entries(
    predict: Callable[[Model, Tensor], Tensor],
    task: Task,
    model: Model,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    entries: Sequence[str] = (),
) -> Model:
    """A model that is a tree, after training it through what it predicts.

    All its numbers but running statistics are trained, in evaluation mode, with the task's loss.

    Args:
      predict: (model, x) -> outputs.
      task: the network and its loss.
      model: where to begin.
      data: the client's rows.
      turn: round and random key.
      recipe: how long and how fast.
      entries: names of the tree; where there are any, all else stays as it is.
    """
    flat = tree.flatten(model)
    chosen = tree.flatten(tree.pick(model, entries)) if entries else flat
    moving = {
        k: v
        for k, v in chosen.items()
        if v.is_floating_point() and trained_names(task, {k.rpartition("/")[2]: v})
    }
    rest = tree.drop(flat, moving)

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        whole = tree.flatten(theta) | tree.flatten(given)
        said = predict(tree.unflatten({k: whole[k] for k in flat}), batch.x)
        return weighted_mean(task.losses(said, batch.y, batch.weight), batch), {}

    done = descend(
        objective,
        tree.unflatten(moving),
        data,
        turn,
        recipe,
        given=tree.unflatten(rest),
        task=task,
        augment=task.augment,
    )
    whole = tree.flatten(done.theta) | rest
    return tree.unflatten({k: whole[k] for k in flat})
