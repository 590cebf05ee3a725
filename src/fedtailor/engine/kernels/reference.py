"""What the kernels compute, in plain torch: for CPUs, for types without kernels, and for tests.

Every tensor has an axis of clients in front, and images have their channels last:
x (clients, rows, height, width, channels), weights (clients, out, in, high, wide).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Slide(NamedTuple):
    """How the points of a kernel slide over an image; pairs are vertical, horizontal.

    Example:
      >>> Slide((5, 5), (1, 1), (0, 0)).places(32, 28)
      (28, 24)
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def places(self, height: int, width: int) -> tuple[int, int]:
        """How many places there are on an image."""
        down, across = (
            (size + 2 * self.padding[d] - self.kernel[d]) // self.stride[d] + 1
            for d, size in enumerate((height, width))
        )
        return down, across

    def flat(self) -> list[int]:
        """As operators take it."""
        return [*self.kernel, *self.stride, *self.padding]

    @classmethod
    def of(cls, flat: list[int]) -> Slide:
        """From what operators take."""
        return cls((flat[0], flat[1]), (flat[2], flat[3]), (flat[4], flat[5]))


def _patches(x: Tensor, slide: Slide) -> Tensor:
    """(clients, rows * places, channels * kernel)."""
    clients, rows, *image = x.shape
    columns = F.unfold(
        x.reshape(clients * rows, *image).permute(0, 3, 1, 2),
        slide.kernel, 1, slide.padding, slide.stride,
    )  # fmt: skip
    return columns.mT.reshape(clients, -1, columns.shape[1])


def plain_convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, slide: Slide, relu: bool, pool: int
) -> tuple[Tensor, Tensor]:
    """A convolution, ReLU if wanted, and the largest of windows side by side.

    Also where in its window each came from: of equal numbers the first counts, as in torch; -1
    where ReLU cut it off. Empty if neither was wanted.
    """
    clients, out = w.shape[:2]
    y = _patches(x, slide) @ w.reshape(clients, out, -1).mT
    if bias is not None:
        y = y + bias[:, None]
    y = y.reshape(clients, x.shape[1], *slide.places(*x.shape[2:4]), out)
    return _largest(y, relu, pool)


def _largest(y: Tensor, relu: bool, pool: int) -> tuple[Tensor, Tensor]:
    """ReLU if wanted, the largest of windows, and where these were."""
    if not relu and pool == 1:
        return y, y.new_zeros(len(y), 0, dtype=torch.int8)
    windows = _windows(y, pool)
    most, place = windows[0], torch.zeros_like(windows[0], dtype=torch.int8)
    for number, value in enumerate(windows[1:], 1):
        more = (value > most) | value.isnan()
        most, place = torch.where(more, value, most), place.masked_fill(more, number)
    if relu:
        place = place.masked_fill(most <= 0, -1)
        most = most.relu()
    return most.contiguous(), place


def _windows(y: Tensor, pool: int) -> list[Tensor]:
    """Of each window the first point, the second, and so on; what is over at the edges is left."""
    height, width = (y.shape[d] // pool * pool for d in (2, 3))
    return [y[:, :, i // pool : height : pool, i % pool : width : pool] for i in range(pool * pool)]


def has_places(place: Tensor) -> bool:
    """Whether there are any: a ReLU or pooling chose."""
    return place.ndim > 2


def plain_spread(g: Tensor, place: Tensor, pool: int, size: tuple[int, int]) -> Tensor:
    """A gradient back through pooling and ReLU, to where each number came from."""
    found = g.new_zeros(*g.shape[:2], *size, g.shape[-1])
    for number, window in enumerate(_windows(found, pool)):
        window.copy_(g.masked_fill(place != number, 0))
    return found


def plain_gather(g: Tensor, place: Tensor, pool: int) -> Tensor:
    """The numbers at the places that pooling chose, 0 where ReLU cut off: undoes a spread."""
    found = g.new_zeros(place.shape)
    for number, window in enumerate(_windows(g, pool)):
        found = torch.where(place == number, window, found)
    return found


def plain_input_gradient(g: Tensor, w: Tensor, slide: Slide, size: tuple[int, int]) -> Tensor:
    """The gradient of a convolution's images, which are of this size."""
    clients, rows, *_, out = g.shape
    columns = g.reshape(clients, -1, out) @ w.reshape(clients, out, -1)
    places = math.prod(slide.places(*size))
    back = F.fold(
        columns.reshape(clients * rows, places, -1).mT,
        size, slide.kernel, 1, slide.padding, slide.stride,
    )  # fmt: skip
    return back.permute(0, 2, 3, 1).reshape(clients, rows, *size, w.shape[2])


def plain_weight_gradient(
    x: Tensor, g: Tensor, slide: Slide, biased: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of a convolution's weights and biases; without biases theirs is empty."""
    clients, out = len(g), g.shape[-1]
    flat = g.reshape(clients, -1, out)
    weight = (flat.mT @ _patches(x, slide)).reshape(clients, out, x.shape[-1], *slide.kernel)
    return weight, flat.sum(1) if biased else g.new_zeros(clients, 0)


def plain_moments(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the numbers that are normalised together, for each channel.

    Without groups these are a channel's in all rows of a client (BatchNorm): (clients, channels).
    With groups they are those of a group of channels in one row: (clients * rows, channels).
    """
    if not groups:
        var, mean = torch.var_mean(z, (1, 2, 3), correction=0)
        return mean, var
    each = z.shape[-1] // groups
    rows = z.reshape(-1, *z.shape[2:4], groups, each)
    var, mean = torch.var_mean(rows, (1, 2, 4), correction=0)
    return mean.repeat_interleave(each, 1), var.repeat_interleave(each, 1)


def _beside(moment: Tensor, z: Tensor) -> Tensor:
    """A number for each channel, of a client or of a row, beside their pixels."""
    return moment.reshape(len(z), -1, 1, 1, z.shape[-1])


def plain_norm(
    z: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, eps: float,
    relu: bool, pool: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Images brought to mean 0 and variance 1, scaled and shifted; then as convolutions are."""
    standard = (z - _beside(mean, z)) * (_beside(var, z) + eps).rsqrt()
    return _largest(standard * _beside(scale, z) + _beside(shift, z), relu, pool)


def plain_norm_gradient(
    g: Tensor, z: Tensor, scale: Tensor, mean: Tensor, var: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of images, scales and shifts; `g` is spread already.

    Means and variances are made of the images, and so have a part in their gradient.
    """
    steep = (_beside(var, z) + eps).rsqrt()
    standard = (z - _beside(mean, z)) * steep
    pull = g * _beside(scale, z)
    level, turn = (_beside(plain_moments(t, groups)[0], z) for t in (pull, pull * standard))
    back = steep * (pull - level - standard * turn)
    return back, (g * standard).sum((1, 2, 3)), g.sum((1, 2, 3))


def plain_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row, and its gradient; rows labelled -100 count nothing."""
    loss = F.cross_entropy(logits, labels, reduction="none")
    counts = labels != -100
    ones = F.one_hot(labels.where(counts, 0), logits.shape[-1])
    return loss, (logits.softmax(-1) - ones) * counts[:, None]
