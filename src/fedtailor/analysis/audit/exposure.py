"""One client's upload as the server sees it, and the client's turn played again on made-up rows.

The attacker is the server: it knows the method, what it sent, the recipe, how many rows there are
and in which order they were taken. It does not know the rows, noise, or what the client keeps. It
plays the method's own client on rows that it makes up, and looks for those whose upload is the one
that came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import ClientTurn

NOISE_ROWS = 64  # on so many made-up rows it is seen what a model says of nothing


@dataclass(frozen=True, eq=False)
class Exposure:
    """What the server has of one client's turn. Numbers are exact (float64) where that is possible.

    Args:
      method: as the attacker plays it: the client's, without noise.
      task: its network.
      initial: common initial parameters.
      message: what the client was sent.
      turn: round and batch order.
      state: what the client kept before, as far as the attacker knows or guesses.
      seen: what came of it, see `update_of`.
      bases: what that moved away from, see `bases_of`.
      recipe: how the client trains.
      rows: how many rows it trained on.
      held: validation rows and labels: granted, where the method looks at them.
    """

    method: Method
    task: Task
    initial: Params
    message: Tree
    turn: Turn
    state: Tree | None
    seen: Params
    bases: Params
    recipe: Recipe
    rows: int
    held: tuple[Tensor, Tensor] | None = None

    def imitate(self, x: Tensor, y: Tensor) -> Params:
        """What the server would see if these were the rows; follows slopes back to them."""
        found, _ = played(
            self.method, self.initial, self.message, self.turn, self.state, x, y, self.held
        )
        return update_of(found, self.bases, self.scale)

    @property
    def scale(self) -> float:
        """Makes an update the gradient, where it is a single step's."""
        return scale_of(self.recipe, self.turn, self.rows)

    @property
    def dtype(self) -> torch.dtype:
        """In which numbers the attack computes."""
        return next(leaf.dtype for leaf in self.seen.values())

    def known_model(self) -> Params:
        """The network as far as the attacker knows it, from all that was sent and guessed."""
        model = dict(self.initial)
        for part in (self.message, self.state or {}):
            for name, leaf in tree.flatten(part).items():
                last = name.rpartition("/")[2]
                if last in model and model[last].shape == leaf.shape:
                    model[last] = leaf
        return model

    def of(self, parameter: str) -> Tensor | None:
        """What was seen of one of the network's parameters; None if it did not travel."""
        found = [leaf for name, leaf in self.seen.items() if name.rpartition("/")[2] == parameter]
        return found[0] if found else None


def scale_of(recipe: Recipe, turn: Turn, rows: int) -> float:
    """1/η after one step of plain SGD, which was −η times the gradient; else 1."""
    one = recipe.optimizer == "sgd" and recipe.count(rows) == 1
    rate = float(recipe.rate(turn))
    return 1 / rate if one and rate > 0 else 1.0


def played(
    method: Method,
    initial: Params,
    message: Tree,
    turn: Turn,
    state: Tree | None,
    x: Tensor,
    y: Tensor,
    held: tuple[Tensor, Tensor] | None = None,
) -> tuple[Upload, Tensor]:
    """What a client with these rows (and validation rows `held`) sends, and its noisy gradients."""
    count = 0
    if held is not None:
        count = len(held[1])
        x, y = torch.cat([x, held[0].to(x)]), torch.cat([y, held[1]])
    data = Data.of(x, y, val=count)
    outcome, noisy = ClientTurn(method, initial, message, data, turn, state).play()
    return outcome.upload, noisy


def numbers_of(upload: Upload) -> Params:
    """All numbers of an upload by name."""
    flat = tree.flatten({"mean": upload.mean, "each": upload.each})
    return {k: v for k, v in flat.items() if not k.endswith("/") and v.is_floating_point()}


def bases_of(message: Tree, initial: Params, upload: Upload) -> Params:
    """What the entries of an upload moved away from, by name.

    That is what the message has under the same name, or else under the only one that ends in the
    same parameter, or else the common beginning. An entry that is longer than its way from there is
    a model that moved; any other is an update already, and has no base.

    Example:
      >>> sent = {"params": {"w": torch.tensor([2.0])}}
      >>> bases_of(sent, {}, Upload({"params": {"w": torch.tensor([1.5])}}))
      {'mean/params/w': tensor([2.])}
      >>> bases_of(sent, {}, Upload({"delta": {"w": torch.tensor([-0.5])}}))
      {}
    """
    sent, found, seen = tree.flatten(message), dict[str, Tensor](), numbers_of(upload)
    for name, leaf in seen.items():
        last = name.rpartition("/")[2]
        alike = [v for k, v in sent.items() if k.rpartition("/")[2] == last]
        places = [sent.get(name.partition("/")[2]), *alike[: len(alike) == 1], initial.get(last)]
        there = [p for p in places if p is not None and p.shape == leaf.shape]
        found |= {name: there[0]} if there else {}
    for entry in {name.rpartition("/")[0] for name in found}:
        names = [name for name in found if name.rpartition("/")[0] == entry]
        way = sum(float((seen[k] - found[k]).square().sum()) for k in names)
        if way > sum(float(seen[k].square().sum()) for k in names):
            found = tree.drop(found, names)
    return found


def update_of(upload: Upload, bases: Params, scale: float = 1.0) -> Params:
    """The numbers of an upload as updates: (base − upload) · scale, or as they came.

    Example:
      >>> sent = Upload({"params": {"w": torch.tensor([1.5])}})
      >>> update_of(sent, {"mean/params/w": torch.tensor([2.0])}, scale=10.0)
      {'mean/params/w': tensor([5.])}
    """
    flat = numbers_of(upload)
    return {k: (bases[k] - v if k in bases else v) * scale for k, v in flat.items()}


def in_double(values: Tree) -> Tree:
    """The same numbers in float64."""
    return tree.map(lambda v: v.double() if v.is_floating_point() else v, values)


def attacked(exposure: Exposure, *, guess: Callable[[], Params] | None = None) -> Exposure:
    """An exposure as the attack takes it: in float64, with the client's state known or guessed.

    Frozen parameters forbid float64.

    Args:
      exposure: with the client's own state.
      guess: makes initial parameters: the client's state is what it would begin with then.
    """
    if guess is not None:
        first = exposure.method.start(exposure.message, guess(), exposure.turn.at_start())
        exposure = replace(exposure, state=first)
    if exposure.task.constants:
        return exposure
    return replace(
        exposure,
        initial=in_double(exposure.initial),
        message=in_double(exposure.message),
        state=None if exposure.state is None else in_double(exposure.state),
        seen=in_double(exposure.seen),
        bases=in_double(exposure.bases),
    )


def guessed_labels(exposure: Exposure, classes: int, shape: tuple[int, ...]) -> Tensor | None:
    """Labels by the head's update; None where it does not tell.

    The bias of class c has the gradient (mean of p_c) − n_c/B. So n_c is about B (p_c − g_c), with
    p_c from what the network says of noise. Without a bias, the weights of the one row's class have
    the one negative sum (features ≥ 0).

    Args:
      exposure: with a step or more.
      classes: how many there are.
      shape: of an example.
    """
    seen = {name: exposure.of(name) for name in exposure.task.head}
    steps = 1 if exposure.scale != 1 else max(exposure.recipe.count(exposure.rows), 1)
    rate = 1.0 if exposure.scale != 1 else float(exposure.recipe.rate(exposure.turn)) or 1.0
    biases = [g for g in seen.values() if g is not None and g.shape == (classes,)]
    if biases:
        key = rng.key(0, device=biases[0].device)
        noise = rng.uniform(key, NOISE_ROWS, *shape, dtype=exposure.dtype) * 2 - 1
        with torch.no_grad():
            said = exposure.task.predict(exposure.known_model(), noise).softmax(-1).mean(0)
        left = exposure.rows * (said - biases[0] / (rate * steps))
        if not left.isfinite().all():  # a model that diverged says nothing of noise
            return None
        found = []
        for _ in range(exposure.rows):
            found.append(int(left.argmax()))
            left[found[-1]] -= 1
        return torch.tensor(sorted(found), device=left.device)
    weights = [g for g in seen.values() if g is not None and g.ndim == 2 and len(g) == classes]
    if weights and exposure.rows == 1 and weights[0].isfinite().all():
        return weights[0].sum(1).argmin()[None]
    return None
