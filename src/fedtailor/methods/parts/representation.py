"""Body and head of a network, and what a client's classes look like between them.

Features are what the head is given. Of every class a client has their sum, its number of rows and
the sum of squared norms: prototypes (class means), counts and variances all come from these, and
sums of several clients add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.network.features import HeadSplit
from fedtailor.core.objectives import Loss
from fedtailor.core.scoring import SCORED, outputs_on
from fedtailor.core.steps.scan import Notes, StepRows, scan
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.tree import Params, Tree

FAR = -1e9  # a logit of what cannot be: -inf times a weight of 0 would be NaN


def head_split(task: Task, why: str) -> HeadSplit:
    """Body and head of the task's network apart.

    Args:
      task: the network.
      why: what is done with features, for the message.

    Raises:
      BadInput: the head cannot be called alone, or does not make the network's outputs.

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> head_split(toy_task(), "prototypes are class means of features").width
      12
    """
    split = task.split
    cure = "end it with a linear layer, or name where the head begins (head_begins)"
    if split is None:
        raise BadInput(f"{why}, but the network's head is no module of its own: {cure}")
    if task.form is not None and task.features is not None:
        params, x = task.init(rng.key(0)), _some_rows(task)
        whole, parts = task.predict(params, x), split.classify(params, task.features(params, x))
        if whole.shape != parts.shape or not torch.allclose(whole, parts, rtol=1e-4, atol=1e-5):
            raise BadInput(
                f"{why}, but the network does something with what its head gives: {cure}"
            )
    return split


def _some_rows(task: Task) -> Tensor:
    form = task.form
    assert form is not None
    drawn = rng.bits(rng.key(1), 2 * math.prod(form.shape)).view(2, *form.shape)
    if form.kind == "text":
        return (drawn % max(form.vocabulary, 1)).to(task.device)
    if form.kind == "image":
        return (drawn % 256).to(torch.uint8).to(task.device)
    return (drawn % 7 - 3).to(torch.get_default_dtype()).to(task.device)


class ClassSums(NamedTuple):
    """What a client's rows of each class add up to; classes that it lacks have zeros.

    Attributes:
      features: classes x width, sum of the features.
      rows: number of rows of each class.
      squares: sum of the squared norms of the features, per class.
    """

    features: Tensor
    rows: Tensor
    squares: Tensor

    @property
    def means(self) -> Tensor:
        """The mean features of each class: its prototype."""
        return self.features / self.rows.clamp(min=1)[:, None]

    @property
    def seen(self) -> Tensor:
        """1 for each class that there are rows of, else 0."""
        return (self.rows > 0).to(self.features.dtype)


def number_of_classes(task: Task, params: Params | None = None) -> int:
    """How many classes the outputs of a task are for.

    Args:
      task: the network.
      params: all of its parameters, where they are at hand: without, a network is built to see.

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> number_of_classes(toy_task())
      3
    """
    if task.form is not None:
        return task.form.classes
    known = task.init(rng.key(0)) if params is None else params
    return len(known[task.head[-1]])


def weights_by_class(y: Tensor, weight: Tensor, classes: int, kind: torch.dtype) -> Tensor:
    """Rows x classes: each row's weight in the column of its class.

    Example:
      >>> weights_by_class(torch.tensor([1, 0]), torch.tensor([1.0, 0.5]), 2, torch.float32)
      tensor([[0.0000, 1.0000],
              [0.5000, 0.0000]])
    """
    # F.one_hot looks at its labels: a step that is not mapped could then not be traced
    of = (y[:, None] == torch.arange(classes, device=y.device)).to(kind)
    return of * weight[:, None].to(kind)


def class_sums(
    task: Task,
    params: Params,
    data: Data,
    size: int = SCORED,
    look: Callable[[Params, Tensor], Tensor] | None = None,
) -> ClassSums:
    """What the features of all of a client's training rows add up to, class by class.

    In evaluation mode and without augmentation, so that they depend on rows and model alone.

    Args:
      task: a network whose body and head are apart, see `head_split`.
      params: all of its parameters.
      data: the rows.
      size: rows at a time.
      look: (params, x) -> one number per class, to be added up in the place of features.
    """
    classes = number_of_classes(task, params)
    see, width = look, classes
    if look is None:
        assert task.split is not None
        see, width = task.features, task.split.width
    assert see is not None

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        x, y = (rows[now.rows] for rows in store)
        features = see(given["model"], x)
        of = weights_by_class(y, now.weight, classes, features.dtype)
        return {
            "features": carry["features"] + of.mT @ features,
            "rows": carry["rows"] + of.sum(0),
            "squares": carry["squares"] + of.mT @ features.square().sum(-1),
        }

    kind, device = next(iter(params.values())).dtype, data.n.device
    begun = {
        "features": torch.zeros(classes, width, dtype=kind, device=device),
        "rows": torch.zeros(classes, dtype=kind, device=device),
        "squares": torch.zeros(classes, dtype=kind, device=device),
    }
    # any key: evaluation draws nothing
    steps = data.steps(min(size, max(len(data.rows), 1)), data.n * 0)
    found, _ = scan(step, begun, {"model": params}, steps, (data.x, data.y), compiles=False)
    return ClassSums(**found)


def mean_features(task: Task, params: Params, data: Data) -> Tensor:
    """The mean features of all of a client's training rows, in evaluation mode.

    Args:
      task: a network whose body and head are apart, see `head_split`.
      params: all of its parameters.
      data: the rows.
    """
    assert task.features is not None
    assert task.split is not None
    kind = next(iter(params.values())).dtype
    return outputs_on(task.features, params, data, task.split.width, kind=kind).sum(0) / (
        data.n.clamp(min=1)
    )


def rows_per_class(data: Data, classes: int) -> Tensor:
    """How many training rows of each class a client has, from its labels alone.

    Example:
      >>> rows_per_class(Data.of(torch.zeros(4, 2), torch.tensor([0, 0, 2, 0])), 3)
      tensor([3., 0., 1.])
    """
    real = torch.arange(len(data.rows), device=data.n.device) < data.n
    of = F.one_hot(data.y[data.rows], classes)
    return (of * real[:, None]).sum(0).to(torch.get_default_dtype())


def log_prior(rows: Tensor) -> Tensor:
    """Logarithms of class frequencies, of the most frequent 0, and `FAR` for classes without rows.

    Example:
      >>> log_prior(torch.tensor([3.0, 1.0, 0.0])).exp()
      tensor([1.0000, 0.3333, 0.0000])
    """
    logs = rows.clamp(min=1).log()
    return torch.where(rows > 0, logs - logs.max(), FAR)


def pull(features: Tensor, batch: Batch, targets: Tensor, seen: Tensor) -> Tensor:
    """How far a batch's features are from their classes' targets: mean of |z − T[y]|² / width.

    Args:
      features: of the batch's examples.
      batch: whose labels say which target.
      targets: classes x width.
      seen: 1 for each class that has a target; examples of others add nothing.
    """
    apart = (features - targets[batch.y]).square().mean(-1)
    return weighted_mean(seen[batch.y] * apart, batch)


def pulled(
    task: Task, lam: float, params: Params, batch: Batch, given: Tree
) -> tuple[Tensor, Tensor, Params]:
    """The task's loss plus `lam` times the pull to given["targets"], where given["seen"] has one.

    Args:
      task: a network whose body and head are apart, see `head_split`.
      lam: strength of the pull.
      params: all of its parameters.
      batch: examples.
      given: the targets.

    Returns:
      The loss, the batch's features, and buffers after the pass.
    """
    assert task.split is not None
    features, logits, buffers = task.split.embed(params, batch)
    value = weighted_mean(task.losses(logits, batch.y, batch.weight), batch)
    if lam:
        value = value + lam * pull(features, batch, given["targets"], given["seen"])
    return value, features, buffers


def pulled_loss(task: Task, lam: float) -> Loss:
    """What `pulled` makes small, as the loss of a training."""

    def loss(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        value, _, buffers = pulled(task, lam, params, batch, given)
        return value, buffers

    return loss


def nearness(features: Tensor, prototypes: Tensor, seen: Tensor) -> Tensor:
    """Logits that are the larger, the nearer a prototype is: −|z − P[c]|² / width."""
    apart = (features[..., None, :] - prototypes).square().mean(-1)
    return torch.where(seen > 0, -apart, torch.full_like(apart, FAR))
