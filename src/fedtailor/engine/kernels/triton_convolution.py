"""Convolutions of many clients as products without patches in memory; needs Triton.

Images have their channels last. What a product sums over should lie in one piece: then whole
vectors are loaded, and the matrix units of newer GPUs read them as they lie. So weights are laid
out anew, and gradients with the places of all images in one piece for the sum over these. With many
channels a product goes over one point of the kernel after another; with few, over points and
channels as one axis, which fills it. Long sums are split between programs, and their parts added in
order: the same result every time. Blocks are those that were fastest on an H200 with images of
32x32 and 14x14, 3 to 300 clients.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedtailor.engine.kernels.reference import Slide
from fedtailor.engine.kernels.triton_layout import (
    block_for,
    lay_columns,
    lay_rows,
    spread_across,
)
from fedtailor.engine.kernels.triton_start import start

MANY = 16  # channels from which products go over one point after another: what a product needs
PROGRAMS = 264  # that keep a large GPU busy, two for each of its processors
SPLITS = 16  # of a sum, at most: they are added one after another


@triton.jit
def _larger(a, i, b, j):
    """The larger value and where it was; of equal ones the first, of no numbers the last."""
    both = (a != a) & (b != b)
    second = (b > a) | ((b != b) & (a == a)) | ((a == b) & (j < i)) | (both & (j > i))
    return tl.where(second, b, a), tl.where(second, j, i)


@triton.jit
def _forward(
    x, w, bias, y, place, x_step, bias_step, B, H, W, HP, WP,
    CI: tl.constexpr, CO: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    POOL: tl.constexpr, POINTS: tl.constexpr, RELU: tl.constexpr, BIAS: tl.constexpr,
    FLAT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    # a row for each place before pooling; those of one window, and what fills it up, lie together
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    spot, point = m // POINTS, m % POINTS
    co = tl.program_id(2) * BN + tl.arange(0, BN)
    spots = B * HP * WP
    b, at = spot // (HP * WP), spot % (HP * WP)
    oy = ((at // WP) * POOL + point // POOL) * SY - PY
    ox = ((at % WP) * POOL + point % POOL) * SX - PX
    real = (spot < spots) & (point < POOL * POOL)
    w += n * (KY * KX * CI * CO)
    row = x + n * x_step + ((b * H + oy) * W + ox) * CI
    acc = tl.zeros((BM, BN), tl.float32)
    if FLAT:
        for k0 in range(0, KY * KX * CI, BK):
            k = k0 + tl.arange(0, BK)
            ok = real[:, None] & (k < KY * KX * CI)[None, :]
            if PY + PX > 0:  # else every point lies within the image
                iy = oy[:, None] + (k // CI // KX)[None, :]
                ix = ox[:, None] + (k // CI % KX)[None, :]
                ok = ok & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            along = (k // CI // KX) * W * CI + k % (KX * CI)
            a = tl.load(row[:, None] + along[None, :], mask=ok, other=0.0)
            there = (k < KY * KX * CI)[:, None] & (co < CO)[None, :]
            v = tl.load(w + k[:, None] * CO + co[None, :], mask=there, other=0.0)
            acc = tl.dot(a, v, acc, input_precision=PRECISION)
    else:
        for tap in range(KY * KX):
            iy, ix = oy + tap // KX, ox + tap % KX
            ok = real & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            here = row + ((tap // KX) * W + tap % KX) * CI
            for c0 in range(0, CI, BK):
                c = c0 + tl.arange(0, BK)
                inside = ok[:, None] & (c < CI)[None, :]
                a = tl.load(here[:, None] + c[None, :], mask=inside, other=0.0)
                there = (co < CO)[:, None] & (c < CI)[None, :]
                from_w = w + (tap * CO + co)[:, None] * CI + c[None, :]
                v = tl.load(from_w, mask=there, other=0.0)
                acc = tl.dot(a, tl.trans(v), acc, input_precision=PRECISION)
    if BIAS:
        acc += tl.load(bias + n * bias_step + co, mask=co < CO, other=0.0).to(tl.float32)[None, :]
    windows: tl.constexpr = BM // POINTS
    where = tl.zeros((windows, BN), tl.int32)
    if POINTS > 1:
        acc = tl.where((point < POOL * POOL)[:, None], acc, float("-inf"))
        numbers = tl.broadcast_to(point[:, None], (BM, BN))
        apart = tl.reshape(acc, (windows, POINTS, BN)), tl.reshape(numbers, (windows, POINTS, BN))
        best, where = tl.reduce(apart, 1, _larger)
    else:
        best = acc
    r = tl.program_id(0) * windows + tl.arange(0, windows)
    to = (n * spots + r[:, None]) * CO + co[None, :]
    inside = (r < spots)[:, None] & (co < CO)[None, :]
    if RELU:
        where = tl.where(best <= 0, -1, where)
        best = tl.where(best <= 0, 0.0, best)
    tl.store(y + to, best.to(y.dtype.element_ty), mask=inside)
    if RELU or POOL > 1:
        tl.store(place + to, where.to(tl.int8), mask=inside)


@triton.jit
def _input_gradient(
    g, w, dx, g_step, B, H, W, HO, WO,
    CI: tl.constexpr, CO: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    ci = tl.program_id(2) * BN + tl.arange(0, BN)
    spots = B * H * W
    b, at = m // (H * W), m % (H * W)
    iy, ix = at // W + PY, at % W + PX
    g += n * g_step
    w += n * (KY * KX * CI * CO)
    acc = tl.zeros((BM, BN), tl.float32)
    for tap in range(KY * KX):
        ty, tx = iy - tap // KX, ix - tap % KX  # the place, times the stride
        oy, ox = ty // SY, tx // SX
        ok = (m < spots) & (ty >= 0) & (oy < HO) & (tx >= 0) & (ox < WO)
        ok = ok & (ty % SY == 0) & (tx % SX == 0)
        row = g + ((b * HO + oy) * WO + ox) * CO
        for c0 in range(0, CO, BK):
            c = c0 + tl.arange(0, BK)
            a = tl.load(row[:, None] + c[None, :], mask=ok[:, None] & (c < CO)[None, :], other=0.0)
            there = (ci < CI)[:, None] & (c < CO)[None, :]
            # rows as they lie, turned round afterwards
            v = tl.load(w + (tap * CI + ci)[:, None] * CO + c[None, :], mask=there, other=0.0)
            acc = tl.dot(a, tl.trans(v), acc, input_precision=PRECISION)
    to = (n * spots + m[:, None]) * CI + ci[None, :]
    tl.store(dx + to, acc.to(dx.dtype.element_ty), mask=(m < spots)[:, None] & (ci < CI)[None, :])


@triton.jit(do_not_specialize=["splits"])
def _weight_parts(
    x, g, part, x_step, piece, B, H, W, HO, WO, splits,
    CI: tl.constexpr, CO: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
    SY: tl.constexpr, SX: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
    ACROSS: tl.constexpr, PRECISION: tl.constexpr,
    BS: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(2).to(tl.int64)
    split = tl.program_id(1)
    columns = tl.cdiv(CO, BN)
    tile = tl.program_id(0) // columns
    co = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    depth: tl.constexpr = KY * KX * CI
    spots = B * HO * WO
    x += n * x_step
    g += n * CO * piece
    part += (n * splits + split) * ((depth + 1) * CO)
    each = tl.cdiv(tl.cdiv(spots, BS), splits) * BS
    first = split * each
    last = tl.minimum(first + each, spots)
    if tile == tl.cdiv(depth, BD):  # of the biases
        total = tl.zeros((BN,), tl.float32)
        for m0 in range(first, last, BS):
            m = m0 + tl.arange(0, BS)
            v = tl.load(g + co[:, None] * piece + m[None, :], mask=(co < CO)[:, None], other=0.0)
            total += tl.sum(v.to(tl.float32), 1)
        tl.store(part + depth * CO + co, total, mask=co < CO)
    else:
        k = tile * BD + tl.arange(0, BD)
        c, ky, kx = k % CI, k // CI // KX, k // CI % KX
        wanted = k < depth
        along = (ky * W + kx) * CI + c
        if ACROSS:
            acc = tl.zeros((BN, BD), tl.float32)
        else:
            acc = tl.zeros((BD, BN), tl.float32)
        for m0 in range(first, last, BS):
            m = m0 + tl.arange(0, BS)
            b, at = m // (HO * WO), m % (HO * WO)
            oy, ox = (at // WO) * SY - PY, (at % WO) * SX - PX
            ok = (m < last)[:, None] & wanted[None, :]
            if PY + PX > 0:  # else every point lies within the image
                iy, ix = oy[:, None] + ky[None, :], ox[:, None] + kx[None, :]
                ok = ok & (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
            row = x + ((b * H + oy) * W + ox) * CI
            a = tl.load(row[:, None] + along[None, :], mask=ok, other=0.0)
            v = tl.load(g + co[:, None] * piece + m[None, :], mask=(co < CO)[:, None], other=0.0)
            if ACROSS:
                acc = tl.dot(v, a, acc, input_precision=PRECISION)
            else:
                acc = tl.dot(tl.trans(a), tl.trans(v), acc, input_precision=PRECISION)
        inside = wanted[:, None] & (co < CO)[None, :]
        if ACROSS:
            acc = tl.trans(acc)
        tl.store(part + k[:, None] * CO + co[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["splits"])
def _add_parts(
    part, dw, db, splits, CI: tl.constexpr, CO: tl.constexpr, TAPS: tl.constexpr,
    BT: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1).to(tl.int64)
    columns = tl.cdiv(CO, BN)
    ci = tl.program_id(0) // columns
    co = (tl.program_id(0) % columns) * BN + tl.arange(0, BN)
    size: tl.constexpr = (TAPS * CI + 1) * CO
    part += n * splits * size
    if ci == CI:  # of the biases
        total = tl.zeros((BN,), tl.float32)
        for s in range(splits):
            total += tl.load(part + s * size + TAPS * CI * CO + co, mask=co < CO, other=0.0)
        tl.store(db + n * CO + co, total.to(db.dtype.element_ty), mask=co < CO)
    else:
        tap = tl.arange(0, BT)
        inside = (tap < TAPS)[:, None] & (co < CO)[None, :]
        of = (tap * CI + ci)[:, None] * CO + co[None, :]
        sums = tl.zeros((BT, BN), tl.float32)
        for s in range(splits):
            sums += tl.load(part + s * size + of, mask=inside, other=0.0)
        to = n * (CO * CI * TAPS) + (co[None, :] * CI + ci) * TAPS + tap[:, None]
        tl.store(dw + to, sums.to(dw.dtype.element_ty), mask=inside)


def launch_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, slide: Slide, relu: bool, pool: int, tf32: bool
) -> tuple[Tensor, Tensor]:
    """As `plain_convolution`."""
    x = _rows(x)
    clients, rows, height, width, channels = x.shape
    out = w.shape[1]
    high, wide = (size // pool for size in slide.places(height, width))
    y = x.new_empty(clients, rows, high, wide, out)
    kept = relu or pool > 1
    place = x.new_empty(y.shape if kept else (clients, 0), dtype=torch.int8)
    points = triton.next_power_of_2(pool * pool)
    spots = rows * high * wide * points
    flat = channels < MANY
    laid = lay_rows(w) if flat else lay_columns(w)
    block_n = block_for(out, 64)
    programs = clients * triton.cdiv(spots, 64) * triton.cdiv(out, block_n)
    if flat:
        few = programs < PROGRAMS
        depth = block_for(channels * slide.kernel[0] * slide.kernel[1], 128)
        block_m, block_k, warps, stages = (32, depth, 2, 3) if few else (64, 16, 2, 3)
    else:
        few = programs < 8 * PROGRAMS
        block_m, block_k, warps, stages = (
            64 if few else 128, block_for(channels, 32), 4, 4 if few else 3
        )  # fmt: skip
    block_m = max(block_m, points)
    grid = triton.cdiv(spots, block_m), clients, triton.cdiv(out, block_n)
    biases = laid if bias is None else _rows(bias)
    start(
        _forward, grid,
        x, laid, biases, y, place, x.stride(0), biases.stride(0), rows, height, width, high, wide,
        channels, out, *slide.kernel, *slide.stride, *slide.padding, pool, points, relu,
        bias is not None, flat, _precision(tf32), block_m, block_n, block_k, num_warps=warps,
        num_stages=stages,
    )  # fmt: skip
    return y, place


def launch_input_gradient(
    g: Tensor, w: Tensor, slide: Slide, size: tuple[int, int], tf32: bool
) -> Tensor:
    """As `plain_input_gradient`."""
    g = _rows(g)
    clients, rows, high, wide, out = g.shape
    channels = w.shape[2]
    dx = g.new_empty(clients, rows, *size, channels)
    spots = rows * size[0] * size[1]
    block_m, block_n = 64, block_for(channels, 64)
    grid = triton.cdiv(spots, block_m), clients, triton.cdiv(channels, block_n)
    few = grid[0] * grid[1] * grid[2] < 2 * PROGRAMS
    start(
        _input_gradient, grid,
        g, lay_rows(w), dx, g.stride(0), rows, *size, high, wide, channels, out, *slide.kernel,
        *slide.stride, *slide.padding, _precision(tf32), block_m, block_n, block_for(out, 64),
        num_warps=4, num_stages=4 if few and block_n <= 32 else 2,
    )  # fmt: skip
    return dx


def launch_weight_gradient(
    x: Tensor, g: Tensor, place: Tensor, slide: Slide, pool: int, biased: bool, tf32: bool
) -> tuple[Tensor, Tensor]:
    """As `plain_weight_gradient`, of a gradient that is not spread yet if it has places."""
    x, out = _rows(x), g.shape[-1]
    clients, rows, height, width, channels = x.shape
    high, wide = slide.places(height, width)
    across = spread_across(g, place, pool, (high, wide))
    taps = slide.kernel[0] * slide.kernel[1]
    depth, block_n = taps * channels, block_for(out, 64)
    columns = triton.cdiv(out, block_n)
    # channels out beside each other where those in fill vectors, or where little is to be done
    few = clients * columns < PROGRAMS // 16
    across_out = channels >= MANY or few or depth <= 32
    if channels >= MANY:
        block_s, block_d, warps, stages = 16, 64, 2, 4
    else:
        block_s, block_d, warps, stages = (64, 32, 4, 3) if across_out else (32, 128, 4, 3)
    tiles = triton.cdiv(depth, block_d)
    splits = parts_of_sums(clients * tiles * columns, triton.cdiv(rows * high * wide, block_s))
    part = x.new_empty(clients, splits, depth + 1, out, dtype=torch.float32)
    start(
        _weight_parts, ((tiles + biased) * columns, splits, clients),
        x, across, part, x.stride(0), across.shape[-1], rows, height, width, high, wide, splits,
        channels, out, *slide.kernel, *slide.stride, *slide.padding, across_out, _precision(tf32),
        block_s, block_d, block_n, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    dw = x.new_empty(clients, out, channels, *slide.kernel)
    db = x.new_empty(clients, out if biased else 0)
    start(
        _add_parts, ((channels + biased) * columns, clients),
        part, dw, db, splits, channels, out, taps, triton.next_power_of_2(taps), block_n,
        num_warps=4,
    )  # fmt: skip
    return dw, db


def parts_of_sums(programs: int, blocks: int) -> int:
    """Enough programs for all processors, but none without a block, and few sums to add."""
    return max(1, min(SPLITS, blocks, -(-2 * PROGRAMS // programs)))


def _rows(t: Tensor) -> Tensor:
    """A tensor whose clients may lie anywhere, also on top of each other, each in one piece."""
    return t if t[0].is_contiguous() else t.contiguous()


def _precision(tf32: bool) -> str:
    return "tf32" if tf32 else "ieee"
