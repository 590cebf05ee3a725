"""Normalisations of many clients: values, gradients and gradients of gradients, mapped or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtailor.engine.kernels.fusing import FusedOperators
from fedtailor.engine.kernels.launch import shapes_only
from fedtailor.engine.kernels.norms import fused_norm, norm_moments
from fedtailor.engine.loops.recording import record

EPS = 0.1


def fused(groups: int, relu: bool, pool: int) -> Callable[..., Tensor]:
    def loss(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        moments = norm_moments(x, groups)
        return (fused_norm(x, scale, shift, moments, groups, EPS, relu, pool) ** 3).sum() / 10

    return loss


def plain(groups: int, relu: bool, pool: int) -> Callable[..., Tensor]:
    def loss(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        if groups:
            y = F.group_norm(x, groups, scale, shift, EPS)
        else:
            y = F.batch_norm(x, None, None, scale, shift, training=True, eps=EPS)
        return (F.max_pool2d(y.relu() if relu else y, pool) ** 3).sum() / 10

    return loss


def twice(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Depends on a gradient, as second-order methods do."""
    return lambda *at: sum((g**2).sum() for g in grad(loss, (0, 1, 2))(*at)) / 100  # type: ignore[return-value]


def given(*clients: int) -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*clients, *shape, generator=make, dtype=torch.float64)
    return [2 * draw(4, 6, 7, 8) + 1, draw(6), draw(6)]


def agree(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("pool", [1, 2, 3])
@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
@pytest.mark.parametrize("groups", [0, 1, 3, 6])
def test_gradients_of_clients_with_scales_of_their_own(
    groups: int, relu: bool, pool: int, order: int
) -> None:
    found, expected = (
        vmap(grad(twice(loss) if order == 2 else loss, (0, 1, 2)))(*given(3))
        for loss in (fused(groups, relu, pool), plain(groups, relu, pool))
    )
    agree(found, expected)


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("axes", [(0, 0, None), (None, None, 0), (0, None, None), (None, 0, 0)])
def test_whatever_is_mapped(axes: tuple[Any, ...], groups: int) -> None:
    at = [t if axis is not None else t[0] for t, axis in zip(given(3), axes, strict=True)]
    for loss in (lambda f: f, twice):
        found, expected = (
            vmap(grad(loss(f(groups, True, 2)), (0, 1, 2)), axes)(*at) for f in (fused, plain)
        )
        agree(found, expected)


@pytest.mark.parametrize("groups", [0, 2])
def test_nested_mappings_become_one_axis(groups: int) -> None:
    found, expected = (
        vmap(vmap(grad(f(groups, True, 2), (0, 1, 2))))(*given(3, 2)) for f in (fused, plain)
    )
    agree(found, expected)


def operators(recording: Any) -> list[str]:
    return [
        node.target.name().partition("::")[2]
        for node in recording.graph.nodes
        if getattr(node.target, "namespace", "") == "fedtailor"
    ]


def network(norm: nn.Module, after: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), norm, after, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 2)
    ).double()


ONCE = ["convolve", "norm_moments", "normalise", "norm_gradient", "weight_gradient"]


@pytest.mark.parametrize("after", [nn.ReLU(), nn.ReLU(inplace=True)], ids=["relu", "in place"])
@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm2d(6),
        lambda: nn.BatchNorm2d(6, track_running_stats=False),
        lambda: nn.GroupNorm(2, 6),
    ],
    ids=["running", "batch", "group"],
)
def test_norm_relu_and_pooling_are_one_and_running_moments_follow(
    norm: Callable[[], nn.Module], after: nn.Module
) -> None:
    torch.manual_seed(0)
    net = network(norm(), after)
    clients = 3
    params = {k: torch.randn(clients, *p.shape).double() for k, p in net.named_parameters()}
    buffers = {
        k: torch.rand(clients, *p.shape).double() if p.is_floating_point() else p.repeat(clients)
        for k, p in net.named_buffers()
    }
    x = torch.randn(clients, 4, 3, 6, 6).double()

    def step(params: Any, buffers: Any, x: Tensor) -> Any:
        def loss(params: Any, buffers: Any) -> Any:
            buffers = {k: p.clone() for k, p in buffers.items()}
            return (functional_call(net, (params, buffers), (x,)) ** 2).sum(), buffers

        slopes, after = grad(loss, has_aux=True)(params, buffers)
        return [*slopes.values(), *after.values()]

    flat = [*params.values(), *buffers.values(), x]

    def whole(*flat: Tensor) -> Any:
        named = iter(flat)
        own = {k: next(named) for k in params}
        return vmap(step)(own, {k: next(named) for k in buffers}, next(named))

    expected = whole(*flat)
    with FusedOperators(), shapes_only():
        recording = record(whole, flat)
    recording.graph.eliminate_dead_code()
    assert operators(recording) == ONCE
    agree(recording.written()(*flat), expected)


def test_what_is_left_to_torch() -> None:
    x, scale, shift = given()
    one = x[:1, :, :1, :1]
    with FusedOperators():
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            F.batch_norm(one, None, None, scale, shift, training=True)
        with pytest.raises(RuntimeError, match="divisible"):
            F.group_norm(x, 4, scale, shift)
        for norm in (
            lambda: F.batch_norm(x, scale * 0, scale**2, scale, shift),
            lambda: F.batch_norm(x, None, None, None, shift, training=True),
            lambda: F.batch_norm(x.flatten(2), None, None, scale, shift, training=True),
            lambda: F.group_norm(x, 2),
        ):
            recording = record(lambda x: [norm()], [x])  # noqa: B023  # called at once
            assert not operators(recording)
