"""Fewer operators, the same numbers."""

from __future__ import annotations

from collections import Counter
from functools import partial

import torch
from torch import Tensor

from fedtailor.engine.loops.recording import record
from fedtailor.engine.loops.shorten import shorten_graph

aten = torch.ops.aten


def shortened(fn, *tensors: Tensor, rounded: bool = False) -> Counter:
    """How often each operator is left; the graph must give what the function gives.

    To the last bit, or, if `rounded`, up to rounding.
    """
    recording = record(lambda *a: [fn(*a)], [t.clone() for t in tensors])
    shorten_graph(recording.graph)
    found, expected = recording.written()(*tensors)[0], fn(*tensors)
    torch.testing.assert_close(found, expected)
    assert rounded or torch.equal(found, expected)
    return Counter(n.target for n in recording.graph.nodes if n.op == "call_function")


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


close = partial(shortened, rounded=True)


def test_the_first_power_is_the_number_itself() -> None:
    x = torch.arange(3.0)
    assert not shortened(lambda x: x.pow(1) + 2, x)[aten.pow.Tensor_Scalar]
    whole = torch.arange(3)  # to the power of 1.0 they are fractions
    assert shortened(lambda x: x.pow(1.0) + 2, whole)[aten.pow.Tensor_Scalar]


def test_a_sum_of_squares_writes_no_squares() -> None:
    x = torch.randn(4, 3, 2)
    left = close(lambda x: x.pow(2).sum((1, 2)), x)
    assert left[aten.linalg_vector_norm.default] == 1 and not left[aten.sum.dim_IntList]
    kept = close(lambda x: x.pow(2).sum(1, keepdim=True), x)
    assert kept[aten.linalg_vector_norm.default] == 1
    both = close(lambda x: x.pow(2).sum((1, 2)) + x.pow(2)[:, 0, 0], x)
    assert both[aten.linalg_vector_norm.default] == 1  # each has squares of its own
    shared = close(lambda x: (square := x.pow(2)).sum((1, 2)) + square[:, 0, 0], x)
    assert not shared[aten.linalg_vector_norm.default]
    assert not close(lambda x: x.pow(3).sum((1, 2)), x)[aten.linalg_vector_norm.default]
    assert not close(lambda x: x.pow(2).sum(1), torch.arange(6).view(2, 3))[
        aten.linalg_vector_norm.default
    ]


def test_a_number_goes_to_the_few() -> None:
    few, x, y = torch.randn(4), torch.randn(4, 3), torch.randn(4, 5)

    def pulled(few: Tensor, x: Tensor, y: Tensor) -> Tensor:
        made = few + 1
        one = made.view(4, 1).expand(4, 3) * aten.mul.Scalar(x, 2.0)
        other = aten.mul.Scalar(y, 2.0) * made.view(4, 1).expand(4, 5)
        return torch.cat([one, other], 1)

    assert close(pulled, few, x, y)[aten.mul.Scalar] == 1  # once for both
    graph, _ = record(lambda *a: [pulled(*a)], [few, x, y])
    shorten_graph(graph)
    (scaled,) = [n for n in graph.nodes if n.target is aten.mul.Scalar]
    assert scaled.meta["outline"].shape == (4,)
    # what is given stands first: nothing is put among it
    given = lambda few, x: few.view(4, 1).expand(4, 3) * aten.mul.Scalar(x, 2.0)
    assert close(given, few, x)[aten.mul.Scalar] == 1
