"""Recurrent layers written out are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.core import rng
from fedtailor.core.network.randomness import KeyedDraws

pytestmark = pytest.mark.usefixtures("float64")


def flat(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else [t for part in found for t in flat(part)]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.LSTM(3, 5),
        lambda: nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True),
        lambda: nn.LSTM(3, 7, 2, bias=False, proj_size=4),
        lambda: nn.GRU(3, 5, 2, bidirectional=True),
        lambda: nn.GRU(3, 5, bias=False, batch_first=True),
        lambda: nn.RNN(3, 5, 2),
        lambda: nn.RNN(3, 5, nonlinearity="relu", bidirectional=True),
    ],
)
def test_layers_are_torch_s(build: Callable[[], nn.Module]) -> None:
    layer, x = build(), torch.randn(4, 6, 3)
    with KeyedDraws(rng.key(0)):
        ours = flat(layer(x))
    theirs = flat(layer(x))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    begun = flat(layer(x)[1])  # and from a state that is not zero
    state = tuple(begun) if len(begun) > 1 else begun[0]
    with KeyedDraws(rng.key(0)):
        ours = flat(layer(x, state))
    for one, other in zip(ours, flat(layer(x, state)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_are_torch_s(kind: Callable[[int, int], nn.Module]) -> None:
    cell, x = kind(3, 5), torch.randn(6, 3)
    with KeyedDraws(rng.key(0)):
        ours = flat(cell(x))
    for one, other in zip(ours, flat(cell(x)), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_between_layers_is_keyed() -> None:
    layer, x = nn.LSTM(3, 5, 2, dropout=0.5), torch.randn(4, 6, 3)
    said = []
    for key in (0, 0, 1):
        with KeyedDraws(rng.key(key)):
            said.append(layer(x)[0])
    assert torch.equal(said[0], said[1]) and not torch.equal(said[0], said[2])
    layer.eval()
    with KeyedDraws(rng.key(0)):
        torch.testing.assert_close(layer(x)[0], layer(x)[0])
