"""The kernels against plain torch; on a GPU, or anywhere in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/engine/kernels
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.engine.kernels.reference import (
    Slide,
    plain_convolution,
    plain_cross_entropy,
    plain_input_gradient,
    plain_spread,
    plain_weight_gradient,
)
from tests.engine.kernels.device import DEVICE, INTERPRETED, close
from tests.engine.kernels.shapes import SHAPES, Shape


def kernels() -> Any:
    from fedtailor.engine.kernels import triton_convolution

    return triton_convolution


def given(shape: Shape, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors for kernels, and the same numbers in float64."""
    tensors = [t.to(DEVICE) for t in shape.tensors(dtype)]
    return tensors, [t.double().cpu() for t in tensors]


@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("name", SHAPES)
def test_forward(name: str, biased: bool, relu: bool) -> None:
    shape = SHAPES[name]
    (x, w, b), (x64, w64, b64) = given(shape)
    bias, bias64 = (b, b64) if biased else (None, None)
    y, place = kernels().launch_convolution(x, w, bias, shape.slide, relu, shape.pool, tf32=False)
    expected, where = plain_convolution(x64, w64, bias64, shape.slide, relu, shape.pool)
    close(y, expected)
    assert place.shape == where.shape
    assert torch.equal(place.cpu(), where)


@pytest.mark.parametrize("name", SHAPES)
def test_gradient_of_images(name: str) -> None:
    shape = SHAPES[name]
    (_, w, _), (x64, w64, b64) = given(shape)
    y, _ = plain_convolution(x64, w64, b64, shape.slide, False, 1)
    g = torch.randn_like(y)
    found = kernels().launch_input_gradient(
        g.float().to(DEVICE), w, shape.slide, shape.size, tf32=False
    )
    close(found, plain_input_gradient(g.float().double(), w64, shape.slide, shape.size))


@pytest.mark.parametrize("programs", [1, 400])
@pytest.mark.parametrize("chosen", [False, True], ids=["linear", "pooled"])
@pytest.mark.parametrize("name", SHAPES)
def test_gradient_of_weights(
    name: str, chosen: bool, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels(), "PROGRAMS", programs)  # long sums, or many parts
    shape = SHAPES[name]
    (x, _, _), (x64, w64, b64) = given(shape)
    pool = shape.pool if chosen else 1
    y, place = plain_convolution(x64, w64, b64, shape.slide, chosen, pool)
    g, biased = torch.randn_like(y).float(), programs != 1
    found = [
        kernels().launch_weight_gradient(
            x, g.to(DEVICE), place.to(DEVICE), shape.slide, pool, biased, tf32=False
        )
        for _ in range(2)
    ]
    spread = plain_spread(g, place, pool, shape.slide.places(*shape.size)) if chosen else g
    expected = plain_weight_gradient(x64, spread.double(), shape.slide, biased)
    for one, again, right in zip(*found, expected, strict=True):
        close(one, right)
        assert torch.equal(one, again)  # to the last bit


def test_clients_may_share_their_images() -> None:
    shape = SHAPES["many channels"]
    (x, w, b), (x64, w64, b64) = given(shape)
    same, same64 = x[:1].expand_as(x), x64[:1].expand_as(x64)
    y, _ = kernels().launch_convolution(same, w, b, shape.slide, False, 1, tf32=False)
    close(y, plain_convolution(same64, w64, b64, shape.slide, False, 1)[0])


def test_what_is_no_number_is_passed_on_and_so_is_its_gradient() -> None:
    x = torch.zeros(1, 1, 4, 4, 1, device=DEVICE)
    x[0, 0, 1, 2] = torch.nan
    w = torch.ones(1, 2, 1, 1, 1, device=DEVICE)
    slide = Slide((1, 1), (1, 1), (0, 0))
    y, place = kernels().launch_convolution(x, w, None, slide, True, 2, tf32=False)
    expected, where = plain_convolution(x.cpu(), w.cpu(), None, slide, True, 2)
    assert torch.equal(y.cpu().isnan(), expected.isnan()) and expected.isnan().any()
    assert torch.equal(place.cpu(), where) and int(where.max()) == 2


@pytest.mark.skipif(INTERPRETED, reason="the interpreter rounds in another way")
@pytest.mark.parametrize("way", ["tf32", "bf16"])
def test_lower_precision_is_near(way: str) -> None:
    shape = SHAPES["many channels"]
    dtype = torch.bfloat16 if way == "bf16" else torch.float32
    (x, w, b), (x64, w64, b64) = given(shape, dtype)
    y, place = kernels().launch_convolution(x, w, b, shape.slide, False, 1, tf32=True)
    expected, _ = plain_convolution(x64, w64, b64, shape.slide, False, 1)
    close(y, expected, 1e-2)
    g = y.clone()
    back = kernels().launch_input_gradient(g, w, shape.slide, shape.size, tf32=True)
    g64 = g.double().cpu()
    close(back, plain_input_gradient(g64, w64, shape.slide, shape.size), 1e-2)
    dw, db = kernels().launch_weight_gradient(x, g, place, shape.slide, 1, True, tf32=True)
    right = plain_weight_gradient(x64, g64, shape.slide, True)
    close(dw, right[0], 1e-2)
    close(db, right[1], 1e-2)


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (37, 10), (5, 300)])
def test_cross_entropy(rows: int, classes: int) -> None:
    from fedtailor.engine.kernels.triton_losses import launch_cross_entropy

    make = torch.Generator().manual_seed(rows)
    logits = 5 * torch.randn(rows, classes, generator=make)
    labels = torch.randint(0, classes, (rows,), generator=make)
    labels[rows // 2] = -100 if rows > 1 else 0
    found = launch_cross_entropy(logits.to(DEVICE), labels.to(DEVICE))
    for one, right in zip(found, plain_cross_entropy(logits.double(), labels), strict=True):
        # a small loss is the logarithm of nearly 1, which float32 knows to 1e-7
        torch.testing.assert_close(one.cpu().double(), right, rtol=1e-5, atol=3e-7)
