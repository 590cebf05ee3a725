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
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.ledger import Entry, Ledger
from fedtailor.core.network.augmentation import Augment
from fedtailor.core.objectives import Gradient, Loss, Objective, as_is, exact_gradient
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scoring import upper_layers
from fedtailor.core.steps.optim import Optimizer, adam, adamw, clip_norm, sgd
from fedtailor.core.steps.privacy import padded, private_gradient
from fedtailor.core.steps.scan import Notes, Step, StepRows, Steps, join_steps, scan
from fedtailor.core.steps.schedules import Schedule, factor, parse_schedule
from fedtailor.core.task import Batch, Sample, Task
from fedtailor.core.tree import Params, Tree


class RunRate(float):
    """The learning rate that a run was given, and not one that a method has of its own.

    Where clients of runs with several rates share a call, each has its run's in place of this one
    (`Turn.lr`). What is computed from it is an ordinary number again.
    """


@dataclass(frozen=True)
class Recipe:
    """How a client trains in one round. Optimiser state is made anew each round.

    Example:
      >>> recipe = Recipe(epochs=5, batch=10, lr=0.1, schedule="warmup:5+cosine")
      >>> recipe.count(rows=34)  # steps that a client with 34 rows takes
      20

    Attributes:
      epochs: passes over the client's training rows.
      steps: if not 0, this many batches drawn at random instead of whole passes.
      batch: examples per step; 0 takes all of a client's rows at once.
      lr: learning rate.
      optimizer: `sgd`, `adam` or `adamw`.
      momentum: of SGD.
      weight_decay: added to the gradient (SGD, Adam) or applied directly (AdamW).
      decay_biases: whether biases decay, too: `yes` or `no`.
      lr_decay: factor on the learning rate, per round.
      lr_floor: the decayed learning rate does not fall below this.
      schedule: instead of `lr_decay`: how the learning rate changes from round to round, by name
        (see `parse_schedule`) or as a function (round, rounds) -> factor.
      clip: largest norm of a gradient; 0 for no limit.
      last: what becomes of a short last batch: `pad`, `wrap` or `drop`.
      dp_clip: DP-SGD: largest norm of one example's gradient; 0 switches DP-SGD off.
      dp_noise: DP-SGD: standard deviation of the noise, in units of `dp_clip`. With noise every
        batch is a Poisson sample of `batch` rows on average; a pass has as many as without.
    """

    epochs: int = 1
    steps: int = 0
    batch: int = 10
    lr: float = 0.05
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: Literal["yes", "no"] = "yes"
    lr_decay: float = 1.0
    lr_floor: float = 0.0
    clip: float = 0.0
    last: Literal["pad", "wrap", "drop"] = "pad"
    dp_clip: float = 0.0
    dp_noise: float = 0.0
    schedule: str | Schedule = "constant"

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            parse_schedule(self.schedule)
        if self.schedule != "constant" and (self.lr_decay != 1 or self.lr_floor):
            raise BadInput("schedule and lr_decay or lr_floor: give one of them (decay:0.99)")

    @property
    def private(self) -> bool:
        """Whether gradients have noise: without, clipping promises nothing."""
        return self.dp_clip > 0 and self.dp_noise > 0

    def rate(self, turn: Turn) -> float | Tensor:
        """The learning rate in this round."""
        own = turn.lr is not None and isinstance(self.lr, RunRate)
        lr: float | Tensor = turn.lr if own else self.lr  # type: ignore[assignment]
        if self.schedule != "constant":
            return lr * factor(self.schedule, turn.round, turn.rounds)
        if self.lr_decay == 1:
            return lr
        return (lr * self.lr_decay**turn.round).clamp(min=self.lr_floor)

    def make_optimizer(self, lr: float | Tensor) -> Optimizer:
        """The optimiser with a learning rate, see `rate`."""
        biases = self.decay_biases == "yes"
        if self.optimizer == "sgd":
            return sgd(lr, self.momentum, self.weight_decay, decay_biases=biases)
        made = {"adam": adam, "adamw": adamw}[self.optimizer]
        return made(lr, self.weight_decay, decay_biases=biases)

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
            return self._sampled(data, data.draws(self.batch, keys))
        epochs, two = (torch.arange(n, device=key.device) for n in (self.epochs, 2))
        keys = rng.fold(rng.fold(key, epochs)[:, None], two)  # all at once: hashes are many calls
        passes = [
            data.shuffle(order).steps(self.batch, each, self.last)
            for order, each in (of_epoch.unbind() for of_epoch in keys.unbind())
        ]
        return self._sampled(data, join_steps(passes))

    def _sampled(self, data: Data, steps: Steps) -> Steps:
        """With noise, the same number of batches as Poisson samples, as the accountant has it."""
        return data.sampled(steps, self.batch, padded(self.batch)) if self.private else steps


class Descent(NamedTuple):
    """What `descend` ends with."""

    theta: Tree  # what was trained
    carried: Tree  # what was carried along, with its changes
    loss: Tensor  # of the client's last batch, before that batch's step; has no noise
    memory: Tree  # of the optimiser


def descend(
    objective: Objective,
    theta: Tree,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    *,
    given: Tree | None = None,
    carried: Tree | None = None,
    memory: Tree | None = None,
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
      memory: of the optimiser, from an earlier `Descent`; None begins anew.
      gradient: makes the direction of a step from the gradient, e.g. `sam(0.05)`.
      project: applied to each trained leaf after each step.
      task: the network behind the objective, to see that the recipe fits it.
      augment: applied to each batch.

    Example:
      >>> data = Data.of(torch.tensor([1.0, 3.0]), torch.tensor([0, 0]))
      >>> def squared(theta, batch, given, carried):
      ...     return ((theta["w"] - batch.x) ** 2 * batch.weight).sum() / 2, {}
      >>> turn = Turn(rng.key(0), round=torch.tensor(0), rounds=torch.tensor(1))
      >>> descend(squared, {"w": torch.tensor(0.0)}, data, turn, Recipe(batch=0, lr=0.5)).theta
      {'w': tensor(2.)}
    """
    if task is not None and task.batch_norm and recipe.batch == 0:
        # rows are repeated up to the longest client's, and would count in the statistics
        raise BadInput("batch is 0, but BatchNorm needs batches of a fixed size: give --batch")
    if recipe.dp_clip and recipe.last == "wrap":
        raise BadInput("last is 'wrap', but DP-SGD counts no example twice: use pad or drop")
    ledger, key, rate = turn.ledger or Ledger(), turn.key, recipe.rate(turn)
    if recipe.private:
        # a client may train several times in a turn: each time with new noise, and on batches drawn
        # anew, since the accountant counts on that
        key = rng.fold(key, 1000 + ledger.descents)
    ledger.descents += 1
    steps = recipe.plan(data, key)
    step = _step(objective, recipe, gradient, project, augment, ledger.secret, ledger.blind)
    begun = {
        "theta": theta,
        "memory": recipe.make_optimizer(rate).init(theta) if memory is None else memory,
        "carried": carried or {},
        "loss": _zero(theta, turn),
    }
    kept = {"given": given or {}} | ({"rate": rate} if isinstance(rate, Tensor) else {})
    rows = data.n.clamp(min=1)
    if recipe.private:
        expected = rows.clamp(max=recipe.batch) if recipe.batch else rows
        kept["expected"] = expected.to(steps.weight.dtype)
    # noise for every parameter is so much code that compilers take minutes
    compiles = not recipe.dp_clip
    done, notes = scan(step, begun, kept, steps, (data.x, data.y), compiles=compiles)
    if recipe.dp_clip:
        # of the rows that are there: a method may train on some of them only
        share = ((recipe.batch or rows) / rows.double()).clamp(max=1)
        ledger.entries.append(Entry(steps.active.sum(), notes.get("gradients", 0), share))
    return Descent(done["theta"], done["carried"], done["loss"], done["memory"])


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
    secret: bytes = b"",
    blind: bool = False,
) -> Step:
    """One step of `descend` for one client, from constants alone."""
    exact = exact_gradient(objective)

    def step(carry: Tree, kept: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes) -> Tree:
        taken: list[tuple[int, ...]] = []  # on which part of the batch each gradient was taken

        def measured(
            theta: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tree, Tensor, Tree]:
            slope = exact
            if recipe.dp_clip:
                slope = private_gradient(
                    objective, recipe.dp_clip, recipe.dp_noise, len(taken), secret
                )
            taken.append(batch.position)
            found = slope(theta, batch, given, carried)
            if blind and recipe.private:
                blank = batch._replace(x=torch.zeros_like(batch.x), y=torch.zeros_like(batch.y))
                return slope(theta, blank, given, carried)[0], *found[1:]
            return found

        x, y = (rows[now.rows] for rows in store)
        if augment:
            # its own key: the batch's also serves dropout and noise
            x = augment(x, rng.fold(now.key, -2))
        batch = Batch(x, y, now.weight, now.active, now.key)
        if recipe.private:
            lot = rng.bits(rng.fold(now.key, -4), len(now.rows))
            batch = batch._replace(sample=Sample(kept["expected"], lot))
        theta, carried = carry["theta"], carry["carried"]
        grads, loss, changed = gradient(measured)(theta, batch, kept["given"], carried)
        # an example is in one of several equal parts, but may be in parts of different sizes
        alike = len({position[1:] for position in taken}) == 1
        shared = Counter(taken if alike else [()] * len(taken))
        notes["gradients"] = max(shared.values(), default=0)
        optimiser = recipe.make_optimizer(kept.get("rate", recipe.lr))
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

    Example:
      >>> from torch import nn
      >>> from fedtailor.core.task import classification
      >>> task = classification(lambda: nn.Linear(2, 3))
      >>> data = Data.of(torch.rand(20, 2), torch.arange(20) % 3)
      >>> turn = Turn(rng.key(0), round=torch.tensor(0), rounds=torch.tensor(1))
      >>> sorted(fit(task, task.init(rng.key(0)), data, turn, Recipe(epochs=2), train=task.head))
      ['bias', 'weight']
    """
    how: dict[str, Any] = {"loss": loss, "given": given, "gradient": gradient, "train": train}
    return fit_on(task, params, None, data, turn, recipe, **how)[0]


def trained_names(task: Task, params: Params, train: Sequence[str] | None = None) -> list[str]:
    """The names that `fit` trains: of all, or of `train`, those that are no buffers."""
    return [k for k in (params if train is None else train) if k not in task.buffers]


def fit_on(
    task: Task,
    params: Params,
    memory: Tree | None,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    *,
    loss: Loss | None = None,
    given: Tree | None = None,
    gradient: Gradient = as_is,
    train: Sequence[str] | None = None,
) -> tuple[Params, Tree]:
    """As `fit`, with an optimiser that goes on from its `memory` of the client's last turn.

    Returns:
      Parameters and memory after training.
    """
    names = trained_names(task, params, train)
    if not names:
        return params, memory or {}
    upper = None
    again = recipe.epochs > 1 and not recipe.steps
    if again and loss is None and task.augment is None and not recipe.dp_clip:
        # what lies below them says the same of a row in every epoch
        upper = upper_layers(task, params, names, data)
    buffers = [k for k in task.buffers if k in params]
    fixed = {k: v for k, v in params.items() if k not in names and k not in buffers}

    def whole(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        model = given["fixed"] | carried | theta
        return loss(model, batch, given) if loss else task.loss(model, batch)

    done = descend(
        upper.objective if upper else whole,
        tree.pick(params, names),
        upper.data if upper else data,
        turn,
        recipe,
        given=(given or {}) | (upper.given if upper else {"fixed": fixed}),
        carried=tree.pick(params, buffers),
        memory=memory,
        gradient=gradient,
        task=task,
        augment=task.augment,
    )
    # in the order of `params`, so that a state keeps its layout
    return {k: (params | done.carried | done.theta)[k] for k in params}, done.memory
