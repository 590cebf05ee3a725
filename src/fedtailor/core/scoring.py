"""How models do on a client's rows, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.steps.scan import Notes, StepRows, scan
from fedtailor.core.task import Task
from fedtailor.core.tree import Params, Tree

SCORED = 128  # rows of a client at a time


class Score(NamedTuple):
    """Sums over one client's rows: right answers (of a classification), and losses."""

    correct: Tensor
    loss: Tensor


def score(
    task: Task,
    model: Any,
    data: Data,
    size: int = SCORED,
    predict: Callable[[Any, Tensor], Tensor] | None = None,
) -> Score:
    """How a model does on the rows of `data` (no augmentation, evaluation mode).

    Args:
      task: its loss is what is summed.
      model: what predicts.
      data: the rows.
      size: rows at a time.
      predict: (model, x) -> outputs, where the model is more than the task's parameters.
    """
    says = predict or task.predict

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        x, y = (rows[now.rows] for rows in store)
        outputs = says(given["model"], x)
        found = {"loss": carry["loss"] + (task.losses(outputs, y, now.weight) * now.weight).sum()}
        hits = carry["correct"]
        if task.kind == "classification":
            hits = hits + ((outputs.argmax(-1) == y).to(now.weight.dtype) * now.weight).sum()
        return {"correct": hits, **found}

    zero = torch.zeros((), device=data.n.device)
    begun, given = {"correct": zero, "loss": zero}, {"model": model}
    # any key: evaluation draws nothing
    steps = data.steps(min(size, max(len(data.rows), 1)), data.n * 0)
    found, _ = scan(step, begun, given, steps, (data.x, data.y), compiles=False)
    return Score(found["correct"], found["loss"])


def mean_loss(task: Task, params: Params, data: Data) -> Tensor:
    """The mean loss over the rows of `data`, in evaluation mode."""
    return score(task, params, data).loss / data.n.clamp(min=1)


def outputs_on(
    predict: Callable[[Any, Tensor], Tensor],
    model: Any,
    data: Data,
    width: int,
    size: int = SCORED,
) -> Tensor:
    """What a model says of the rows of `data`, in their order; zeros for padding.

    Args:
      predict: (model, x) -> outputs.
      model: what predicts.
      data: the rows.
      width: how many numbers it gives for a row.
      size: rows at a time.
    """
    size = min(size, max(len(data.rows), 1))
    steps = data.steps(size, data.n * 0)

    def step(
        carry: Tree, given: Tree, now: StepRows, store: Sequence[Tensor], notes: Notes
    ) -> Tree:
        said = predict(given["model"], store[0][now.rows])
        # evaluation draws nothing, so the key is free to say which step this is
        where = now.key * size + torch.arange(size, device=now.key.device)
        where = where[:, None].expand(-1, width)
        return {"outputs": carry["outputs"].scatter(0, where, said.to(carry["outputs"].dtype))}

    numbers = torch.arange(len(steps.number), device=data.n.device)
    rows = len(steps.number) * size
    begun = {"outputs": torch.zeros(rows, width, device=data.n.device)}
    found, _ = scan(
        step, begun, {"model": model}, steps._replace(key=numbers), (data.x,), compiles=False
    )
    real = torch.arange(len(data.rows), device=data.n.device) < data.n
    return torch.where(real[:, None], found["outputs"][: len(data.rows)], 0.0)
