"""What crosses the wire: how many bytes a message has, and its form as bytes."""

from __future__ import annotations

import torch
from safetensors.torch import load, save
from torch import Tensor

from . import tree
from .errors import BadInput
from .tree import Tree

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


def _strip(message: Tree) -> Tree:
    """The message without the rows that are not there; a flag travels as bits beside them."""
    if _HERE in message:
        flag = here(message)
        if flag.ndim == 0:
            return {_HERE: flag, _VALUE: value(message) if bool(flag) else {}}
        return {_HERE: flag, _VALUE: tree.map(lambda p: p[flag], value(message))}
    return {k: _strip(v) if isinstance(v, dict) else v for k, v in message.items()}


def present(message: Tree) -> Tree:
    """The message as it is sent: without the rows that are not there."""
    return _strip(message)


def pack(message: Tree) -> bytes:
    """A message as bytes (safetensors: names, shapes, numbers; nothing that could run)."""
    flat = tree.flatten(_strip(message))
    return save({k: v.detach().cpu().contiguous().clone() for k, v in flat.items()})


def _fill(part: Tree, like: Tree, name: str = "") -> Tree:
    if _HERE in like:
        flag = part[_HERE]
        if flag.ndim == 0:
            return {
                _HERE: flag,
                _VALUE: part[_VALUE] if bool(flag) else tree.map(torch.zeros_like, value(like)),
            }
        grow = lambda p, q: torch.zeros_like(q).masked_scatter(
            flag.view(-1, *[1] * (q.ndim - 1)).expand_as(q), p
        )
        return {_HERE: flag, _VALUE: tree.map(grow, part[_VALUE], value(like))}
    if part.keys() != like.keys():
        raise BadInput(f"message: '{name or '.'}' has {sorted(part)}, expected {sorted(like)}")
    out: Tree = {}
    for key, leaf in like.items():
        if isinstance(leaf, dict):
            out[key] = _fill(part[key], leaf, f"{name}{key}/")
        elif part[key].shape != leaf.shape or part[key].dtype != leaf.dtype:
            got = f"{tuple(part[key].shape)} {part[key].dtype}"
            raise BadInput(
                f"message: '{name}{key}' is {got}, expected {tuple(leaf.shape)} {leaf.dtype}"
            )
        else:
            out[key] = part[key]
    return out


def unpack(raw: bytes, like: Tree) -> Tree:
    """The message that `pack` was given, checked against one of the same kind."""
    return _fill(tree.unflatten(load(raw)), like)
