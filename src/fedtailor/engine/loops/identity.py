"""When are two functions the same? When their code is, and all that they close over.

Methods make their objectives anew each round. A step that was traced or captured serves all of
those that do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.task import Task
from fedtailor.engine.loops.torch_internals import is_mapped

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type)
_PLAIN = frozenset(_VALUES)  # of most values: looked up faster than asked for one by one
MOST = 64  # tasks whose numbers are remembered: a method may make one in every round


class ClosesOverClient(TypeError):
    """A function closes over a tensor that differs from client to client."""


class TaskNumbers:
    """A number for each task, the same for those that do the same.

    Every step closes over a task, whose functions close over all settings of a run. A task never
    changes, so it is walked through once, and not in every round.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Task, int]] = {}  # by address, with what lies there
        self._held: list[Any] = []

    def of(self, task: Task) -> int:
        """The number of a task."""
        if id(task) not in self._known:
            key = _key(tuple(task), self._held, {}, self)
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[id(task)] = task, self._numbers.setdefault(key, len(self._numbers))
        return self._known[id(task)][1]


def identity(value: Any, held: list[Any], tasks: TaskNumbers | None = None) -> Hashable:
    """A key that is equal for functions (and values) that do the same.

    Args:
      value: usually a function.
      held: gets everything that the key knows by its address only; the key is valid as long as
        these are alive.
      tasks: numbers of tasks that were met before; keys of other numbers are others.

    Example:
      >>> def times(k):
      ...     return lambda x: k * x
      >>> identity(times(2), []) == identity(times(2), []), identity(times(2), []) == identity(
      ...     times(3), [])
      (True, False)
    """
    return _key(value, held, {}, tasks)


def _key(value: Any, held: list[Any], seen: dict[int, int], tasks: TaskNumbers | None) -> Hashable:
    kind: Any = type(value)
    if kind in _PLAIN or isinstance(value, _VALUES):
        return kind, value
    if id(value) in seen:  # a function may refer to itself
        return "seen", seen[id(value)]
    if isinstance(value, Tensor):
        if is_mapped(value):
            raise ClosesOverClient("a step closes over a mapped tensor: pass it in `given`")
        held.append(value)
        return "tensor", id(value)
    seen[id(value)] = len(seen)
    if kind is Task and tasks is not None:
        return Task, tasks.of(value)

    def each(values: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple([_key(part, held, seen, tasks) for part in values])

    if kind is FunctionType:
        cells = each([_content(cell) for cell in value.__closure__ or ()])
        named = value.__kwdefaults__ or {}
        defaults = each(value.__defaults__ or ()), tuple(named), each(named.values())
        return "function", value.__code__, cells, defaults
    if kind is MethodType:
        return "method", *each((value.__func__, value.__self__))
    if isinstance(value, functools.partial):
        return "partial", *each((value.func, value.args, value.keywords))
    if isinstance(value, (tuple, list)):
        return kind, each(value)
    if isinstance(value, dict):
        return dict, each(value), each(value.values())
    if isinstance(value, (set, frozenset)):
        return set, frozenset(each(value))
    names = _frozen_fields(kind)
    if names is not None:
        return kind, each([getattr(value, name) for name in names])
    held.append(value)
    return kind, id(value)


@functools.cache
def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """The names of what a frozen dataclass holds; None of anything else."""
    if is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009
        return tuple(field.name for field in fields(kind))
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was never given a value
        return None
