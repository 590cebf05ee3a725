"""Fewer operators for the same numbers: each costs a launch, whatever it computes.

Half of the steps of clients with unequal amounts of data have few clients left; these take as long
as it takes to launch what they are made of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def shorten_graph(graph: fx.GraphModule) -> None:
    """Replaces what can be said with fewer operators; the graph must have no side effects yet.

    Example:
      >>> from fedtailor.engine.loops.torch_internals import make_graph
      >>> graph = make_graph(lambda x: [torch.mul(x, 1.0) + x], [torch.zeros(2)])
      >>> shorten_graph(graph)
      >>> [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
      ['aten.add.Tensor']
    """
    for node in list(graph.graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            rule(graph.graph, node)
    graph.graph.eliminate_dead_code()


def _times_one(graph: fx.Graph, node: fx.Node) -> None:
    """`x * 1`, as products that add a bias leave it."""
    x, factor = node.args[:2]
    if not isinstance(factor, (int, float)) or factor != 1 or not isinstance(x, fx.Node):
        return
    if x.meta["val"].dtype == node.meta["val"].dtype:
        node.replace_all_uses_with(x)


def _selected(graph: fx.Graph, node: fx.Node) -> None:
    """The gradient of the only part of an axis: nothing around it has to be zero."""
    gradient, sizes, axis, _ = node.args
    if sizes[axis] != 1:  # type: ignore[index]
        return
    with graph.inserting_before(node):
        whole = graph.call_function(aten.unsqueeze.default, (gradient, axis))
        whole.meta = dict(node.meta)
        if not gradient.meta["val"].is_contiguous():  # type: ignore[union-attr]
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
    if isinstance(by, float) and dict(made.kwargs) == wanted and _is_whole(x.meta["val"]):
        node.args = (x, by)


def _is_whole(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex()


_RULES = {
    aten.mul.Scalar: _times_one,
    aten.mul.Tensor: _times_one,
    aten.select_backward.default: _selected,
    aten.div.Tensor: _divided,
}
