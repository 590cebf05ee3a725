"""Options that clients of several runs, which share a call, have different values of.

A factory takes its options as numbers, and its functions close over them. Given a `RunNumber` in
place of one, they close over its name, and the same functions serve all runs. What it stands for is
found when it meets a tensor: the value of the client that the function is called for just then. A
step of `scan` gets these values as arguments, so that one program serves all of them.

A branch that all values take the same way is taken. Where they part, or where a number of Python's
is needed, `NeedsNumber` is raised: such a method has to be made for each value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

# values of the client for whom something is done now, by name
_NONE: Mapping[str, Tensor] = MappingProxyType({})
RUN_NUMBERS: ContextVar[Mapping[str, Tensor]] = ContextVar("run_numbers", default=_NONE)


class NeedsNumber(TypeError):
    """Something cannot be done without the value of an option, of which there are several."""


@contextmanager
def with_run_numbers(values: Mapping[str, Tensor]) -> Iterator[None]:
    """Within, these are the values of all `RunNumber`s; double precision, one number each."""
    token = RUN_NUMBERS.set(values)
    try:
        yield
    finally:
        RUN_NUMBERS.reset(token)


def _within(values: Any) -> Iterator[Any]:
    if isinstance(values, dict):
        values = tuple(values.values())
    for one in values:
        if isinstance(one, (list, tuple, dict)):
            yield from _within(one)
        else:
            yield one


def _resolved(values: Any, kind: torch.dtype) -> Any:
    """The same with tensors where there are `RunNumber`s."""
    if isinstance(values, RunNumber):
        return values.tensor().to(kind)
    if isinstance(values, dict):
        return {name: _resolved(one, kind) for name, one in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_resolved(one, kind) for one in values)
    return values


def _operator(work: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that makes another `RunNumber` of numbers, and a tensor where there is one."""

    def met(*parts: Any) -> Any:
        if all(isinstance(one, (int, float, RunNumber)) for one in parts):
            each = [one.values if isinstance(one, RunNumber) else repeat(one) for one in parts]
            return RunNumber(work, parts, tuple(map(work, *each)))
        if all(isinstance(one, (int, float, RunNumber, Tensor)) for one in parts):
            return RunNumber.__torch_function__(work, (), parts)
        return NotImplemented

    return met


def _turned(work: Callable[..., Any]) -> Callable[..., Any]:
    met = _operator(work)
    return lambda right, left: met(left, right)


def _own(name: str) -> Tensor:
    try:
        return RUN_NUMBERS.get()[name]
    except LookupError:
        raise NeedsNumber(f"'{name}' is asked for before there is a client") from None


@dataclass(frozen=True, eq=False, repr=False)
class RunNumber:
    """A number that is known by its name and each run's value, or by how it is made of such.

    With numbers it makes another of its kind; with tensors, a tensor of their type, as a number of
    Python's would.

    Example:
      >>> half = RunNumber.of("mu", [3.0, 1.0]) / 2
      >>> with with_run_numbers({"mu": torch.tensor(3.0).double()}):
      ...     half * torch.tensor([2.0, 4.0])
      tensor([3., 6.])
      >>> bool(half > 0)
      True
    """

    work: Callable[..., Any]
    made_of: tuple[Any, ...]
    values: tuple[Any, ...]  # one of each run

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> RunNumber:
        """The option of that name, with each run's value."""
        return cls(_own, (name,), tuple(values))

    def __repr__(self) -> str:
        if self.work is _own:
            return str(self.made_of[0])
        return f"{self.work.__name__}({', '.join(map(repr, self.made_of))})"

    def tensor(self) -> Any:
        """The value of the client for whom something is done now."""
        parts = (one.tensor() if isinstance(one, RunNumber) else one for one in self.made_of)
        return self.work(*parts)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        met = [one for one in _within((args, kwargs or {})) if isinstance(one, Tensor)]
        kinds = [one.dtype for one in met if one.is_floating_point()]
        kind = kinds[0] if kinds else torch.get_default_dtype()
        return func(*_resolved(args, kind), **_resolved(kwargs or {}, kind))

    def _common(self, kind: Callable[[Any], Any]) -> Any:
        """What all values come to, if it is the same."""
        first, *others = (kind(value) for value in self.values)
        if any(one != first for one in others):
            raise NeedsNumber(f"what is done depends on '{self!r}'")
        return first

    def __bool__(self) -> bool:
        return bool(self._common(bool))

    def __float__(self) -> float:
        return float(self._common(float))

    def __int__(self) -> int:
        return int(self._common(int))

    __hash__ = object.__hash__
    __add__, __radd__ = _operator(operator.add), _turned(operator.add)
    __sub__, __rsub__ = _operator(operator.sub), _turned(operator.sub)
    __mul__, __rmul__ = _operator(operator.mul), _turned(operator.mul)
    __truediv__, __rtruediv__ = _operator(operator.truediv), _turned(operator.truediv)
    __pow__, __rpow__ = _operator(operator.pow), _turned(operator.pow)
    __neg__, __abs__ = _operator(operator.neg), _operator(operator.abs)
    __lt__, __le__ = _operator(operator.lt), _operator(operator.le)
    __gt__, __ge__ = _operator(operator.gt), _operator(operator.ge)
    __eq__, __ne__ = _operator(operator.eq), _operator(operator.ne)
