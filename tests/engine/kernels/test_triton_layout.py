"""What lies otherwise for products, against plain torch; see `test_triton_convolution`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.engine.kernels.reference import plain_convolution, plain_spread
from tests.engine.kernels.device import DEVICE
from tests.engine.kernels.shapes import SHAPES


def kernels() -> Any:
    from fedtailor.engine.kernels import triton_layout

    return triton_layout


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_laid_out(name: str) -> None:
    w = SHAPES[name].tensors()[1].to(DEVICE)
    rows, columns = kernels().lay_rows(w), kernels().lay_columns(w)
    clients, out = w.shape[:2]
    assert torch.equal(rows, w.permute(0, 3, 4, 2, 1).reshape(clients, -1, out))
    assert torch.equal(columns, w.permute(0, 3, 4, 1, 2).reshape(clients, -1, w.shape[2]))


@pytest.mark.parametrize("name", SHAPES)
def test_spread(name: str) -> None:
    shape = SHAPES[name]
    y, place = plain_convolution(*shape.tensors(), shape.slide, True, shape.pool)
    g = torch.randn_like(y).float()
    size = shape.slide.places(*shape.size)
    found = kernels().launch_spread(g.to(DEVICE), place.to(DEVICE), shape.pool, size)
    assert torch.equal(found.cpu(), plain_spread(g, place, shape.pool, size))


@pytest.mark.parametrize("chosen", [False, True], ids=["linear", "pooled"])
@pytest.mark.parametrize("name", SHAPES)
def test_spread_across(name: str, chosen: bool) -> None:
    shape = SHAPES[name]
    pool = shape.pool if chosen else 1
    y, place = plain_convolution(*shape.tensors(), shape.slide, chosen, pool)
    g, size = torch.randn_like(y).float(), shape.slide.places(*shape.size)
    found = kernels().spread_across(g.to(DEVICE), place.to(DEVICE), pool, size).cpu()
    spread = plain_spread(g, place, pool, size) if chosen else g
    whole = spread.flatten(1, 3).mT
    assert torch.equal(found[..., : whole.shape[-1]], whole)
    assert found.shape[-1] % kernels().PIECE == 0 and not found[..., whole.shape[-1] :].any()
