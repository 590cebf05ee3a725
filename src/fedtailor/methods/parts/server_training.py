"""A small network that the server trains on what clients uploaded, one batch after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.objectives import exact_gradient
from fedtailor.core.rng import Key
from fedtailor.core.steps.optim import sgd
from fedtailor.core.steps.scan import Notes, Step, StepRows, Steps, scan
from fedtailor.core.task import Batch
from fedtailor.core.tree import Tree

# (what is trained, some rows, given) -> their mean loss, by their weights
RowsLoss = Callable[[Tree, Batch, Tree], Tensor]


def uploaded_rows(prototypes: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """All class means that a cohort uploaded, and their classes; client after client.

    Args:
      prototypes: clients x classes x width.
      seen: clients x classes, above 0 where a client has the class.

    Example:
      >>> means = torch.tensor([[[1.0], [0.0]], [[2.0], [3.0]]])
      >>> uploaded_rows(means, torch.tensor([[1, 0], [1, 1]]))
      (tensor([[1.],
              [2.],
              [3.]]), tensor([0, 0, 1]))
    """
    client, label = (seen > 0).nonzero(as_tuple=True)
    return prototypes[client, label], label


def train_on_rows(
    loss: RowsLoss,
    theta: Tree,
    rows: tuple[Tensor, Tensor],
    *,
    epochs: int,
    batch: int,
    lr: float,
    key: Key,
    given: Tree | None = None,
) -> Tree:
    """What plain SGD makes of `theta` on rows that the server holds.

    Args:
      loss: (theta, some rows, given) -> their mean loss. A short last batch is padded with rows of
        weight 0. As the objectives of clients, it closes over constants only.
      theta: where to begin; it stays as it is.
      rows: examples and their labels, equally many; with none nothing is trained.
      epochs: passes over the rows.
      batch: rows per step, in an order drawn for each pass; 0 takes all at once.
      lr: learning rate.
      key: what orders are drawn with.
      given: tensors that the loss needs beside the rows.

    Example:
      >>> def squared(theta, batch, given):
      ...     return (batch.weight * (theta["w"] - batch.x) ** 2).sum() / batch.weight.sum() / 2
      >>> rows = torch.tensor([1.0, 3.0]), torch.tensor([0, 0])
      >>> found = train_on_rows(squared, {"w": torch.tensor(0.0)}, rows,
      ...                       epochs=2, batch=0, lr=0.5, key=rng.key(0))
      >>> found["w"]  # half of the way to 2, twice
      tensor(1.5000)
    """
    count = len(rows[0])
    if not count:
        return theta
    room = 1 << (count - 1).bit_length()  # cohorts have more rows or fewer: one step serves many
    x, y = (torch.cat([part, part.new_zeros(room - count, *part.shape[1:])]) for part in rows)
    steps = _plan(count, epochs, min(batch, room) or room, batch > 0, key)
    kept = {"x": x, "y": y, "given": given or {}}
    # a pass is a few steps: too few to be worth compiling
    trained, _ = scan(_step(loss, lr), theta, kept, steps, (), compiles=epochs > 1)
    return trained


def _plan(count: int, epochs: int, size: int, shuffled: bool, key: Key) -> Steps:
    """The batches of all passes, made at once; past the last row the first one stands for none."""
    passes, place = (torch.arange(n, device=key.device) for n in (epochs, count))
    order = place.expand(epochs, count)
    if shuffled:
        order = rng.permutation(rng.fold(key, passes)[:, None], count)
    each = -(-count // size)
    order = F.pad(order, (0, each * size - count))
    real = torch.arange(each * size, device=key.device) < count
    weight = real.to(torch.get_default_dtype()).expand(epochs, -1)
    number = torch.arange(epochs * each, device=key.device)
    rows, weights = (part.reshape(len(number), size) for part in (order, weight))
    return Steps.alone(rows, weights, rng.fold(rng.fold(key, -1), number))


def _step(loss: RowsLoss, lr: float) -> Step:
    """One step, from constants alone: an engine may replay it."""
    slope = exact_gradient(lambda theta, some, given, _: (loss(theta, some, given), {}))

    def step(theta: Tree, kept: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes) -> Tree:
        x, y = kept["x"][now.rows], kept["y"][now.rows]
        some = Batch(x, y, now.weight, now.active, now.key)
        gradient, _, _ = slope(theta, some, kept["given"], {})
        change, _ = sgd(lr).update(gradient, {}, theta)
        return tree.add(theta, change)

    return step
