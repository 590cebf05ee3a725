"""Weights and gradients as products of convolutions read them; needs Triton."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedtailor.engine.kernels.reference import has_places
from fedtailor.engine.kernels.triton_start import start

PIECE = 64  # places are filled up with zeros to a multiple of this; no block of them is longer


@triton.jit
def _lay_rows(
    w, out, CI: tl.constexpr, CO: tl.constexpr, TAPS: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    co = tl.program_id(2) * BN + tl.arange(0, BN)
    inside = (k < CI * TAPS)[:, None] & (co < CO)[None, :]
    start = n * (CO * CI * TAPS)
    v = tl.load(w + start + co[None, :] * (CI * TAPS) + k[:, None], mask=inside, other=0.0)
    row = (k % TAPS) * CI + k // TAPS
    tl.store(out + start + row[:, None] * CO + co[None, :], v, mask=inside)


@triton.jit
def _lay_columns(
    w, out, CI: tl.constexpr, CO: tl.constexpr, TAPS: tl.constexpr,
    BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n, co = tl.program_id(1).to(tl.int64), tl.program_id(0)
    tap = tl.arange(0, BT)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    inside = (tap < TAPS)[:, None] & (c < CI)[None, :]
    start = n * (CO * CI * TAPS)
    of = start + co * (CI * TAPS) + c[None, :] * TAPS + tap[:, None]
    to = start + (tap[:, None] * CO + co) * CI + c[None, :]
    tl.store(out + to, tl.load(w + of, mask=inside, other=0.0), mask=inside)


@triton.jit
def _spread(
    g, place, out, total, HO, WO, HP, WP, CO: tl.constexpr, POOL: tl.constexpr, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, c = i // CO, i % CO
    image, oy, ox = row // (HO * WO), (row // WO) % HO, row % WO
    py, px = oy // POOL, ox // POOL
    here = (i < total) & (py < HP) & (px < WP)  # what is over at the edges gets nothing
    of = ((image * HP + py) * WP + px) * CO + c
    chosen = tl.load(place + of, mask=here, other=-1)
    mine = here & (chosen == (oy % POOL) * POOL + ox % POOL)
    tl.store(out + i, tl.load(g + of, mask=mine, other=0.0), mask=i < total)


@triton.jit
def _spread_across(
    g, place, out, piece, B, HO, WO, HP, WP, CO: tl.constexpr, POOL: tl.constexpr,
    CHOSEN: tl.constexpr, BS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BS + tl.arange(0, BS)
    co = tl.program_id(2) * BN + tl.arange(0, BN)
    b, at = m // (HO * WO), m % (HO * WO)
    oy, ox = at // WO, at % WO
    py, px = oy // POOL, ox // POOL
    here = (b < B) & (py < HP) & (px < WP)
    of = (((n * B + b) * HP + py) * WP + px)[:, None] * CO + co[None, :]
    mine = here[:, None] & (co < CO)[None, :]
    if CHOSEN:
        point = (oy % POOL) * POOL + ox % POOL
        mine = mine & (tl.load(place + of, mask=mine, other=-1) == point[:, None])
    v = tl.load(g + of, mask=mine, other=0.0)
    to = (n * CO + co)[:, None] * piece + m[None, :]
    tl.store(out + to, tl.trans(v), mask=(co < CO)[:, None] & (m < piece)[None, :])


def lay_rows(w: Tensor) -> Tensor:
    """Weights whose rows are channels out: (clients, points of the kernel * channels in, out)."""
    w = w.contiguous()
    clients, out, channels, *kernel = w.shape
    taps = kernel[0] * kernel[1]
    laid = w.new_empty(clients, taps * channels, out)
    block = block_for(out, 64)
    start(
        _lay_rows, (triton.cdiv(taps * channels, 64), clients, triton.cdiv(out, block)),
        w, laid, channels, out, taps, 64, block, num_warps=4,
    )  # fmt: skip
    return laid


def lay_columns(w: Tensor) -> Tensor:
    """Weights whose rows are channels in: (clients, points of the kernel * channels out, in)."""
    w = w.contiguous()
    clients, out, channels, *kernel = w.shape
    taps = kernel[0] * kernel[1]
    laid = w.new_empty(clients, taps * out, channels)
    block = block_for(channels, 64)
    start(
        _lay_columns, (out, clients, triton.cdiv(channels, block)),
        w, laid, channels, out, taps, triton.next_power_of_2(taps), block, num_warps=2,
    )  # fmt: skip
    return laid


def launch_spread(g: Tensor, place: Tensor, pool: int, size: tuple[int, int]) -> Tensor:
    """As `plain_spread`."""
    g, place = g.contiguous(), place.contiguous()
    clients, rows, high, wide, out = g.shape
    found = g.new_empty(clients, rows, *size, out)
    total = found.numel()
    start(
        _spread, (triton.cdiv(total, 1024),),
        g, place, found, total, *size, high, wide, out, pool, 1024, num_warps=4,
    )  # fmt: skip
    return found


def spread_across(g: Tensor, place: Tensor, pool: int, size: tuple[int, int]) -> Tensor:
    """A gradient before pooling: (clients, channels, places of all rows, and zeros after them).

    Without places there was neither pooling nor ReLU.
    """
    g, place = g.contiguous(), place.contiguous()
    clients, rows, high, wide, out = g.shape
    piece = triton.cdiv(rows * size[0] * size[1], PIECE) * PIECE
    found = g.new_empty(clients, out, piece)
    block = block_for(out, 64)
    start(
        _spread_across, (piece // 32, clients, triton.cdiv(out, block)),
        g, place, found, piece, rows, *size, high, wide, out, pool, has_places(place), 32, block,
        num_warps=2,
    )  # fmt: skip
    return found


def block_for(size: int, most: int) -> int:
    """A block's length that holds so many, if it may; products need 16."""
    return max(16, min(most, triton.next_power_of_2(size)))
