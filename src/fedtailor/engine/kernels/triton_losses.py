"""Cross entropy and its gradient in one kernel; needs Triton."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-any-return"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedtailor.engine.kernels.triton_start import start


@triton.jit
def _cross_entropy(
    logits, labels, loss, slope, rows, C: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr
):
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    c = tl.arange(0, BC)
    there = (m < rows)[:, None] & (c < C)[None, :]
    at = m[:, None] * C + c[None, :]
    z = tl.load(logits + at, mask=there, other=float("-inf")).to(tl.float32)
    label = tl.load(labels + m, mask=m < rows, other=-100)
    z = tl.where((m < rows)[:, None], z, 0.0)  # rows that are not there: no infinities
    most = tl.max(z, 1)
    e = tl.exp(z - most[:, None])
    total = tl.sum(e, 1)
    mine = c[None, :] == label[:, None]
    own = tl.sum(tl.where(mine, z, 0.0), 1)
    counts = label != -100
    found = tl.where(counts, tl.log(total) + (most - own), 0.0)  # small ones stay exact
    p = e / total[:, None]
    g = tl.where(counts[:, None], tl.where(mine, p - 1, p), 0.0)
    tl.store(loss + m, found, mask=m < rows)
    tl.store(slope + at, g, mask=there)


def launch_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row, and its gradient."""
    rows, classes = logits.shape
    logits, labels = logits.contiguous(), labels.contiguous()
    loss, slope = logits.new_empty(rows), logits.new_empty(logits.shape)
    wide = triton.next_power_of_2(classes)
    block = max(1, min(64, 1024 // wide))
    start(
        _cross_entropy, (triton.cdiv(rows, block),),
        logits, labels, loss, slope, rows, classes, block, wide, num_warps=1 if wide < 128 else 4,
    )  # fmt: skip
    return loss, slope
