"""The cross entropy of rows as an operator that gives its gradient in the same pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor.engine.kernels.launch import as_operator, gives_shapes
from fedtailor.engine.kernels.reference import plain_cross_entropy
from fedtailor.engine.kernels.support import has_kernels

TYPES = (torch.float32, torch.bfloat16, torch.float16)
CLASSES = 2048  # more do not fit into a program
NOTHING = -100  # the label of rows that count nothing, as torch has it


def _row_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if gives_shapes():
        return _shapes(logits, labels)
    fits = logits.dtype in TYPES and logits.shape[1] <= CLASSES and len(logits)
    if fits and has_kernels(logits.device):
        from fedtailor.engine.kernels.triton_losses import launch_cross_entropy

        return launch_cross_entropy(logits, labels)
    return plain_cross_entropy(logits, labels)


def _shapes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_zeros(len(logits)), torch.zeros_like(
        logits, memory_format=torch.contiguous_format
    )


_ROW_LOSSES = as_operator(_row_losses, _shapes)


def _as_rows(size: int, axes: Any, *tensors: Tensor) -> list[Tensor]:
    """A mapped axis as more rows."""
    return [
        (t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)).flatten(0, 1)
        for t, axis in zip(tensors, axes, strict=True)
    ]


class _RowLosses(torch.autograd.Function):
    """Logits and labels -> losses, and their gradient."""

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _ROW_LOSSES(logits, labels)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, None]:
        logits, labels, slope = ctx.saved_tensors
        return _Pulled.apply(gradients[0], logits, labels, slope), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, axes: Any, logits: Tensor, labels: Tensor) -> tuple[Any, Any]:
        rows = _as_rows(info.batch_size, axes, logits, labels)
        loss, slope = _RowLosses.apply(*rows)  # type: ignore[no-untyped-call]
        whole = info.batch_size, -1
        return (loss.unflatten(0, whole), slope.unflatten(0, whole)), (0, 0)


class _Pulled(torch.autograd.Function):
    """The gradient of logits; what it depends on is known, for gradients of gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, logits: Tensor, labels: Tensor, slope: Tensor) -> Tensor:
        return g[:, None] * slope

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (g, logits, labels, _), gg = ctx.saved_tensors, gradients[0]
        counts = (labels != NOTHING)[:, None].to(logits.dtype)
        p = logits.softmax(-1)
        mine = labels[:, None] == torch.arange(logits.shape[-1], device=labels.device)
        own = (p - mine.to(p.dtype)) * counts  # not the slope that was saved: it has no gradient
        scaled = g[:, None] * p * gg * counts
        return (gg * own).sum(-1), scaled - p * scaled.sum(-1, keepdim=True), None, None


def fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """`F.cross_entropy(logits, labels, reduction="none")` of rows of numbers.

    Example:
      >>> fused_cross_entropy(torch.zeros(2, 4), torch.tensor([1, -100]))
      tensor([1.3863, 0.0000])
    """
    found: Tensor = _RowLosses.apply(logits, labels)[0]  # type: ignore[no-untyped-call]
    return found
