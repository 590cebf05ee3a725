"""Trees as plain arrays, which processes on one machine share instead of copying them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree


class _Bits(NamedTuple):
    """Numbers of a kind that numpy has no word for, as bits."""

    kind: str
    bits: np.ndarray


Arrays = dict[str, np.ndarray | _Bits]


def _array(leaf: Tensor) -> np.ndarray | _Bits:
    leaf = leaf.detach().cpu().contiguous()
    if leaf.dtype == torch.bfloat16:
        return _Bits("bfloat16", leaf.view(torch.int16).numpy())
    return leaf.numpy()


def _tensor(array: np.ndarray | _Bits) -> Tensor:
    if isinstance(array, _Bits):
        return _tensor(array.bits).view(getattr(torch, array.kind))
    with warnings.catch_warnings():  # it cannot be written to, and nothing here does
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def to_arrays(values: Tree) -> Arrays:
    """A tree of tensors, ready to travel.

    Example:
      >>> {k: v.tolist() for k, v in to_arrays({"a": {"b": torch.tensor([1, 2])}}).items()}
      {'a/b': [1, 2]}
    """
    return {name: _array(leaf) for name, leaf in tree.flatten(values).items()}


def from_arrays(arrays: Arrays, device: torch.device | str = "cpu", *, own: bool = False) -> Tree:
    """The tree that `to_arrays` was given, on a device.

    Its tensors may lie in memory that is shared, and must not be written to, unless it gets its
    `own` copy.
    """
    found = tree.unflatten({name: _tensor(array).to(device) for name, array in arrays.items()})
    return tree.map(torch.clone, found) if own else found


def as_arrays(value: Any) -> Any:
    """A value with arrays for its tensors, however it is nested in tuples with names and dicts.

    A tensor that travels as one takes a tenth of a millisecond more at each end, and is copied.

    Example:
      >>> as_arrays({"a": torch.tensor([1, 2]), "b": "as it is"})
      {'a': array([1, 2]), 'b': 'as it is'}
    """
    return _replaced(value, Tensor, _array)


def as_tensors(value: Any) -> Any:
    """The value that `as_arrays` was given; its tensors must not be written to.

    Example:
      >>> as_tensors(as_arrays({"a": torch.tensor([1, 2])}))
      {'a': tensor([1, 2])}
    """
    return _replaced(value, (np.ndarray, _Bits), _tensor)


def _replaced(value: Any, kind: Any, by: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, dict):
        return {name: _replaced(one, kind, by) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(one, kind, by) for one in value))
    return value
