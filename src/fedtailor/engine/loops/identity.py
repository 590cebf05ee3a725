"""When are two functions the same? When their code is, and all that they close over.

Methods make their objectives anew each round. A step that was traced or captured serves all of
those that do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from fedtailor.engine.loops.torch_internals import is_mapped

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type)


class ClosesOverClient(TypeError):
    """A function closes over a tensor that differs from client to client."""


def identity(value: Any, held: list[Any]) -> Hashable:
    """A key that is equal for functions (and values) that do the same.

    Args:
      value: usually a function.
      held: gets everything that the key knows by its address only; the key is valid as long as
        these are alive.

    Example:
      >>> def times(k):
      ...     return lambda x: k * x
      >>> identity(times(2), []) == identity(times(2), []), identity(times(2), []) == identity(
      ...     times(3), [])
      (True, False)
    """
    return _key(value, held, {})


def _key(value: Any, held: list[Any], seen: dict[int, int]) -> Hashable:
    if isinstance(value, _VALUES):
        return type(value), value
    if id(value) in seen:  # a function may refer to itself
        return "seen", seen[id(value)]
    if isinstance(value, Tensor):
        if is_mapped(value):
            raise ClosesOverClient("a step closes over a mapped tensor: pass it in `given`")
        held.append(value)
        return "tensor", id(value)
    seen[id(value)] = len(seen)
    inner = functools.partial(_key, held=held, seen=seen)
    if isinstance(value, FunctionType):
        cells = tuple(inner(_content(cell)) for cell in value.__closure__ or ())
        defaults = tuple(inner(v) for v in value.__defaults__ or ())
        named = tuple((k, inner(v)) for k, v in (value.__kwdefaults__ or {}).items())
        return "function", value.__code__, cells, defaults, named
    if isinstance(value, MethodType):
        return "method", inner(value.__func__), inner(value.__self__)
    if isinstance(value, functools.partial):
        return "partial", inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(inner(v) for v in value)
    if isinstance(value, dict):
        return dict, tuple((inner(k), inner(v)) for k, v in value.items())
    if isinstance(value, (set, frozenset)):
        return set, frozenset(inner(v) for v in value)
    if is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
        return type(value), tuple(inner(getattr(value, f.name)) for f in fields(value))
    held.append(value)
    return type(value), id(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that was never given a value
        return None
