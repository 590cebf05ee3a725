"""Models as moves: what clients send where a mean of models is not what the server needs."""

from __future__ import annotations

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import Task
from fedtailor.core.tree import Params


def scaled_move(task: Task, begin: Params, end: Params, factor: Tensor) -> Params:
    """`factor` times the way from `begin` to `end`; running statistics are those of `end`.

    Example:
      >>> import torch
      >>> from fedtailor.methods.check import toy_task
      >>> begin, end = {"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}
      >>> scaled_move(toy_task(), begin, end, torch.tensor(0.5))
      {'w': tensor(1.)}
    """
    learnt = tree.drop(end, task.buffers)
    gone = tree.sub(learnt, tree.pick(begin, learnt))
    scaled: Params = tree.map(lambda m: factor.to(m.dtype) * m, gone)
    return {k: (end | scaled)[k] for k in end}


def moved_by(task: Task, begin: Params, move: Params, factor: Tensor) -> Params:
    """Where `factor` times a move leads from `begin`; running statistics are those of the move.

    Example:
      >>> import torch
      >>> from fedtailor.methods.check import toy_task
      >>> moved_by(toy_task(), {"w": torch.tensor(1.0)}, {"w": torch.tensor(1.0)}, torch.tensor(2))
      {'w': tensor(3.)}
    """
    learnt = tree.drop(begin, task.buffers)
    step = lambda w, m: w + factor.to(w.dtype) * m
    there: Params = tree.map(step, learnt, tree.pick(move, learnt))
    return {k: (move | there)[k] for k in begin}


def part_way(task: Task, begin: Params, end: Params, share: float) -> Params:
    """Where a share of the way from `begin` to `end` leads; running statistics are those of `end`.

    Above 1 it leads beyond, where a variance might be below 0.

    Example:
      >>> import torch
      >>> from fedtailor.methods.check import toy_task
      >>> part_way(toy_task(), {"w": torch.tensor(1.0)}, {"w": torch.tensor(3.0)}, 1.5)
      {'w': tensor(4.)}
    """
    there: Params = tree.lerp(begin, end, share)
    return there | {k: v for k, v in end.items() if k in task.buffers}
