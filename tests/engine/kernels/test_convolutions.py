"""Convolutions of many clients: values, gradients and gradients of gradients, mapped or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedtailor.engine.kernels.convolutions import fused_convolution
from fedtailor.engine.kernels.launch import make_ready, shapes_only
from fedtailor.engine.loops.recording import record
from tests.engine.kernels.shapes import SHAPES, Shape


def fused(shape: Shape, relu: bool) -> Callable[..., Tensor]:
    return lambda w, b, x: (
        (fused_convolution(x, w, b, shape.slide, relu, shape.pool) ** 3).sum() / 10
    )


def plain(shape: Shape, relu: bool) -> Callable[..., Tensor]:
    def loss(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        y = torch.conv2d(x, w, b, shape.slide.stride, shape.slide.padding)
        y = y.relu() if relu else y
        return (F.max_pool2d(y, shape.pool) ** 3).sum() / 10

    return loss


def twice(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Depends on a gradient, as second-order methods do."""
    return lambda *at: sum((g**2).sum() for g in grad(loss, (0, 1, 2))(*at)) / 100  # type: ignore[return-value]


def given(shape: Shape) -> list[Tensor]:
    x, w, b = shape.tensors()
    return [w, b, x.permute(0, 1, 4, 2, 3)]


def agree(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_clients_with_weights_of_their_own(name: str, relu: bool, order: int) -> None:
    shape = SHAPES[name]
    found, expected = (
        vmap(grad(twice(loss) if order == 2 else loss, (0, 1, 2)))(*given(shape))
        for loss in (fused(shape, relu), plain(shape, relu))
    )
    agree(found, expected)


@pytest.mark.parametrize("axes", [(0, 0, None), (None, None, 0), (0, None, 0), (None, 0, 0)])
def test_whatever_is_mapped(axes: tuple[Any, ...]) -> None:
    shape = SHAPES["few channels, pooled"]
    at = [t if axis is not None else t[0] for t, axis in zip(given(shape), axes, strict=True)]
    for loss in (lambda f: f, twice):
        found, expected = (
            vmap(grad(loss(f(shape, True)), (0, 1, 2)), axes)(*at) for f in (fused, plain)
        )
        agree(found, expected)


@pytest.mark.parametrize("inner", [(0, 0, None), (None, None, 0), (0, 0, 0)])
def test_nested_mappings_become_one_axis(inner: tuple[Any, ...]) -> None:
    """As candidates of each client are, or single examples of each."""
    shape = SHAPES["one channel"]
    draw = lambda t, axis: torch.randn(3, *([2] if axis == 0 else []), *t.shape[1:]).double()
    at = [draw(t, axis) for t, axis in zip(given(shape), inner, strict=True)]
    found, expected = (
        vmap(vmap(grad(f(shape, True), (0, 1, 2)), inner))(*at) for f in (fused, plain)
    )
    agree(found, expected)


def test_without_mappings_and_without_bias() -> None:
    shape = SHAPES["strided"]
    w, _, x = (t[0] for t in given(shape))
    found = fused_convolution(x, w, None, shape.slide)
    torch.testing.assert_close(
        found, torch.conv2d(x, w, None, shape.slide.stride, shape.slide.padding)
    )
    agree(
        grad(lambda w: twice(lambda w, b, x: fused(shape, True)(w, None, x * b))(w, w.sum(), x))(w)[
            None
        ],
        grad(lambda w: twice(lambda w, b, x: plain(shape, True)(w, None, x * b))(w, w.sum(), x))(w)[
            None
        ],
    )


def operators(graph: Any) -> list[str]:
    return [
        node.target.name().partition("::")[2]
        for node in graph.graph.nodes
        if getattr(node.target, "namespace", "") == "fedtailor"
    ]


def test_a_step_is_traced_without_computing_and_kernels_are_made_once() -> None:
    shape = SHAPES["few channels, pooled"]
    at = given(shape)
    step = vmap(grad(fused(shape, True), (0, 1, 2)))
    with shapes_only():
        graph = record(step, at).written()
    assert operators(graph) == ["convolve", "spread", "input_gradient", "weight_gradient"]
    agree(graph(*at), step(*at))
    assert make_ready(graph) == 4
    twice_the_same = record(lambda *at: (*step(*at), *step(*at)), at).written()
    assert len(operators(twice_the_same)) == 8 and make_ready(twice_the_same) == 4
