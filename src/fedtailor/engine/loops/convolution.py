"""Convolutions of many clients at once, as one matrix product.

Mapped over clients that have weights of their own, a convolution becomes one with a group per
client, for which kernels are slow. Patches laid out as columns (im2col) make it a batched matrix
product, which they are made for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class ConvolutionWindow(NamedTuple):
    """How a kernel slides over an image; pairs are vertical, horizontal."""

    kernel: tuple[int, int]  # its size
    stride: tuple[int, int]  # from one place to the next
    dilation: tuple[int, int]  # between its points
    padding: tuple[int, int]  # around the image
    places: tuple[int, int]  # how many there are

    def slices(self) -> Iterator[tuple[slice, slice]]:
        """For each point of the kernel, what it sees of the padded image."""
        for i, j in itertools.product(range(self.kernel[0]), range(self.kernel[1])):
            begin = i * self.dilation[0], j * self.dilation[1]
            yield tuple(  # type: ignore[misc]
                slice(
                    begin[d], begin[d] + self.stride[d] * (self.places[d] - 1) + 1, self.stride[d]
                )
                for d in (0, 1)
            )


class _Patches(torch.autograd.Function):
    """What the kernel sees at each place of an image.

    (n, channels, height, width) -> (n, channels * kernel, places)

    Forwards one gather, or `stacked` slices, which a compiler turns into copies of whole rows on a
    CPU; backwards, for a compiler (`sliced`), a sum of slices, which fuses into one kernel without
    scattering; else PyTorch's own kernel.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, window: ConvolutionWindow, sliced: bool, stacked: bool) -> Tensor:
        if window.dilation != (1, 1):
            return F.unfold(x, window.kernel, window.dilation, window.padding, window.stride)
        (high, wide), (down, across), _, (pad_y, pad_x), _ = window
        padded = F.pad(x, (pad_x, pad_x, pad_y, pad_y)) if pad_y or pad_x else x
        if stacked:
            # laid out as columns of all images are wanted: they are not copied once more
            whole = padded.movedim(0, 1)
            points = [whole[:, :, rows, columns] for rows, columns in window.slices()]
            return torch.stack(points, 1).flatten(0, 1).flatten(2).movedim(1, 0)
        seen = padded.unfold(2, high, down).unfold(3, wide, across)  # a view
        return seen.permute(0, 1, 4, 5, 2, 3).reshape(len(x), -1, math.prod(window.places))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.window, ctx.sliced, _ = inputs
        ctx.size = x.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,), window = gradients, ctx.window
        n, channels, height, width = ctx.size
        if not ctx.sliced:
            back = F.fold(
                gradient,
                (height, width),
                window.kernel,
                window.dilation,
                window.padding,
                window.stride,
            )
            return back, None, None, None
        pad_y, pad_x = window.padding
        shape = n, channels, height + 2 * pad_y, width + 2 * pad_x
        points = gradient.reshape(n, channels, -1, *window.places).unbind(2)
        total = None
        for (down, across), point in zip(window.slices(), points, strict=True):
            spread = _spread(point, shape, down, across)
            total = spread if total is None else total + spread
        assert total is not None
        return total[:, :, pad_y : pad_y + height, pad_x : pad_x + width], None, None, None


def _spread(point: Tensor, shape: tuple[int, ...], down: slice, across: slice) -> Tensor:
    """A slice back in its place, zeros around it."""
    if down.step == across.step == 1:
        after = shape[3] - across.stop, shape[2] - down.stop
        return F.pad(point, (across.start, after[0], down.start, after[1]))
    wide = point.new_zeros(*shape[:2], point.shape[2], shape[3])
    wide = torch.slice_scatter(wide, point, 3, across.start, across.stop, across.step)
    return torch.slice_scatter(point.new_zeros(shape), wide, 2, down.start, down.stop, down.step)


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Vertical, horizontal; one number counts for both."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


def as_matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    sliced: bool = False,
    last: bool = False,
) -> Tensor:
    """`torch.conv2d` without groups, as a matrix product.

    Args:
      x, weight, bias, stride, padding, dilation: of the convolution.
      sliced: write operators that a compiler fuses, instead of those that are fast as they are.
      last: lay the result out with its channels last, as CPUs like it.
    """
    step, apart, around = pair(stride), pair(dilation), pair(padding)
    n, channels, *size = x.shape
    out, _, *kernel = weight.shape
    places = [
        (size[d] + 2 * around[d] - apart[d] * (kernel[d] - 1) - 1) // step[d] + 1 for d in (0, 1)
    ]
    if kernel == [1, 1] and around == (0, 0):  # nothing to lay out
        patches = x[:, :, :: step[0], :: step[1]].reshape(n, channels, -1)
    else:
        window = ConvolutionWindow(
            (kernel[0], kernel[1]), step, apart, around, (places[0], places[1])
        )
        patches = _Patches.apply(x, window, sliced, last)  # type: ignore[no-untyped-call]
    # (n, channels * kernel, places) -> (channels * kernel, n * places): one column per output
    columns = patches.movedim(0, 1).reshape(patches.shape[1], -1)
    if last:
        # weights in one piece: else their gradient is a product of two matrices that both lie
        # the other way round, which takes MKL three times as long
        y = (columns.t() @ weight.reshape(out, -1).t().contiguous()).reshape(n, *places, out)
        # added to images: added to the product, a bias would be copied to all places first
        return (y if bias is None else y + bias).permute(0, 3, 1, 2)
    y = weight.reshape(out, -1) @ columns
    if bias is not None:
        y = y + bias[:, None]
    return y.reshape(out, n, *places).transpose(0, 1)
