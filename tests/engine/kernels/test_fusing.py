"""What networks write is fused where that is right, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from fedtailor.core import rng
from fedtailor.core.network.randomness import KeyedDraws
from fedtailor.engine.kernels.fusing import CannotFuse, FusedOperators
from fedtailor.engine.loops.recording import record

AT = (torch.randn(2, 5, 3, 3, 3).double(), torch.randn(2, 5).double(),
      torch.randn(2, 4, 3, 8, 8).double())  # fmt: skip
Net = Callable[[Tensor, Tensor, Tensor], Tensor]


def traced(net: Net) -> Any:
    with FusedOperators():
        recording = record(vmap(grad(lambda *at: (net(*at) ** 2).sum(), (0, 1, 2))), AT)
    recording.graph.eliminate_dead_code()
    return recording.written()


def fused(net: Net) -> list[tuple[bool, int]]:
    """ReLU and pool of each convolution, in a step that does what the plain one does."""
    graph = traced(net)
    expected = vmap(grad(lambda *at: (net(*at) ** 2).sum(), (0, 1, 2)))(*AT)
    for one, other in zip(graph(*AT), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    names = [n for n in graph.graph.nodes if str(n.target) == "fedtailor.convolve.default"]
    return [(n.args[4], n.args[5]) for n in names]


def conv(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return F.conv2d(x, w, b, padding=1)


@pytest.mark.parametrize(
    "relu",
    [F.relu, torch.relu, Tensor.relu, nn.ReLU()],
    ids=["functional", "torch", "tensor", "module"],
)
def test_convolution_relu_and_pooling_are_one(relu: Any) -> None:
    assert fused(lambda *at: F.max_pool2d(relu(conv(*at)), 2)) == [(True, 2)]
    assert fused(lambda *at: relu(nn.MaxPool2d(2)(conv(*at)))) == [(True, 2)]
    assert fused(lambda *at: relu(conv(*at))) == [(True, 1)]
    assert fused(lambda *at: torch.max_pool2d(conv(*at), 3)) == [(False, 3)]


def test_what_lies_between_may_be_used() -> None:
    def net(*at: Tensor) -> Tensor:
        y = conv(*at)
        return F.max_pool2d(F.relu(y), 2) + F.max_pool2d(y.tanh(), 2)

    assert fused(net) == [(False, 1), (True, 2)]


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.add_(1),
        lambda y: y[0].mul_(2),
        lambda y: F.leaky_relu(y, 0.5, True),
        lambda y: F.hardtanh(y, inplace=True),
        lambda y: y.__setitem__(0, 0.0),
        lambda y: y.__iadd__(1),
        lambda y: torch.add(y, 1, out=y),
        lambda y: y[1].relu_(),
    ],
    ids=["add_", "view", "flag", "named flag", "setitem", "iadd", "out", "relu_ of a view"],
)
def test_nothing_is_fused_with_what_was_changed_since(change: Any) -> None:
    def net(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        y = F.conv2d(x, w, b)
        change(y)
        return y.relu()

    at = [t[0] for t in AT]
    expected = net(*at)
    with FusedOperators():
        torch.testing.assert_close(net(*at), expected)


@pytest.mark.parametrize(
    "relu",
    [nn.ReLU(inplace=True), torch.relu_, Tensor.relu_],
    ids=["module", "torch", "tensor"],
)
def test_relu_in_place_is_fused_as_long_as_nobody_can_tell(relu: Any) -> None:
    assert fused(lambda *at: F.max_pool2d(relu(conv(*at)), 2)) == [(True, 2)]

    def sees(*at: Tensor) -> Tensor:
        y = conv(*at)
        return relu(y) + y

    def saw(*at: Tensor) -> Tensor:
        y = conv(*at)
        part = y[:, 1:]
        relu(y)
        return part.sum((1, 2, 3))

    with pytest.raises(CannotFuse):
        fused(sees)
    assert fused(saw) == [(False, 1)]


def test_results_can_be_viewed_as_if_their_channels_came_first() -> None:
    def net(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)
        return nn.functional.relu(y.view(y.size(0), -1) * 2, inplace=True)

    assert fused(net) == [(True, 2)]

    def changes(*at: Tensor) -> Tensor:
        y = conv(*at)
        y.view(-1)[1:].mul_(2)
        return y

    with pytest.raises(CannotFuse):
        fused(changes)


@pytest.mark.parametrize(
    ("net", "convolutions"),
    [
        (lambda *at: F.conv2d(at[2], at[0], at[1], dilation=2), 0),
        (lambda *at: F.max_pool2d(conv(*at), 2, stride=1), 1),
        (lambda *at: F.max_pool2d(conv(*at), 3, ceil_mode=True), 1),
        (lambda *at: F.max_pool2d(conv(*at), 2, padding=1), 1),
        (lambda *at: F.max_pool2d(conv(*at), (2, 1)), 1),
        (lambda *at: F.conv2d(at[2], at[0], at[1], padding="same"), 0),
        (lambda *at: F.conv2d(at[2], at[0], stride=2), 1),
    ],
    ids=["dilation", "overlap", "ceil", "padded pool", "oblong", "same", "stride"],
)
def test_what_no_kernel_does_is_left_as_it_is(net: Net, convolutions: int) -> None:
    assert fused(net) == [(False, 1)] * convolutions


def test_networks_that_draw_are_fused_too() -> None:
    def net(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        with KeyedDraws(rng.key(0)):
            return F.dropout(F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2), 0.5)

    assert fused(net) == [(True, 2)]


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({"reduction": "none"}, True),
        ({}, False),
        ({"reduction": "none", "label_smoothing": 0.1}, False),
    ],
)
def test_cross_entropy_of_rows(options: dict[str, Any], taken: bool) -> None:
    labels = torch.tensor([0, 2, 1])
    loss = lambda z: F.cross_entropy(z, labels, **options).sum()
    logits = torch.randn(2, 3, 4).double()
    with FusedOperators():
        graph = record(lambda z: [vmap(grad(loss))(z)], [logits]).written()
    assert ("row_losses" in graph.code) == taken
    torch.testing.assert_close(graph(logits)[0], vmap(grad(loss))(logits))


@pytest.mark.parametrize("size", [8, 1])  # a single pixel lies in either way
def test_normalisation_follows_a_convolution(size: int) -> None:
    scale = torch.rand(5).double()
    norms: list[Callable[[Tensor], Tensor]] = [
        lambda y: F.batch_norm(y, None, None, scale, scale, training=True),
        lambda y: F.batch_norm(y, torch.zeros_like(scale), scale, scale, scale),
        lambda y: F.group_norm(y, 5, scale, scale),
        lambda y: F.group_norm(input=y, num_groups=1),
        lambda y: F.instance_norm(F.interpolate(y, scale_factor=2.0)),
    ]
    for norm in norms:

        def net(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
            return norm(conv(w, b, x[..., :size, :size]))  # noqa: B023  # called at once

        assert fused(net) == [(False, 1)]
        with FusedOperators():  # as evaluation does, without a slope
            record(lambda *at: [vmap(net)(*at)], AT)
