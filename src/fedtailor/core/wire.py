"""What crosses the wire: how many bytes a message has, and its form as bytes."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Tree

_HERE, _VALUE = "here?", "value?"


def maybe(here: Tensor, value: Tree) -> Tree:
    """A part of a message of which some rows, or all, may be missing.

    Shapes must not depend on the data (clients share a call), so a missing row is zeros in memory;
    it is neither sent nor counted.

    Args:
      here: one flag, or one per row of the leaves of `value`.
      value: the part itself.
    """
    return {_HERE: here, _VALUE: value}


def value(part: Tree) -> Tree:
    """What a `maybe` holds; rows that are not `here` are zeros or leftovers."""
    inner: Tree = part[_VALUE]
    return inner


def here(part: Tree) -> Tensor:
    """Which rows of a `maybe` are there."""
    flag: Tensor = part[_HERE]
    return flag


def size(message: Tree) -> Tensor | int:
    """Bytes of a message: every number that is sent, at its own width."""
    if _HERE in message:
        flag = here(message)
        whole = sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value(message)))
        return flag.sum() * (whole // max(flag.numel(), 1))
    total: Tensor | int = 0
    for leaf in message.values():
        total = total + (
            size(leaf) if isinstance(leaf, dict) else leaf.numel() * leaf.element_size()
        )
    return total


def as_sent(message: Tree) -> Tree:
    """The message without the rows that are not there; a flag travels as bits beside them."""
    if _HERE in message:
        flag = here(message)
        if flag.ndim == 0:
            return {_HERE: flag, _VALUE: value(message) if bool(flag) else {}}
        return {_HERE: flag, _VALUE: tree.map(lambda p: p[flag], value(message))}
    return {k: as_sent(v) if isinstance(v, dict) else v for k, v in message.items()}


def pack(message: Tree) -> bytes:
    """A message as bytes (safetensors: names, shapes, numbers; nothing that could run)."""
    flat = tree.flatten(as_sent(message))
    return save({k: v.detach().cpu().contiguous().clone() for k, v in flat.items()})


def _checked(got: Any, like: Tensor, name: str, rows: int | None = None) -> Tensor:
    """A tensor that has the expected type and shape; `rows` replaces the expected first axis."""
    shape = tuple(like.shape) if rows is None else (rows, *like.shape[1:])
    if not isinstance(got, Tensor) or tuple(got.shape) != shape or got.dtype != like.dtype:
        found = f"{tuple(got.shape)} {got.dtype}" if isinstance(got, Tensor) else "a group of names"
        raise BadInput(f"message: '{name}' is {found}, expected {shape} {like.dtype}")
    return got


def _fill_maybe(part: Tree, like: Tree, name: str) -> Tree:
    flag = _checked(part[_HERE], here(like), f"{name}{_HERE}")
    sent, whole = part[_VALUE], tree.flatten(value(like))
    flat = tree.flatten(sent) if isinstance(sent, dict) else {}
    if flag.ndim == 0 and not bool(flag):
        return {_HERE: flag, _VALUE: tree.map(torch.zeros_like, value(like))}
    if flat.keys() != whole.keys():
        raise BadInput(f"message: '{name}' has {sorted(flat)}, expected {sorted(whole)}")
    rows = int(flag.sum()) if flag.ndim else None
    out = {}
    for key, leaf in whole.items():
        got = _checked(flat[key], leaf, f"{name}{key}", rows)
        if flag.ndim:
            full = torch.zeros_like(leaf)
            full[flag] = got
            got = full
        out[key] = got
    return {_HERE: flag, _VALUE: tree.unflatten(out)}


def fill(part: Any, like: Tree, name: str = "") -> Tree:
    """`part` as a message like `like`: missing rows as zeros, everything checked."""
    if not isinstance(part, dict) or part.keys() != like.keys():
        found = sorted(part) if isinstance(part, dict) else "a tensor"
        raise BadInput(f"message: '{name or '.'}' has {found}, expected {sorted(like)}")
    if _HERE in like:
        return _fill_maybe(part, like, name)
    out: Tree = {}
    for key, leaf in like.items():
        inner = f"{name}{key}"
        if isinstance(leaf, dict):
            out[key] = fill(part[key], leaf, f"{inner}/")
        else:
            out[key] = _checked(part[key], leaf, inner)
    return out


def unpack(raw: bytes, like: Tree) -> Tree:
    """The message that `pack` was given, checked against one of the same kind."""
    try:
        flat = load(raw)
    except (SafetensorError, ValueError) as error:
        raise BadInput(f"message: not safetensors ({error})") from None
    return fill(tree.unflatten(flat), like)
