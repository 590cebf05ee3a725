"""Convolutions as matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtailor.engine.loops.convolution import as_matmul
from fedtailor.engine.loops.operators import (
    WEIGHTS,
    ChannelsLast,
    MatmulConvolutions,
    SeesConvolutions,
)

KINDS = [
    {"kernel_size": 5},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "dilation": 2, "padding": 2},
    {"kernel_size": (2, 3), "stride": (3, 1), "padding": (0, 2), "bias": False},
]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_values_and_gradients_are_those_of_the_convolution(kind: dict, sliced: bool) -> None:  # type: ignore[type-arg]
    layer = nn.Conv2d(3, 4, **kind)
    params = {k: torch.randn(2, *v.shape) for k, v in layer.named_parameters()}
    x = torch.randn(2, 5, 3, 11, 12)

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        out = functional_call(layer, params, (x,))
        return (out * torch.arange(out.numel()).view_as(out)).sum() / out.numel()

    both = grad(loss, argnums=(0, 1))
    expected = vmap(both)(params, x)
    with MatmulConvolutions(sliced=sliced):
        found = vmap(both)(params, x)
        value = layer(x[0])
    torch.testing.assert_close(value, layer(x[0]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_by_hand() -> None:
    # 2 x 2 windows of 0..8, summed, plus one
    x = torch.arange(9.0).view(1, 1, 3, 3)
    found = as_matmul(x, torch.ones(1, 1, 2, 2), torch.ones(1))
    assert found.tolist() == [[[[9, 13], [21, 25]]]]


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, padding="same")]
)
def test_what_it_cannot_do_stays_a_convolution(layer: nn.Module) -> None:
    x = torch.randn(2, 4, 6, 6)
    layer = layer.double()  # made when this file was read
    with MatmulConvolutions(sliced=True):
        found = layer(x)
    assert torch.equal(found, layer(x))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_few_channels_are_products_with_channels_last(kind: dict) -> None:  # type: ignore[type-arg]
    layer = nn.Conv2d(1, 4, **kind)
    x = torch.randn(5, 1, 11, 12)

    def loss(x: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, params, (x,)).pow(3).sum()

    both = grad(loss, argnums=(0, 1))
    expected = both(x, dict(layer.named_parameters()))
    with SeesConvolutions() as look, ChannelsLast(compiled=True):
        found = both(x, dict(layer.named_parameters()))
        value = layer(x)
    assert not look.seen
    assert value.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(value, layer(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("compiled", [False, True])
def test_channels_last_is_a_matter_of_order_only(compiled: bool) -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2))
    x = torch.randn(2, 1, 9, 9)
    with ChannelsLast(compiled):
        found = net(x)
    torch.testing.assert_close(found, net(x), rtol=1e-12, atol=1e-12)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows, turned", [(9, False), (10, True), (32, True), (33, False)])
def test_large_layers_are_turned_round(rows: int, turned: bool, bias: bool) -> None:
    layer, x = nn.Linear(WEIGHTS // 128, 128, bias=bias), torch.randn(rows, WEIGHTS // 128)

    def loss(x: Tensor, params: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, params, (x,)).pow(3).sum()

    both = grad(loss, argnums=(0, 1))
    expected = both(x, dict(layer.named_parameters()))
    with ChannelsLast(compiled=True):
        found = both(x, dict(layer.named_parameters()))
        value = layer(x)
    assert value.is_contiguous() != turned
    torch.testing.assert_close(value, layer(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_small_layers_and_other_rows_stay_as_they_are() -> None:
    with ChannelsLast(compiled=True):
        assert nn.Linear(WEIGHTS // 128, 127)(torch.randn(10, WEIGHTS // 128)).is_contiguous()
        assert nn.Linear(WEIGHTS // 128, 128)(torch.randn(2, 10, WEIGHTS // 128)).is_contiguous()


def test_convolutions_are_seen() -> None:
    for net, x, has in (
        (nn.Conv1d(1, 1, 2), torch.zeros(1, 1, 4), True),
        (nn.Linear(4, 1), torch.zeros(1, 4), False),
    ):
        with SeesConvolutions() as look:
            net(x)
        assert look.seen is has
