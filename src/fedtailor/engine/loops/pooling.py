"""Max pooling within code that a compiler makes.

Element by element where windows lie side by side, else by PyTorch's own kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.engine.loops.convolution import pair

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


class PoolingWindow(NamedTuple):
    """How windows lie on an image; pairs are vertical, horizontal."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    ceil: bool


class _Unpooled(torch.autograd.Function):
    """The gradient of pooling; it has none itself.

    Operators of one's own need such a cover within function transforms.
    """

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, indices: Tensor, window: PoolingWindow) -> Tensor:
        found: Tensor = _unpool(gradient, x, *window, indices)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, window: PoolingWindow) -> tuple[Tensor, Tensor]:
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


# asked for by hand: the checks of `custom_op` take longer than the copy, in every step
torch.library.define("fedtailor::stored", "(Tensor x) -> Tensor")


@torch.library.impl("fedtailor::stored", "CompositeExplicitAutograd")
def _stored(x: Tensor) -> Tensor:
    """A copy that a compiler cannot see through: what it is made of is not computed again."""
    return x.clone()


torch.library.register_fake("fedtailor::stored", torch.empty_like)


class _Tiled(torch.autograd.Function):
    """Pooling by windows that lie side by side, for images with channels last.

    A compiler fuses it with what comes before. Of equal numbers the first counts, as in PyTorch.
    """

    @staticmethod
    def forward(x: Tensor, high: int, wide: int) -> tuple[Tensor, Tensor]:
        n, channels, height, width = x.shape
        shape = n, height // high, high, width // wide, wide, channels
        tiles = x.permute(0, 2, 3, 1).reshape(shape)
        most = tiles[:, :, 0, :, 0]
        place = torch.zeros_like(most)  # numbers of the same type: they share vector registers
        for number in range(1, high * wide):
            value = tiles[:, :, number // wide, :, number % wide]
            more = (value > most) | value.isnan()
            most = torch.where(more, value, most)
            place = torch.where(more, float(number), place)
        return most.permute(0, 3, 1, 2), torch.ops.fedtailor.stored(place)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.size = inputs[1:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (place,), (high, wide) = ctx.saved_tensors, ctx.size
        numbers = torch.arange(high * wide, dtype=place.dtype, device=place.device)
        here = place[:, :, None, :, None] == numbers.view(high, 1, wide, 1)
        spread = gradients[0].permute(0, 2, 3, 1)[:, :, None, :, None]
        back = torch.where(here, spread, 0.0).flatten(3, 4).flatten(1, 2)
        return back.permute(0, 3, 1, 2), None, None


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
    window = PoolingWindow(kernel, step, list(pair(padding)), list(pair(dilation)), ceil_mode)
    fits = input.shape[2] % kernel[0] == 0 and input.shape[3] % kernel[1] == 0
    if fits and window == PoolingWindow(kernel, kernel, [0, 0], [1, 1], False):
        tiled: Tensor = _Tiled.apply(input, *kernel)[0]  # type: ignore[no-untyped-call]
        return tiled
    found: Tensor = _Pooled.apply(input, window)[0]  # type: ignore[no-untyped-call]
    return found
