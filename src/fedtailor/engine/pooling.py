"""Max pooling by PyTorch's own kernels, also within code that a compiler makes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .convolution import pair

aten = torch.ops.aten


@torch.library.custom_op("fedtailor::pool", mutates_args=())
def _pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices(
        x, kernel, stride, padding, dilation, ceil
    )
    return found


@torch.library.custom_op("fedtailor::unpool", mutates_args=())
def _unpool(
    gradient: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
    indices: Tensor,
) -> Tensor:
    found: Tensor = aten.max_pool2d_with_indices_backward(
        gradient, x, kernel, stride, padding, dilation, ceil, indices
    )
    return found


@_pool.register_fake
def _(x: Tensor, *window: Any) -> Any:
    return aten.max_pool2d_with_indices(x, *window)


@_unpool.register_fake
def _(gradient: Tensor, x: Tensor, *rest: Any) -> Any:
    return torch.empty_like(x)


class Window(NamedTuple):
    """How windows lie on an image; pairs are vertical, horizontal."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool


class _Unpooled(torch.autograd.Function):
    """The gradient of pooling; it has none itself. (Operators of one's own need such a cover
    within function transforms.)"""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, indices: Tensor, window: Window) -> Tensor:
        found: Tensor = _unpool(gradient, x, *window, indices)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _pool(x, *window)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.window = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, indices = ctx.saved_tensors
        back: Tensor = _Unpooled.apply(gradients[0], x, indices, ctx.window)  # type: ignore[no-untyped-call]
        return back, None


def pooled(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """`torch.max_pool2d`, which see; not for mapped tensors."""
    kernel = list(pair(kernel_size))
    step = kernel if stride is None or stride == [] else list(pair(stride))
    window = Window(kernel, step, list(pair(padding)), list(pair(dilation)), ceil_mode)
    found: Tensor = _Pooled.apply(input, window)[0]  # type: ignore[no-untyped-call]
    return found
