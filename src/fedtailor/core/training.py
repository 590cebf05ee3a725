"""What a client does with its data: the steps that every method is made of.

Speed is made in one place, `scan`, on which `descend` and `score` stand. They take every tensor as
an argument (`given`), and hooks close over constants only. So a client's steps can be mapped,
compiled and captured without any method knowing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad_and_value

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.optim import Optimizer, adam, adamw, clip_norm, sgd
from fedtailor.core.privacy import LEDGER, Account, Entry, private
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scan import Moment, Notes, Step, Steps, after_another, scan
from fedtailor.core.task import Augment, Batch, Task
from fedtailor.core.tree import Params, Tree

# (what is trained, batch, given, what is carried along) -> (loss, changed entries of the carried)
Objective = Callable[[Tree, Batch, Tree, Tree], tuple[Tensor, Tree]]
# the same arguments -> (gradient, loss, changed entries of the carried)
Slope = Callable[[Tree, Batch, Tree, Tree], tuple[Tree, Tensor, Tree]]
# how the direction of a step comes from the gradient
Gradient = Callable[[Slope], Slope]
# (params, batch, given) -> (loss, buffers)
Loss = Callable[[Params, Batch, Tree], tuple[Tensor, Params]]


@dataclass(frozen=True)
class Recipe:
    """How a client trains in one round. Optimiser state is made anew each round.

    Attributes:
      epochs: passes over the client's training rows.
      steps: if not 0, this many batches drawn at random instead of whole passes.
      batch: examples per step; 0 takes all of a client's rows at once.
      lr: learning rate.
      optimizer: `sgd`, `adam` or `adamw`.
      momentum: of SGD.
      weight_decay: added to the gradient (SGD, Adam) or applied directly (AdamW).
      lr_decay: factor on the learning rate, per round.
      lr_floor: the decayed learning rate does not fall below this.
      clip: largest norm of a gradient; 0 for no limit.
      last: what becomes of a short last batch: `pad`, `wrap` or `drop`.
      dp_clip: DP-SGD: largest norm of one example's gradient; 0 switches DP-SGD off.
      dp_noise: DP-SGD: standard deviation of the noise, in units of `dp_clip`.
    """

    epochs: int = 1
    steps: int = 0
    batch: int = 10
    lr: float = 0.05
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    lr_floor: float = 0.0
    clip: float = 0.0
    last: Literal["pad", "wrap", "drop"] = "pad"
    dp_clip: float = 0.0
    dp_noise: float = 0.0

    def rate(self, turn: Turn) -> float | Tensor:
        """The learning rate in this round."""
        if self.lr_decay == 1:
            return self.lr
        return (self.lr * self.lr_decay**turn.round).clamp(min=self.lr_floor)

    def optimiser(self, lr: float | Tensor) -> Optimizer:
        """The optimiser with a learning rate, see `rate`."""
        if self.optimizer == "sgd":
            return sgd(lr, self.momentum, self.weight_decay)
        return {"adam": adam, "adamw": adamw}[self.optimizer](lr, self.weight_decay)

    def count(self, rows: int) -> int:
        """How many steps a client with so many rows takes in a round."""
        if self.steps or not rows:
            return self.steps if rows else 0
        size = self.batch or rows
        return self.epochs * (rows // size if self.last == "drop" else -(-rows // size))

    def plan(self, data: Data, key: Key) -> Steps:
        """The batches of a round."""
        if self.steps:
            keys = rng.fold(key, torch.arange(self.steps, device=key.device))
            return data.draws(self.batch, keys)
        passes = []
        for epoch in range(self.epochs):
            order, each = rng.split(rng.fold(key, epoch))
            passes.append(data.shuffle(order).steps(self.batch, each, self.last))
        return after_another(passes)


def plain(objective: Objective) -> Slope:
    """The gradient itself."""
    at = grad_and_value(objective, has_aux=True)

    def slope(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
        gradient, (loss, changed) = at(theta, batch, given, carried)
        return gradient, loss, changed

    return slope


def as_is(slope: Slope) -> Slope:
    """Descent along the gradient."""
    return slope


def sam(rho: float) -> Gradient:
    """The gradient at the worst point in a ball of radius `rho` (Foret et al., 2021).

    Running statistics come from the first of the two passes only.
    """

    def gradient(at: Slope) -> Slope:
        def slope(
            theta: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            up, loss, changed = at(theta, batch, given, carried)
            worst = tree.add(theta, tree.scale(up, rho / (tree.sq_norm(up).sqrt() + 1e-12)))
            return at(worst, batch.again(), given, carried)[0], loss, changed

        return slope

    return gradient


def prox(task: Task, mu: float) -> Loss:
    """The task's loss plus `mu/2 |params - given["anchor"]|²`, over what is trained."""

    def near(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        value, buffers = task.loss(params, batch)
        anchor = tree.drop(given["anchor"], task.buffers)
        apart = tree.sub(tree.pick(params, anchor), anchor)
        return value + mu / 2 * tree.sq_norm(apart), buffers

    return near


class Descent(NamedTuple):
    """Attributes:
    theta: what was trained, after training.
    carried: what was carried along, with its changes.
    loss: of the client's last batch, before that batch's step.
    """

    theta: Tree
    carried: Tree
    loss: Tensor


def descend(
    objective: Objective,
    theta: Tree,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    *,
    given: Tree | None = None,
    carried: Tree | None = None,
    gradient: Gradient = as_is,
    project: Callable[[Tensor], Tensor] | None = None,
    task: Task | None = None,
    augment: Augment | None = None,
) -> Descent:
    """Trains `theta` on the client's rows for one round of the recipe.

    Args:
      objective: what is made small.
      theta: where to begin.
      data: the client's rows.
      turn: round and random key.
      recipe: how long, how fast, with which optimiser.
      given: tensors that the objective needs and that stay as they are.
      carried: entries that the objective may change as it goes (running statistics).
      gradient: makes the direction of a step from the gradient, e.g. `sam(0.05)`.
      project: applied to each trained leaf after each step.
      task: the network behind the objective, to see that the recipe fits it.
      augment: applied to each batch.
    """
    if task is not None and task.batch_norm and recipe.batch == 0:
        # rows are repeated up to the longest client's, and would count in the statistics
        raise BadInput("batch is 0, but BatchNorm needs batches of a fixed size: give --batch")
    if recipe.dp_clip and recipe.last == "wrap":
        raise BadInput("last is 'wrap', but DP-SGD must not count an example twice: use drop")
    account, key, rate = LEDGER.get() or Account(), turn.key, recipe.rate(turn)
    if recipe.dp_noise:
        # a client may train several times in a turn: each time with new noise, and on batches drawn
        # anew, since the accountant counts on that
        key = rng.fold(key, 1000 + account.descents)
    account.descents += 1
    steps = recipe.plan(data, key)
    step = _step(objective, recipe, gradient, project, augment)
    begun = {
        "theta": theta,
        "memory": recipe.optimiser(rate).init(theta),
        "carried": carried or {},
        "loss": _zero(theta, turn),
    }
    kept = {"given": given or {}} | ({"rate": rate} if isinstance(rate, Tensor) else {})
    # noise for every parameter is so much code that compilers take minutes
    compiles = not recipe.dp_clip
    done, notes = scan(step, begun, kept, steps, (data.x, data.y), compiles=compiles)
    if recipe.dp_clip:
        # all rows at once are never a short batch
        kind = "steps" if recipe.steps or recipe.batch == 0 else recipe.last
        for number in steps.number:
            entry = Entry(number, recipe.batch, kind, notes["gradients"])
            account.entries += [entry] * notes["batches"]
    return Descent(done["theta"], done["carried"], done["loss"])


def _zero(theta: Tree, turn: Turn) -> Tensor:
    some = tree.leaves(theta)
    kind = some[0].dtype if some else None
    return torch.zeros((), dtype=kind, device=turn.key.device)


def _step(
    objective: Objective,
    recipe: Recipe,
    gradient: Gradient,
    project: Callable[[Tensor], Tensor] | None,
    augment: Augment | None,
) -> Step:
    """One step of `descend` for one client, from constants alone."""
    exact = plain(objective)

    def step(
        carry: Tree, kept: Tree, moment: Moment, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        taken: list[Tensor] = []  # the labels of the batch of every gradient, to tell batches apart

        def measured(
            theta: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            slope = exact
            if recipe.dp_clip:
                slope = private(objective, recipe.dp_clip, recipe.dp_noise, len(taken))
            taken.append(batch.y)
            return slope(theta, batch, given, carried)

        x, y = (rows[moment.rows] for rows in store)
        if augment:
            # its own key: the batch's also serves dropout and noise
            x = augment(x, rng.fold(moment.key, -2))
        batch = Batch(x, y, moment.weight, moment.active, moment.key)
        theta, carried = carry["theta"], carry["carried"]
        grads, loss, changed = gradient(measured)(theta, batch, kept["given"], carried)
        shared = Counter(map(id, taken))
        notes["batches"], notes["gradients"] = len(shared), max(shared.values(), default=0)
        optimiser = recipe.optimiser(kept.get("rate", recipe.lr))
        change, memory = optimiser.update(clip_norm(grads, recipe.clip), carry["memory"], theta)
        after = tree.add(theta, change)
        if project:
            after = tree.map(project, after)
        return {"theta": after, "memory": memory, "carried": carried | changed, "loss": loss}

    return step


def fit(
    task: Task,
    params: Params,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    *,
    loss: Loss | None = None,
    given: Tree | None = None,
    gradient: Gradient = as_is,
    train: Sequence[str] | None = None,
) -> Params:
    """The parameters after the client trained them for one round.

    Args:
      task: the network and its loss.
      params: where to begin, buffers included.
      data: the client's rows.
      turn: round and random key.
      recipe: how long and how fast.
      loss: instead of the task's; what it needs beside parameters and batch comes in `given`.
      given: tensors for `loss`.
      gradient: how a step's direction comes from the loss, e.g. `sam(0.05)`.
      train: names that are trained (default: all but buffers); the others stay fixed, but
        running statistics always follow.
    """
    names = [k for k in (params if train is None else train) if k not in task.buffers]
    if not names:
        return params

    def objective(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tensor, Tree]:
        whole = rest | theta
        return loss(whole, batch, given) if loss else task.loss(whole, batch)

    done = descend(
        objective,
        tree.pick(params, names),
        data,
        turn,
        recipe,
        given=given,
        carried=tree.drop(params, names),
        gradient=gradient,
        task=task,
        augment=task.augment,
    )
    # in the order of `params`, so that a state keeps its layout
    return {k: (done.theta if k in done.theta else done.carried)[k] for k in params}


SCORED = 128  # rows of a client at a time


class Score(NamedTuple):
    """Sums over one client's rows: how many were right, and their losses."""

    correct: Tensor
    loss: Tensor


def score(
    predict: Callable[[Any, Tensor], Tensor], model: Any, data: Data, size: int = SCORED
) -> Score:
    """How a model does on the rows of `data` (no augmentation, evaluation mode)."""

    def step(
        carry: Tree, given: Tree, moment: Moment, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        x, y = (rows[moment.rows] for rows in store)
        logits = predict(given["model"], x)
        hit = (logits.argmax(-1) == y).to(moment.weight.dtype)
        each = F.cross_entropy(logits, y, reduction="none")
        return {
            "correct": carry["correct"] + (hit * moment.weight).sum(),
            "loss": carry["loss"] + (each * moment.weight).sum(),
        }

    zero = torch.zeros((), device=data.n.device)
    begun, given = {"correct": zero, "loss": zero}, {"model": model}
    # any key: evaluation draws nothing
    steps = data.steps(min(size, max(len(data.rows), 1)), data.n * 0)
    found, _ = scan(step, begun, given, steps, (data.x, data.y), compiles=False)
    return Score(found["correct"], found["loss"])


def mean_loss(task: Task, params: Params, data: Data) -> Tensor:
    """The mean loss over the rows of `data`, in evaluation mode."""
    return score(task.predict, params, data).loss / data.n.clamp(min=1)
