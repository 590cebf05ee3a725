"""Lets a traced step write its results where its inputs lie.

What changes is mostly an old value plus a multiple of a gradient. Each term of that gradient is
added in place: a matrix product by itself, a multiple of a tensor without being written down first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from fedtailor.engine.kernels.outline import outline_of
from fedtailor.engine.loops.torch_internals import is_view

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.reshape.default)
_FLIPS = (aten.transpose.int, aten.t.default)
_PRODUCTS = {aten.bmm.default: "baddbmm_", aten.mm.default: "addmm_"}


@dataclass(frozen=True)
class Update:
    """An update `leaf += scale (left @ right)` that is left to one matrix product in place.

    The gradient itself never exists.
    """

    leaf: int  # which tensor
    name: str  # of the operator
    scale: float = 1.0


def write_in_place(graph: fx.Graph, carried: int) -> tuple[Update, ...]:
    """Lets the graph write its results into its first inputs; returns what it leaves to others.

    What is read while they are written must be none of them: it may be changed by then.
    """
    nodes = list(graph.nodes)
    changed = [node for node in nodes if node.op == "placeholder"][:carried]
    output = nodes[-1]
    updates: list[Update] = []
    factors: list[list[fx.Node]] = []
    writes: list[_Write] = []
    with graph.inserting_before(output):
        for i, (old, value) in enumerate(zip(changed, output.args[0], strict=True)):
            if value is old:
                continue
            change = _change(old, value)
            products = [_product(term, old) for term in change.terms] if change else []
            if change is None or not _can_add(change, products):
                writes.append(_Write(aten.copy_.default, (old, value)))
                continue
            for term, product in zip(change.terms, products, strict=True):
                if product is None:
                    writes.append(_added(old, term, change.scale, changed))
                    continue
                scale = change.scale if isinstance(change.scale, float) else 1.0
                updates.append(Update(i, _PRODUCTS[product.target], scale))  # type: ignore[index]
                factors.append(_factors(graph, product, change))
        apart: list[fx.Node] = []
        by_then = {write.args[0] for write in writes}  # what has changed when a product is added
        for update, parts in zip(updates, factors, strict=True):
            by_then.add(changed[update.leaf])
            apart += [_apart(graph, part, by_then) for part in parts]
        ready = [_with_copies(graph, write, changed) for write in writes]
        for write in _together(ready):  # when all values are made
            graph.call_function(*write)
    output.args = (apart,)
    return tuple(updates)


class _Change(NamedTuple):
    """A new value `old + scale Σ terms`, where `active`."""

    terms: list[fx.Node]
    scale: Any
    active: fx.Node | None


class _Write(NamedTuple):
    """An operator that changes its first argument."""

    operator: Any
    args: tuple[Any, ...]
    named: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it


def _change(old: fx.Node, value: fx.Node) -> _Change | None:
    """How a new value comes from the old one, if by a multiple of a gradient."""
    active: Any = None
    if value.target is aten.where.self and value.args[2] is old:
        active, value = value.args[0], value.args[1]  # type: ignore[assignment]
        if any(size != 1 for size in _shape(active)[-2:]):
            return None
    if value.target is not aten.add.Tensor or value.kwargs or value.args[0] is not old:
        return None
    change = value.args[1]
    if not isinstance(change, fx.Node) or change.target is not aten.mul.Tensor:
        return None
    gradient, scale = change.args
    if isinstance(scale, fx.Node) and not _is_of_clients(scale):
        gradient, scale = scale, gradient
    if isinstance(scale, fx.Node) and not _is_of_clients(scale):
        return None
    if not isinstance(gradient, fx.Node) or _shape(gradient) != _shape(old):
        return None
    return _Change(_terms(gradient), scale, active)


def _is_of_clients(scale: fx.Node) -> bool:
    """Whether there is one number for all, or one for each client."""
    return all(size == 1 for size in _shape(scale)[1:])


def _terms(gradient: fx.Node) -> list[fx.Node]:
    """What a gradient is the sum of, as far as nobody else needs the sum."""
    parts = gradient.args[:2]
    if gradient.target is aten.add.Tensor and not gradient.kwargs and len(gradient.users) == 1:
        nodes = [part for part in parts if isinstance(part, fx.Node)]
        if len(nodes) == 2 and all(_shape(node) == _shape(gradient) for node in nodes):
            return [term for node in nodes for term in _terms(node)]
    return [gradient]


def _can_add(change: _Change, products: Sequence[fx.Node | None]) -> bool:
    """Whether all terms can be added in place."""
    if change.active is not None:
        return len(products) == 1 and products[0] is not None and _scales_factor(change.scale)
    return _scales_factor(change.scale) or not any(products)


def _scales_factor(scale: Any) -> bool:
    """Whether the left factor of a product can take the scale along."""
    return not isinstance(scale, fx.Node) or _shape(scale).numel() == 1 or len(_shape(scale)) == 3


def _added(old: fx.Node, term: fx.Node, scale: Any, changed: Sequence[fx.Node]) -> _Write:
    """`old += scale term`, without writing `scale term` or a product of two tensors down."""
    if isinstance(scale, fx.Node):
        return _Write(aten.addcmul_.default, (old, term, scale))
    parts = term.args if term.target is aten.mul.Tensor and len(term.users) == 1 else ()
    if parts and all(
        isinstance(part, fx.Node) and _root(part) not in changed and _kind(part) == _kind(old)
        for part in parts
    ):
        return _Write(aten.addcmul_.default, (old, *parts), {"value": scale})
    return _Write(aten.add_.Tensor, (old, term), {"alpha": scale})


def _with_copies(graph: fx.Graph, write: _Write, changed: Sequence[fx.Node]) -> _Write:
    old, *read = write.args
    return write._replace(args=(old, *(_apart(graph, node, changed) for node in read)))


def _together(writes: Sequence[_Write]) -> list[_Write]:
    """Additions of the same multiple as one operator: a launch instead of one for each."""
    sums: dict[tuple[float, int], list[tuple[Any, ...]]] = {}
    others = []
    met: dict[fx.Node, int] = {}
    for write in writes:
        if write.operator is aten.add_.Tensor:
            old = write.args[0]
            met[old] = met.get(old, 0) + 1  # one operator must not change a tensor twice
            sums.setdefault((write.named["alpha"], met[old]), []).append(write.args)
        else:
            others.append(write)
    for (number, _), pairs in sums.items():
        both: tuple[Any, ...] = tuple(list(part) for part in zip(*pairs, strict=True))
        others.append(_Write(aten._foreach_add_.List, both, {"alpha": number}))
    return others


def _apart(graph: fx.Graph, node: fx.Node, changed: Collection[fx.Node]) -> fx.Node:
    """A node, copied where it is an input that changes or a view of one."""
    return graph.call_function(aten.clone.default, (node,)) if _root(node) in changed else node


def _root(node: Any) -> Any:
    """What a node is a view of."""
    while isinstance(node, fx.Node) and (node.target in _VIEWS or is_view(node)):
        node = node.args[0]
    return node


def _shape(node: fx.Node) -> torch.Size:
    return outline_of(node).shape


def _kind(node: fx.Node) -> torch.dtype:
    return outline_of(node).dtype


def _factors(graph: fx.Graph, product: fx.Node, change: _Change) -> list[fx.Node]:
    """What is left to multiply.

    Where nothing is to change both are zero: zero times a number that is not finite would not be.
    """
    left: Any = product.args[0]
    right: Any = product.args[1]
    if not isinstance(change.scale, float):
        times = aten.mul.Tensor if isinstance(change.scale, fx.Node) else aten.mul.Scalar
        left = graph.call_function(times, (left, change.scale))
    if change.active is None:
        return [left, right]
    return [
        graph.call_function(aten.where.ScalarOther, (change.active, factor, 0.0))
        for factor in (left, right)
    ]


def _product(term: fx.Node, old: fx.Node) -> fx.Node | None:
    """The matrix product that a term is, if it is one."""
    product = _through(term)
    if product is None or product.target not in _PRODUCTS or _shape(product) != _shape(old):
        return None
    found: fx.Node = product
    return found


def _through(node: Any) -> Any:
    """The node behind views that change nothing and transpositions that undo each other."""
    flips = 0
    while node.target in (*_VIEWS, *_FLIPS):
        before = node.args[0]
        if node.target in _FLIPS:
            axes = [axis % len(_shape(node)) for axis in node.args[1:]] or [0, 1]
            if sorted(axes) != [len(_shape(node)) - 2, len(_shape(node)) - 1]:
                return None
            flips += 1
        elif _shape(node) != _shape(before):
            return None
        node = before
    return node if flips % 2 == 0 else None
