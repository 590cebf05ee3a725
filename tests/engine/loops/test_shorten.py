"""Fewer operators, the same numbers."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from fedtailor.engine.loops.shorten import shorten_graph
from fedtailor.engine.loops.torch_internals import make_graph
from fedtailor.engine.loops.tracing import trace

aten = torch.ops.aten


def shortened(fn, *tensors: Tensor) -> Counter:
    """How often each operator is left; the graph must give what the function gives."""
    graph = make_graph(lambda *a: [fn(*a)], [t.clone() for t in tensors])
    shorten_graph(graph)
    graph.recompile()
    assert torch.equal(graph(*tensors)[0], fn(*tensors))
    return Counter(n.target for n in graph.graph.nodes if n.op == "call_function")


def test_times_one() -> None:
    x = torch.arange(3.0)
    assert not shortened(lambda x: torch.ops.aten.mul.Scalar(x, 1) + 2, x)[aten.mul.Scalar]
    assert shortened(lambda x: torch.ops.aten.mul.Scalar(x, 3) + 2, x)[aten.mul.Scalar]
    whole = torch.arange(3)  # times 1.0 makes them fractions
    assert shortened(lambda x: torch.mul(x, 1.0) + 2, whole)[aten.mul.Tensor]


def test_the_only_part_of_an_axis() -> None:
    g = torch.arange(6.0).view(2, 3)
    back = lambda g: aten.select_backward(g, [2, 1, 3], 1, 0).view(6)
    assert shortened(back, g) == {aten.unsqueeze.default: 1, aten.view.default: 1}
    # what lies otherwise is copied: it could not be viewed
    assert shortened(lambda g: aten.select_backward(g.t(), [3, 1, 2], 1, 0).view(6), g)[
        aten.clone.default
    ]
    assert shortened(lambda g: aten.select_backward(g, [2, 2, 3], 1, 0), g) == {
        aten.select_backward.default: 1
    }


def test_whole_numbers_are_divided_as_they_are() -> None:
    x = torch.arange(5, dtype=torch.uint8)
    assert not shortened(lambda x: x.float() / 127.5, x)[aten._to_copy.default]
    assert shortened(lambda x: x.double() / 127.5, x)[aten._to_copy.default]
    assert shortened(lambda x: x.float() * 127.5, x)[aten._to_copy.default]


def test_updates_of_one_multiple_are_one_operator() -> None:
    def step(a, b, c, g):
        return a + 0.5 * g, b + 0.5 * (g + 1), c + 0.25 * g

    start = [torch.full((2,), float(i)) for i in range(4)]
    expected = step(*start)
    program = trace(step, start, 3)
    found = Counter(n.target for n in program.body.graph.nodes if n.op == "call_function")
    assert found[aten._foreach_add_.List] == 2 and not found[aten.add_.Tensor]
    program(*start)
    for one, other in zip(start, expected, strict=False):
        assert torch.equal(one, other)


def test_a_product_takes_its_scale_along() -> None:
    w, x, g = torch.ones(2, 3), torch.arange(8.0).view(4, 2), torch.arange(12.0).view(4, 3)
    program = trace(lambda w, x, g: (w + -0.5 * (x.t() @ g),), [w, x, g], 1)
    assert [(u.name, u.scale) for u in program.updates] == [("addmm_", -0.5)]
    expected = w - 0.5 * (x.t() @ g)
    program(w, x, g)
    assert torch.equal(w, expected)
