"""How models do on a client's rows, in evaluation mode, and what their upper layers see of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.objectives import Objective
from fedtailor.core.steps.scan import Notes, StepRows, scan
from fedtailor.core.task import Batch, Task, to_input, weighted_mean
from fedtailor.core.tree import Params, Tree

SCORED = 128  # rows of a client at a time


class Score(NamedTuple):
    """Sums over one client's rows: right answers (of a classification), and losses."""

    correct: Tensor
    loss: Tensor


def are_right(logits: Tensor, labels: Tensor) -> Tensor:
    """Which rows [..., R] are answered right; logits [..., R, K] that are not finite answer none.

    Example:
      >>> are_right(torch.tensor([[1.0, 0.0], [torch.nan, 0.0]]), torch.tensor([0, 0])).tolist()
      [True, False]
    """
    return logits.isfinite().all(-1) & (logits.argmax(-1) == labels)


def score(task: Task, model: Any, data: Data, size: int = SCORED) -> Score:
    """How a model does on the rows of `data` (no augmentation, evaluation mode).

    Args:
      task: its loss is what is summed.
      model: what predicts.
      data: the rows.
      size: rows at a time.
    """

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        x, y = (rows[now.rows] for rows in store)
        outputs = task.predict(given["model"], x)
        found = {"loss": carry["loss"] + (task.losses(outputs, y, now.weight) * now.weight).sum()}
        hits = carry["correct"]
        if task.kind == "classification":
            hits = hits + (are_right(outputs, y).to(now.weight.dtype) * now.weight).sum()
        return {"correct": hits, **found}

    zero = torch.zeros((), device=data.n.device)
    begun, given = {"correct": zero, "loss": zero}, {"model": model}
    # any key: evaluation draws nothing
    steps = data.steps(min(size, max(len(data.rows), 1)), data.n * 0)
    found, _ = scan(step, begun, given, steps, (data.x, data.y), compiles=False)
    return Score(found["correct"], found["loss"])


def score_of_outputs(task: Task, outputs: Tensor, labels: Tensor, weight: Tensor) -> Score:
    """The same of outputs [clients, rows, width] that are already there, on the host.

    Args:
      task: its loss is what is summed.
      outputs: of each client's model.
      labels: of the rows.
      weight: 1 for a real row, 0 for padding.
    """

    def one(said: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (task.losses(said, y, weight) * weight).sum()

    right = torch.zeros_like(weight)
    if task.kind == "classification":
        right = are_right(outputs, labels).to(weight) * weight
    try:
        losses = vmap(one)(outputs, labels, weight)
    except RuntimeError:  # a loss that cannot be mapped; training has told
        losses = torch.stack([one(*rows) for rows in zip(outputs, labels, weight, strict=True)])
    return Score(right.sum(-1).cpu(), losses.cpu())


def mean_loss(task: Task, params: Params, data: Data) -> Tensor:
    """The mean loss over the rows of `data`, in evaluation mode."""
    return score(task, params, data).loss / data.n.clamp(min=1)


def outputs_on(
    predict: Callable[[Any, Tensor], Tensor],
    model: Any,
    data: Data,
    width: int,
    kind: torch.dtype | None = None,
) -> Tensor:
    """What a model says of the rows of `data`, in their order; zeros for padding.

    Args:
      predict: (model, x) -> outputs.
      model: what predicts.
      data: the rows.
      width: how many numbers it gives for a row.
      kind: type of the numbers; None is torch's default.
    """
    size = min(SCORED, max(len(data.rows), 1))
    steps = data.steps(size, data.n * 0)

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        said = predict(given["model"], store[0][now.rows])
        if not isinstance(said, Tensor) or said.shape != (size, width):
            shape = getattr(said, "shape", None)
            what = type(said).__name__ if shape is None else f"outputs of shape {tuple(shape)}"
            raise BadInput(f"predict gives {what} for {size} examples: give ({size}, {width})")
        # evaluation draws nothing, so the key is free to say which step this is
        where = now.key * size + torch.arange(size, device=now.key.device)
        where = where[:, None].expand(-1, width)
        return {"outputs": carry["outputs"].scatter(0, where, said.to(carry["outputs"].dtype))}

    numbers = torch.arange(len(steps.number), device=data.n.device)
    rows = len(steps.number) * size
    begun = {"outputs": torch.zeros(rows, width, dtype=kind, device=data.n.device)}
    found, _ = scan(
        step, begun, {"model": model}, steps._replace(key=numbers), (data.x,), compiles=False
    )
    real = torch.arange(len(data.rows), device=data.n.device) < data.n
    return torch.where(real[:, None], found["outputs"][: len(data.rows)], 0.0)


@lru_cache(maxsize=64)
def _places(count: int, device: torch.device) -> Tensor:
    """0, 1, ...: the very same tensor in every round, or steps would be prepared anew in each."""
    return torch.arange(count, device=device)


class UpperLayers(NamedTuple):
    """What upper layers are trained on.

    Attributes:
      objective: the task's loss, of what they are given.
      data: the client's rows by their place among them.
      given: what the objective finds at that place, and parameters that stay as they are.
    """

    objective: Objective
    data: Data
    given: Tree


def upper_layers(
    task: Task, params: Params, names: Sequence[str], data: Data
) -> UpperLayers | None:
    """The layers from the first one on that trains, on what they see of the client's rows.

    None where the network cannot be taken apart there, or where that would not do the same.

    Args:
      task: the network and its loss.
      params: all parameters.
      names: those that are trained.
      data: the client's rows.
    """
    part = task.upper(frozenset(names))
    if part is None or data.x.requires_grad:  # an audit asks how results depend on the examples
        return None
    below = tree.drop(params, part.names)
    kind = tree.leaves(params)[0].dtype

    def ask(model: Params, x: Tensor) -> Tensor:
        return part.below(model, to_input(x, kind))

    one = ask(below, data.x[:1])
    if one.ndim != 2:  # images take too much memory
        return None
    seen = outputs_on(ask, below, data, one.shape[1], kind=kind)
    place = _places(len(data.rows), data.x.device)

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        outputs = part.above(given["fixed"] | theta, given["seen"][batch.x])
        losses = task.losses(outputs, given["labels"][batch.y], batch.weight)
        return weighted_mean(losses, batch), {}

    given = {
        "fixed": tree.drop(params, [*below, *names]),
        "seen": seen,
        "labels": data.y[data.rows],
    }
    return UpperLayers(objective, data._replace(x=place, y=place, rows=place), given)
