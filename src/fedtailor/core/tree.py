"""Arithmetic on trees: nested dicts of tensors. States, messages and uploads are trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]  # str -> Tensor or Tree
Params = dict[str, Tensor]  # flat, with the names of `state_dict`; buffers included


def map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """`fn` of the leaves that stand at the same place in all trees.

    Example:
      >>> map(torch.add, {"a": torch.tensor(1)}, {"a": torch.tensor(2)})
      {'a': tensor(3)}
    """
    out: Tree = {}
    for name, leaf in tree.items():
        rest = [other[name] for other in others]
        out[name] = map(fn, leaf, *rest) if isinstance(leaf, dict) else fn(leaf, *rest)
    if any(len(other) != len(tree) for other in others):
        raise KeyError(f"trees differ: {list(tree)} against {[list(o) for o in others]}")
    return out


def in_new_dicts(tree: Tree) -> Tree:
    """The same tensors in dicts of its own: who changes these changes nobody else's.

    Example:
      >>> one = {"a": {"b": torch.tensor(1)}}
      >>> other = in_new_dicts(one)
      >>> other["a"]["b"] = torch.tensor(2)
      >>> one
      {'a': {'b': tensor(1)}}
    """
    return map(lambda leaf: leaf, tree)


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in order.

    Example:
      >>> leaves({"a": torch.tensor(1), "b": {"c": torch.tensor(2)}})
      [tensor(1), tensor(2)]
    """
    out: list[Tensor] = []
    for leaf in tree.values():
        out.extend(leaves(leaf) if isinstance(leaf, dict) else [leaf])
    return out


def where(flag: Tensor, a: Tree, b: Tree) -> Tree:
    """`a` where `flag`, else `b`.

    Example:
      >>> where(torch.tensor(True), {"w": torch.tensor(1)}, {"w": torch.tensor(2)})
      {'w': tensor(1)}
    """
    return map(lambda p, q: torch.where(flag, p, q), a, b)


def add(a: Tree, b: Tree) -> Tree:
    """`a + b`.

    Example:
      >>> add({"w": torch.tensor(1)}, {"w": torch.tensor(2)})
      {'w': tensor(3)}
    """
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """`a - b`.

    Example:
      >>> sub({"w": torch.tensor(3)}, {"w": torch.tensor(2)})
      {'w': tensor(1)}
    """
    return map(torch.sub, a, b)


def scale(a: Tree, s: float | Tensor) -> Tree:
    """`s * a`.

    Example:
      >>> scale({"w": torch.tensor(3.0)}, 0.5)
      {'w': tensor(1.5000)}
    """
    return map(lambda p: p * s, a)


def lerp(a: Tree, b: Tree, w: float | Tensor | Tree) -> Tree:
    """`a + w (b - a)`, exactly `a` for 0 and exactly `b` for 1; `w` is one number or a tree.

    Example:
      >>> lerp({"w": torch.tensor(0.0)}, {"w": torch.tensor(8.0)}, 0.25)
      {'w': tensor(2.)}
    """
    if isinstance(w, dict):
        return map(torch.lerp, a, b, w)
    return map(lambda p, q: torch.lerp(p, q, w), a, b)


def sq_norm(a: Tree) -> Tensor:
    """The squared 2-norm over all leaves together.

    Example:
      >>> sq_norm({"a": torch.tensor(3.0), "b": torch.tensor([0.0, 4.0])})
      tensor(25.)
    """
    squares = [p.square().sum() for p in leaves(a)]
    return torch.stack(squares).sum() if squares else torch.zeros(())


def shapes(a: Tree) -> dict[str, torch.Size]:
    """The shape of each leaf by name."""
    return {name: leaf.shape for name, leaf in flatten(a).items()}


def finite(a: Tree) -> Tensor:
    """Whether all numbers are finite."""
    ends = [
        (p.flatten().amax(0).isfinite() & p.flatten().amin(0).isfinite())  # NaN comes out as both
        for p in leaves(a)
        if p.is_floating_point() and p.numel()
    ]
    return torch.stack(ends).all() if ends else torch.ones((), dtype=torch.bool)


def finite_rows(a: Tree) -> Tensor:
    """For each row of the entries, which are stacks of as many, whether all numbers are finite."""
    rows = [p.reshape(len(p), -1) for p in leaves(a) if p.is_floating_point() and p.numel()]
    if not rows:
        return torch.ones(1, dtype=torch.bool)
    if not rows[0].is_cuda:  # a GPU would be waited for
        # a sum is finite only if its terms are, and looks at them once
        found = torch.stack([p.sum(1) for p in rows]).isfinite().all(0)
        if bool(found.all()):
            return found
    # a sum may be too large a number itself; NaN comes out as both ends
    ends = torch.stack([end for p in rows for end in p.aminmax(dim=1)])
    return ends.isfinite().all(0)


def pick(params: Params, names: Iterable[str]) -> Params:
    """The entries called `names`, as far as they are there.

    Example:
      >>> pick({"a": torch.tensor(1), "b": torch.tensor(2)}, ["b", "c"])
      {'b': tensor(2)}
    """
    return {k: params[k] for k in names if k in params}


def drop(params: Params, names: Iterable[str]) -> Params:
    """All entries but those called `names`.

    Example:
      >>> drop({"a": torch.tensor(1), "b": torch.tensor(2)}, ["b", "c"])
      {'a': tensor(1)}
    """
    gone = set(names)
    return {k: v for k, v in params.items() if k not in gone}


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree whose leaves have a new first axis.

    Example:
      >>> stack([{"w": torch.tensor(1)}, {"w": torch.tensor(2)}])
      {'w': tensor([1, 2])}
    """
    return map(lambda *p: torch.stack(p), *trees)


def cat(trees: Sequence[Tree]) -> Tree:
    """Trees joined along the first axis of their leaves."""
    return map(lambda *p: torch.cat(p), *trees)


def index(a: Tree, i: Any) -> Tree:
    """Row or rows `i` of every leaf.

    Example:
      >>> index({"w": torch.tensor([1, 2, 3])}, torch.tensor([2, 0]))
      {'w': tensor([3, 1])}
    """
    return map(lambda p: p[i], a)


def put(a: Tree, ids: Tensor, rows: Tree) -> Tree:
    """`a` with the rows `ids` replaced.

    Example:
      >>> put({"w": torch.zeros(3)}, torch.tensor([1]), {"w": torch.ones(1)})
      {'w': tensor([0., 1., 0.])}
    """
    return map(lambda old, new: old.index_copy(0, ids, new), a, rows)


def tile(a: Tree, n: int) -> Tree:
    """`n` copies of a tree along a new first axis.

    Example:
      >>> tile({"w": torch.tensor(7)}, 3)
      {'w': tensor([7, 7, 7])}
    """
    return map(lambda p: p.expand(n, *p.shape).clone(), a)


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """One flat dict with names like `a/b`: what files and wires carry.

    An empty dict would vanish from such names, so it leaves an empty tensor called `a/`.

    Example:
      >>> flatten({"a": {"b": torch.tensor(1)}})
      {'a/b': tensor(1)}
    """
    if not tree and prefix:
        return {prefix: torch.empty(0)}
    out: dict[str, Tensor] = {}
    for name, leaf in tree.items():
        if "/" in name or not name:
            raise ValueError(f"a tree's name may not be empty or contain '/': {name!r}")
        out |= (
            flatten(leaf, f"{prefix}{name}/") if isinstance(leaf, dict) else {prefix + name: leaf}
        )
    return out


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """The tree that `flatten` was given."""
    out: Tree = {}
    for name, leaf in flat.items():
        *path, last = name.split("/")
        node = out
        for part in path:
            node = node.setdefault(part, {})
        if last:
            node[last] = leaf
    return out
