"""The kernels of normalisations against plain torch; on a GPU, or in Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/engine/kernels
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.engine.kernels.reference import (
    plain_moments,
    plain_norm,
    plain_norm_gradient,
    plain_spread,
)
from tests.engine.kernels.device import DEVICE, INTERPRETED, close

EPS = 1e-3
# clients, rows, height, width, channels; groups
SHAPES = {
    "batch": ((3, 4, 6, 7, 20), 0),
    "batch, many": ((2, 9, 16, 17, 96), 0),
    "batch, one channel": ((2, 3, 5, 5, 1), 0),
    "two groups": ((3, 4, 6, 7, 16), 2),
    "one group": ((2, 3, 5, 5, 64), 1),
    "each channel": ((2, 3, 5, 5, 20), 20),
}


def kernels() -> Any:
    from fedtailor.engine.kernels import triton_norms

    return triton_norms


def given(name: str, far: float = 3.0) -> tuple[list[Tensor], list[Tensor], int]:
    """Images, scales and shifts for kernels, and the same numbers in float64."""
    shape, groups = SHAPES[name]
    make = torch.Generator().manual_seed(0)
    z = torch.randn(*shape, generator=make) * torch.rand(shape[-1], generator=make) + far
    scale, shift = (torch.randn(shape[0], shape[-1], generator=make) for _ in range(2))
    single = [t.to(DEVICE) for t in (z, scale, shift)]
    return single, [t.double().cpu() for t in single], groups


@pytest.mark.parametrize("programs", [1, 400])
@pytest.mark.parametrize("name", SHAPES)
def test_moments(name: str, programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtailor.engine.kernels import triton_convolution

    monkeypatch.setattr(triton_convolution, "PROGRAMS", programs)  # long sums, or many parts
    monkeypatch.setattr(kernels(), "BLOCK", 256)
    (z, *_), (z64, *_), groups = given(name, far=1000.0)
    found = [kernels().launch_moments(z, groups) for _ in range(2)]
    for one, again, right in zip(*found, plain_moments(z64, groups), strict=True):
        close(one, right, 1e-4)
        assert torch.equal(one, again)  # to the last bit


@pytest.mark.parametrize("relu", [False, True], ids=["linear", "relu"])
@pytest.mark.parametrize("pool", [1, 2, 3])
@pytest.mark.parametrize("name", SHAPES)
def test_forward_and_back(
    name: str, pool: int, relu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels(), "BLOCK", 512)
    (z, scale, shift), (z64, scale64, shift64), groups = given(name)
    mean, var = plain_moments(z64, groups)
    moments = [t.float().to(DEVICE) for t in (mean, var)]
    y, place = kernels().launch_norm(z, scale, shift, *moments, EPS, relu, pool)
    expected, where = plain_norm(z64, scale64, shift64, mean, var, EPS, relu, pool)
    close(y, expected)
    # float32 may take another of two numbers that are nearly equal
    assert place.shape == where.shape
    assert float((place.cpu() != where).double().mean() if where.numel() else 0.0) < 1e-3
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    chosen = relu or pool > 1
    spread = plain_spread(g.double(), where, pool, z.shape[2:4]) if chosen else g.double()
    right = plain_norm_gradient(spread, z64, scale64, mean, var, groups, EPS)
    for _ in range(2):
        found = kernels().launch_norm_gradient(
            g.to(DEVICE), where.to(DEVICE), z, scale, *moments, groups, EPS, pool
        )
        for one, expected in zip(found, right, strict=True):
            close(one, expected, 1e-4)


def test_what_is_no_number_is_passed_on() -> None:
    (z, scale, shift), _, _ = given("batch")
    z[1, 2, 3, 3, 4] = torch.nan
    mean, var = kernels().launch_moments(z, 0)
    y, _ = kernels().launch_norm(z, scale, shift, mean, var, EPS, True, 2)
    ill = y.isnan().flatten(1, 3).all(1).cpu()
    assert ill[1, 4] and int(ill.sum()) == 1 and int(y.isnan().sum()) == y[0, ..., 0].numel()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter rounds in another way")
def test_bf16_is_near() -> None:
    (z, scale, shift), _, groups = given("batch, many")
    z, scale, shift = (t.bfloat16() for t in (z, scale, shift))
    z64, scale64, shift64 = (t.double().cpu() for t in (z, scale, shift))
    moments = kernels().launch_moments(z, groups)
    mean, var = plain_moments(z64, groups)
    close(moments[0], mean, 1e-4)
    y, place = kernels().launch_norm(z, scale, shift, *moments, EPS, True, 2)
    close(y, plain_norm(z64, scale64, shift64, mean, var, EPS, True, 2)[0], 1e-2)
    found = kernels().launch_norm_gradient(y, place, z, scale, *moments, groups, EPS, 2)
    assert [t.dtype for t in found] == 3 * [torch.bfloat16]
    spread = plain_spread(y.double().cpu(), place.cpu(), 2, z.shape[2:4])
    right = plain_norm_gradient(spread, z64, scale64, mean, var, groups, EPS)
    for one, expected in zip(found, right, strict=True):
        close(one, expected, 2e-2)
