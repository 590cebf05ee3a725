"""What a server makes of one upload when it comes, before any mean: how far it moves, and limits.

A hostile client does not limit itself, so all of this is done where uploads arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree

COLLECTED, REST = "collected", "rest"  # an upload of which the server wants each mean entry itself


def collected(upload: Upload) -> Upload:
    """The upload with what would go into a mean among what the server gets one by one."""
    if not tree.leaves(upload.mean):
        raise BadInput("this method's clients upload nothing that is averaged: leave its rule out")
    rest = {REST: upload.each} if upload.each else {}
    return Upload(each={COLLECTED: upload.mean} | rest)


def averaged(upload: Upload) -> Tree:
    """What of an upload goes into a mean, or into a rule in its place.

    Example:
      >>> averaged(collected(Upload({"params": {"w": torch.tensor(1.0)}})))
      {'params': {'w': tensor(1.)}}
    """
    found: Tree = upload.each.get(COLLECTED, upload.mean)
    return found


def with_averaged(upload: Upload, values: Tree) -> Upload:
    """The upload with other values there."""
    if COLLECTED in upload.each:
        return upload._replace(each=upload.each | {COLLECTED: values})
    return upload._replace(mean=values)


def _paired(fn: Callable[[Tensor, Tensor], Tensor], sent: Tree, values: Tree) -> Tree:
    """`fn` of each leaf and what was sent under its name; of 0 where nothing was."""
    out: Tree = {}
    for name, leaf in values.items():
        was = sent.get(name)
        if isinstance(leaf, dict):
            out[name] = _paired(fn, was if isinstance(was, dict) else {}, leaf)
        else:
            if not isinstance(was, Tensor) or was.shape != leaf.shape:
                was = torch.zeros_like(leaf)
            out[name] = fn(was, leaf)
    return out


def moved(sent: Tree, values: Tree) -> Tree:
    """Values as differences to what was sent under the same names; the others as they are.

    Example:
      >>> now = {"params": {"w": torch.tensor(5.0)}, "change": torch.tensor(1.0)}
      >>> moved({"params": {"w": torch.tensor(3.0)}}, now)
      {'params': {'w': tensor(2.)}, 'change': tensor(1.)}
    """
    # flags have no differences
    return _paired(lambda was, leaf: leaf - was if leaf.is_floating_point() else leaf, sent, values)


def trained_leaves(values: Tree, buffers: Collection[str]) -> list[Tensor]:
    """The leaves that are trained: running statistics have another scale, and say little."""
    flat = sorted(tree.flatten(values).items())  # a state that was read back has another order
    return [
        leaf
        for name, leaf in flat
        if leaf.is_floating_point() and leaf.numel() and name.rpartition("/")[2] not in buffers
    ]


def norm_of(values: Tree, buffers: Collection[str] = ()) -> Tensor:
    """The 2-norm of all that is trained, in double precision: squares must not overflow."""
    squares = [leaf.double().square().sum() for leaf in trained_leaves(values, buffers)]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros((), dtype=torch.float64)


def limited_move(sent: Tree, values: Tree, bound: float | Tensor, buffers: Collection[str]) -> Tree:
    """Values whose difference to what was sent is no longer than `bound`; shortened if it was.

    Running statistics do not count in the length, and go as far as the others. What is short
    enough stays as it is, to the last bit.

    Example:
      >>> limited_move({"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([4.0, 5.0])}, 1.0, ())
      {'w': tensor([1.6000, 1.8000])}
    """
    norm = norm_of(moved(sent, values), buffers)
    share = bound / norm.clamp(min=torch.finfo(norm.dtype).tiny)

    def shortened(was: Tensor, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        short = was.double() + share * (leaf.double() - was.double())
        return torch.where(norm <= bound, leaf, short.to(leaf.dtype))

    return _paired(shortened, sent, values)
