"""A small network that the server trains on what clients uploaded, one row after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.rng import Key
from fedtailor.core.tree import Tree

# (what is trained, rows of each tensor) -> loss
RowsLoss = Callable[..., Tensor]


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
    rows: Sequence[Tensor],
    *,
    epochs: int,
    batch: int,
    lr: float,
    key: Key,
) -> Tree:
    """What plain SGD makes of `theta` on rows that the server holds.

    Args:
      loss: (theta, some rows of each tensor) -> their mean loss.
      theta: where to begin; it stays as it is.
      rows: tensors with equally many rows; with none nothing is trained.
      epochs: passes over the rows.
      batch: rows per step, in an order drawn for each pass; 0 takes all at once.
      lr: learning rate.
      key: what orders are drawn with.

    Example:
      >>> def squared(theta, x):
      ...     return ((theta["w"] - x) ** 2).mean() / 2
      >>> found = train_on_rows(squared, {"w": torch.tensor(0.0)}, [torch.tensor([1.0, 3.0])],
      ...                       epochs=2, batch=0, lr=0.5, key=rng.key(0))
      >>> found["w"]  # half of the way to 2, twice
      tensor(1.5000)
    """
    count = len(rows[0])
    own = tree.map(lambda leaf: leaf.detach().clone().requires_grad_(), theta)
    for epoch in range(epochs if count else 0):
        steps: Sequence[Tensor | slice] = [slice(None)]
        if batch:
            steps = torch.split(rng.permutation(rng.fold(key, epoch), count), batch)
        for some in steps:
            _step(loss, own, [part[some] for part in rows], lr)
    return tree.map(Tensor.detach, own)


def _step(loss: RowsLoss, own: Tree, rows: Sequence[Tensor], lr: float) -> None:
    """One step, in place: there are thousands, and new tensors would take as long as gradients."""
    # nothing is mapped here, and torch.func.grad takes twice as long
    with torch.enable_grad():
        value = loss(own, *rows)
    leaves = tree.leaves(own)
    slopes = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        for leaf, slope in zip(leaves, slopes, strict=True):
            leaf.sub_(slope, alpha=lr)
