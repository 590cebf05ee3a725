"""Fewer operators for the same numbers: each costs a launch, whatever it computes.

Half of the steps of clients with unequal amounts of data have few clients left; these take as long
as it takes to launch what they are made of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fedtailor.engine.kernels.outline import outline_of

aten = torch.ops.aten
_VIEWS = (
    aten.expand.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.permute.default,
    aten.select.int,
)


def shorten_graph(graph: fx.Graph) -> None:
    """Replaces what can be said with fewer operators; the graph must have no side effects yet.

    Example:
      >>> from fedtailor.engine.loops.recording import record
      >>> graph, _ = record(lambda x: [torch.mul(x, 1.0) + x], [torch.zeros(2)])
      >>> shorten_graph(graph)
      >>> [str(n.target) for n in graph.nodes if n.op == "call_function"]
      ['aten.add.Tensor']
    """
    for node in list(graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            rule(graph, node)
    graph.eliminate_dead_code()


def _times_one(graph: fx.Graph, node: fx.Node) -> None:
    """`x * 1`, as products that add a bias leave it."""
    x, factor = node.args[:2]
    if not isinstance(factor, (int, float)) or factor != 1 or not isinstance(x, fx.Node):
        return
    if outline_of(x).dtype == outline_of(node).dtype:
        node.replace_all_uses_with(x)


def _multiplied(graph: fx.Graph, node: fx.Node) -> None:
    _times_one(graph, node)
    _scaled_by_client(graph, node)


def _selected(graph: fx.Graph, node: fx.Node) -> None:
    """The gradient of the only part of an axis: nothing around it has to be zero."""
    gradient, sizes, axis, _ = node.args
    if sizes[axis] != 1:  # type: ignore[index]
        return
    with graph.inserting_before(node):
        whole = graph.call_function(aten.unsqueeze.default, (gradient, axis))
        whole.meta = dict(node.meta)
        if not outline_of(gradient).contiguous:  # type: ignore[arg-type]
            # in one piece, as it was: others may view it in another shape
            whole = graph.call_function(
                aten.clone.default, (whole,), {"memory_format": torch.contiguous_format}
            )
            whole.meta = dict(node.meta)
    node.replace_all_uses_with(whole)


def _divided(graph: fx.Graph, node: fx.Node) -> None:
    """Whole numbers that are divided need not be made to fractions before."""
    made, by = node.args[:2]
    if not isinstance(made, fx.Node) or made.target is not aten._to_copy.default:
        return
    x: Any = made.args[0]
    wanted = {"dtype": torch.get_default_dtype()}
    if isinstance(by, float) and dict(made.kwargs) == wanted and _is_whole(x):
        node.args = (x, by)


def _to_the_first(graph: fx.Graph, node: fx.Node) -> None:
    """`x ** 1`, as the slope of a square leaves it."""
    x, power = node.args
    if power == 1 and isinstance(x, fx.Node) and outline_of(x).dtype == outline_of(node).dtype:
        node.replace_all_uses_with(x)


def _scaled_by_client(graph: fx.Graph, node: fx.Node) -> None:
    """`s * (number * x)`, with one s for each client: the number goes to the few."""
    for few, many in (node.args[:2], node.args[1::-1]):
        if not isinstance(many, fx.Node) or many.target is not aten.mul.Scalar:
            continue
        if not isinstance(few, fx.Node) or few.target is not aten.expand.default:
            continue
        if _source(few).op != "call_function":  # nothing may stand among the inputs
            continue
        x, number = many.args
        if len(many.users) > 1 or outline_of(many).dtype != outline_of(x).dtype:  # type: ignore[arg-type]
            continue
        node.args = (_times(graph, few, number), x)
        return


def _source(node: fx.Node) -> fx.Node:
    while node.target in _VIEWS:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _times(graph: fx.Graph, wide: fx.Node, number: Any) -> fx.Node:
    """A view of few numbers, of their multiple: these are multiplied once for all such views."""
    if wide.target not in _VIEWS:
        for user in wide.users:
            if user.target is aten.mul.Scalar and user.args == (wide, number):
                return user
        with graph.inserting_after(wide):
            found = graph.call_function(aten.mul.Scalar, (wide, number))
    else:
        inner = _times(graph, wide.args[0], number)  # type: ignore[arg-type]
        with graph.inserting_after(wide):
            found = graph.call_function(wide.target, (inner, *wide.args[1:]), wide.kwargs)
    found.meta = dict(wide.meta)
    return found


def _summed_squares(graph: fx.Graph, node: fx.Node) -> None:
    """The sum of squares: a norm reads its tensor once and writes nothing of its size down."""
    square = node.args[0]
    if not isinstance(square, fx.Node) or square.target is not aten.pow.Tensor_Scalar:
        return
    x, power = square.args
    if power != 2 or len(square.users) > 1 or node.kwargs or _is_whole(x):  # type: ignore[arg-type]
        return
    with graph.inserting_before(node):
        norm = graph.call_function(aten.linalg_vector_norm.default, (x, 2, *node.args[1:]))
        norm.meta = dict(node.meta)
        found = graph.call_function(aten.pow.Tensor_Scalar, (norm, 2))
        found.meta = dict(node.meta)
    node.replace_all_uses_with(found)


def _is_whole(node: fx.Node) -> bool:
    dtype = outline_of(node).dtype
    return not dtype.is_floating_point and not dtype.is_complex


_RULES = {
    aten.mul.Scalar: _times_one,
    aten.mul.Tensor: _multiplied,
    aten.select_backward.default: _selected,
    aten.div.Tensor: _divided,
    aten.pow.Tensor_Scalar: _to_the_first,
    aten.sum.dim_IntList: _summed_squares,
}
