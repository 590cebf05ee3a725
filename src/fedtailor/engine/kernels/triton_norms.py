"""Normalisations of many clients, with the ReLU and pooling after them; needs Triton.

Images have their channels last. What is normalised together is a set: all rows of a client, or one
row of it. Sums over a set are split between programs, and their parts added in order: the same
result every time. They are of differences to the set's first pixel: squares of the numbers
themselves would leave nothing of a small variance beside a large mean.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-any-return"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedtailor.engine.kernels.reference import has_places
from fedtailor.engine.kernels.triton_convolution import parts_of_sums
from fedtailor.engine.kernels.triton_start import start

BLOCK = 2048  # numbers at a time


@triton.jit
def _spots(r, H, W, HP, WP, C: tl.constexpr, POOL: tl.constexpr):
    """Where the windows of some places begin in their set."""
    image, at = r // (HP * WP), r % (HP * WP)
    return ((image * H + (at // WP) * POOL) * W + (at % WP) * POOL) * C


@triton.jit
def _together(values, C: tl.constexpr, GROUP: tl.constexpr):
    """For each channel the sum over its group."""
    if GROUP > 1:
        groups = tl.reshape(values, (C // GROUP, GROUP))
        sums = tl.broadcast_to(tl.sum(groups, 1)[:, None], (C // GROUP, GROUP))
        values = tl.reshape(sums, (C,))
    return values


@triton.jit(do_not_specialize=["splits"])
def _moment_parts(z, part, M, splits, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr):
    s, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    z += s * M * C
    first = tl.load(z + c, mask=c < C, other=0.0).to(tl.float32)
    each = tl.cdiv(tl.cdiv(M, BM), splits) * BM
    last = tl.minimum(split * each + each, M)
    one = tl.zeros((BM, BC), tl.float32)
    two = tl.zeros((BM, BC), tl.float32)
    for m0 in range(split * each, last, BM):
        m = m0 + tl.arange(0, BM)
        inside = (m < last)[:, None] & (c < C)[None, :]
        v = tl.load(z + m[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        v = tl.where(inside, v - first[None, :], 0.0)
        one += v
        two += v * v
    to = part + (s * splits + split) * 2 * C + c
    tl.store(to, tl.sum(one, 0), mask=c < C)
    tl.store(to + C, tl.sum(two, 0), mask=c < C)


@triton.jit(do_not_specialize=["splits"])
def _moments(z, part, mean, var, M, splits, C: tl.constexpr, GROUP: tl.constexpr, BC: tl.constexpr):
    s, c = tl.program_id(0).to(tl.int64), tl.arange(0, BC)
    one = tl.zeros((BC,), tl.float32)
    two = tl.zeros((BC,), tl.float32)
    for split in range(splits):
        of = part + (s * splits + split) * 2 * C + c
        one += tl.load(of, mask=c < C, other=0.0)
        two += tl.load(of + C, mask=c < C, other=0.0)
    away = one / M
    centre = tl.load(z + s * M * C + c, mask=c < C, other=0.0).to(tl.float32) + away
    spread = two - one * away
    if GROUP > 1:  # as many channels as places in the block
        whole = _together(centre, BC, GROUP) / GROUP
        spread = _together(spread + M * (centre - whole) * (centre - whole), BC, GROUP) / GROUP
        centre = whole
    tl.store(mean + s * C + c, centre, mask=c < C)
    spread = tl.where(spread < 0, 0.0, spread)  # rounding; what is no number stays none
    tl.store(var + s * C + c, spread / M, mask=c < C)


@triton.jit
def _norm(
    z, scale, shift, mean, var, y, place, per, M, spots, H, W, HP, WP, eps,
    C: tl.constexpr, POOL: tl.constexpr, RELU: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    inside, n = (r < spots)[:, None] & (c < C)[None, :], s // per
    centre = tl.load(mean + s * C + c, mask=c < C, other=0.0)
    steep = tl.rsqrt(tl.load(var + s * C + c, mask=c < C, other=1.0) + eps)
    steep *= tl.load(scale + n * C + c, mask=c < C, other=0.0).to(tl.float32)
    more = tl.load(shift + n * C + c, mask=c < C, other=0.0).to(tl.float32)
    here = z + s * M * C + _spots(r, H, W, HP, WP, C, POOL)[:, None] + c[None, :]
    best = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    best = (best - centre[None, :]) * steep[None, :] + more[None, :]
    where = tl.zeros((BR, BC), tl.int32)
    for p in tl.static_range(1, POOL * POOL):
        along = (p // POOL * W + p % POOL) * C
        v = tl.load(here + along, mask=inside, other=0.0).to(tl.float32)
        v = (v - centre[None, :]) * steep[None, :] + more[None, :]
        larger = (v > best) | (v != v)
        best, where = tl.where(larger, v, best), tl.where(larger, p, where)
    if RELU:
        where = tl.where(best <= 0, -1, where)
        best = tl.where(best <= 0, 0.0, best)
    to = (s * spots + r)[:, None] * C + c[None, :]
    tl.store(y + to, best.to(y.dtype.element_ty), mask=inside)
    if RELU or POOL > 1:
        tl.store(place + to, where.to(tl.int8), mask=inside)


@triton.jit(do_not_specialize=["splits"])
def _gradient_parts(
    g, place, z, mean, var, part, M, spots, H, W, HP, WP, eps, splits,
    C: tl.constexpr, POOL: tl.constexpr, CHOSEN: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    s, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    z += s * M * C
    centre = tl.load(mean + s * C + c, mask=c < C, other=0.0)
    steep = tl.rsqrt(tl.load(var + s * C + c, mask=c < C, other=1.0) + eps)
    each = tl.cdiv(tl.cdiv(spots, BR), splits) * BR
    last = tl.minimum(split * each + each, spots)
    one = tl.zeros((BR, BC), tl.float32)
    two = tl.zeros((BR, BC), tl.float32)
    for r0 in range(split * each, last, BR):
        r = r0 + tl.arange(0, BR)
        inside = (r < last)[:, None] & (c < C)[None, :]
        of = (s * spots + r)[:, None] * C + c[None, :]
        at = _spots(r, H, W, HP, WP, C, POOL)[:, None] + c[None, :]
        if CHOSEN:
            p = tl.load(place + of, mask=inside, other=-1).to(tl.int32)
            inside = inside & (p >= 0)
            at += (p // POOL * W + p % POOL) * C
        v = tl.load(g + of, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        one += v
        two += tl.where(inside, v * (x - centre[None, :]) * steep[None, :], 0.0)
    to = part + (s * splits + split) * 2 * C + c
    tl.store(to, tl.sum(one, 0), mask=c < C)
    tl.store(to + C, tl.sum(two, 0), mask=c < C)


@triton.jit(do_not_specialize=["splits"])
def _gradient_sums(
    part, scale, dscale, dshift, pulls, sets, per, M, splits,
    C: tl.constexpr, GROUP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    s, c = tl.program_id(0).to(tl.int64), tl.arange(0, BC)
    one = tl.zeros((BC,), tl.float32)
    two = tl.zeros((BC,), tl.float32)
    for split in range(splits):
        of = part + (s * splits + split) * 2 * C + c
        one += tl.load(of, mask=c < C, other=0.0)
        two += tl.load(of + C, mask=c < C, other=0.0)
    tl.store(dscale + s * C + c, two, mask=c < C)
    tl.store(dshift + s * C + c, one, mask=c < C)
    k = tl.load(scale + s // per * C + c, mask=c < C, other=0.0).to(tl.float32)
    level = _together(one * k, BC, GROUP) / GROUP / M
    turn = _together(two * k, BC, GROUP) / GROUP / M
    tl.store(pulls + s * C + c, level, mask=c < C)
    tl.store(pulls + (sets + s) * C + c, turn, mask=c < C)


@triton.jit
def _norm_input(
    g, place, z, scale, mean, var, pulls, dz, sets, per, M, spots, H, W, HP, WP, eps,
    C: tl.constexpr, POOL: tl.constexpr, CHOSEN: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    inside = (m < M)[:, None] & (c < C)[None, :]
    centre = tl.load(mean + s * C + c, mask=c < C, other=0.0)
    steep = tl.rsqrt(tl.load(var + s * C + c, mask=c < C, other=1.0) + eps)
    k = tl.load(scale + s // per * C + c, mask=c < C, other=0.0).to(tl.float32)
    level = tl.load(pulls + s * C + c, mask=c < C, other=0.0)
    turn = tl.load(pulls + (sets + s) * C + c, mask=c < C, other=0.0)
    if CHOSEN:
        image, at = m // (H * W), m % (H * W)
        oy, ox = at // W, at % W
        py, px = oy // POOL, ox // POOL
        here = (py < HP) & (px < WP)  # what is over at the edges gets nothing
        of = (s * spots + (image * HP + py) * WP + px)[:, None] * C + c[None, :]
        chosen = tl.load(place + of, mask=inside & here[:, None], other=-1).to(tl.int32)
        mine = inside & (chosen == (oy % POOL * POOL + ox % POOL)[:, None])
        v = tl.load(g + of, mask=mine, other=0.0).to(tl.float32)
    else:
        of = (s * spots + m)[:, None] * C + c[None, :]
        v = tl.load(g + of, mask=inside, other=0.0).to(tl.float32)
    to = s * M * C + m[:, None] * C + c[None, :]
    x = tl.load(z + to, mask=inside, other=0.0).to(tl.float32)
    standard = (x - centre[None, :]) * steep[None, :]
    back = steep[None, :] * (v * k[None, :] - level[None, :] - standard * turn[None, :])
    tl.store(dz + to, back.to(dz.dtype.element_ty), mask=inside)


def launch_moments(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """As `plain_moments`."""
    z = z.contiguous()
    sets, numbers, channels = _sets(z, groups)
    block_m, block_c = _blocks(channels)
    splits = parts_of_sums(sets * triton.cdiv(channels, block_c), triton.cdiv(numbers, block_m))
    part = z.new_empty(sets, splits, 2, channels, dtype=torch.float32)
    start(
        _moment_parts, (sets, splits, triton.cdiv(channels, block_c)),
        z, part, numbers, splits, channels, block_m, block_c, num_warps=4,
    )  # fmt: skip
    mean, var = (z.new_empty(sets, channels, dtype=torch.float32) for _ in range(2))
    start(
        _moments, (sets,),
        z, part, mean, var, numbers, splits, channels, _group(channels, groups),
        triton.next_power_of_2(channels), num_warps=1 if channels <= 128 else 4,
    )  # fmt: skip
    return mean, var


def launch_norm(
    z: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, eps: float,
    relu: bool, pool: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `plain_norm`."""
    z, scale, shift, mean, var = (t.contiguous() for t in (z, scale, shift, mean, var))
    (clients, rows, height, width, channels), sets = z.shape, len(mean)
    high, wide = height // pool, width // pool
    per = sets // clients
    y = z.new_empty(clients, rows, high, wide, channels)
    place = z.new_empty(y.shape if relu or pool > 1 else (clients, 0), dtype=torch.int8)
    images = rows // per
    spots = images * high * wide
    block_r, block_c = _blocks(channels)
    start(
        _norm, (sets, triton.cdiv(spots, block_r), triton.cdiv(channels, block_c)),
        z, scale, shift, mean, var, y, place, per, images * height * width, spots, height, width,
        high, wide, eps, channels, pool, relu, block_r, block_c, num_warps=4,
    )  # fmt: skip
    return y, place


def launch_norm_gradient(
    g: Tensor, place: Tensor, z: Tensor, scale: Tensor, mean: Tensor, var: Tensor, groups: int,
    eps: float, pool: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As `plain_norm_gradient`, of a gradient that is not spread yet."""
    g, place, z, scale, mean, var = (t.contiguous() for t in (g, place, z, scale, mean, var))
    (clients, rows, height, width, channels), sets = z.shape, len(mean)
    per = sets // clients
    high, wide = g.shape[2:4]
    numbers, spots = rows // per * height * width, rows // per * high * wide
    spreads = has_places(place)
    block, block_c = _blocks(channels)
    columns = triton.cdiv(channels, block_c)
    splits = parts_of_sums(sets * columns, triton.cdiv(spots, block))
    part = z.new_empty(sets, splits, 2, channels, dtype=torch.float32)
    start(
        _gradient_parts, (sets, splits, columns),
        g, place, z, mean, var, part, numbers, spots, height, width, high, wide, eps, splits,
        channels, pool, spreads, block, block_c, num_warps=4,
    )  # fmt: skip
    dscale, dshift = (z.new_empty(sets, channels, dtype=torch.float32) for _ in range(2))
    pulls = z.new_empty(2, sets, channels, dtype=torch.float32)
    start(
        _gradient_sums, (sets,),
        part, scale, dscale, dshift, pulls, sets, per, numbers, splits, channels,
        _group(channels, groups), triton.next_power_of_2(channels),
        num_warps=1 if channels <= 128 else 4,
    )  # fmt: skip
    dz = z.new_empty(z.shape)
    start(
        _norm_input, (sets, triton.cdiv(numbers, block), columns),
        g, place, z, scale, mean, var, pulls, dz, sets, per, numbers, spots, height, width, high,
        wide, eps, channels, pool, spreads, block, block_c, num_warps=4,
    )  # fmt: skip
    if per > 1:
        dscale, dshift = (t.view(clients, per, channels).sum(1) for t in (dscale, dshift))
    return dz, dscale.to(scale.dtype), dshift.to(scale.dtype)


def _sets(z: Tensor, groups: int) -> tuple[int, int, int]:
    """How many sets there are, and how many pixels and channels each has."""
    clients, rows, height, width, channels = z.shape
    if groups:
        return clients * rows, height * width, channels
    return clients, rows * height * width, channels


def _group(channels: int, groups: int) -> int:
    """How many channels are normalised together."""
    return channels // groups if groups else 1


def _blocks(channels: int) -> tuple[int, int]:
    """How many places and channels a program has at a time."""
    wide = min(64, triton.next_power_of_2(channels))
    return BLOCK // wide, wide
