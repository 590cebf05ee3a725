"""Convolutions that kernels and references are tried on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.engine.kernels.reference import Slide


class Shape(NamedTuple):
    """Clients with weights of their own."""

    clients: int
    rows: int
    size: tuple[int, int]
    channels: int
    out: int
    slide: Slide
    pool: int = 1

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """Images with channels last, weights, biases."""
        make = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=make, dtype=torch.float64).to(dtype)
        return (
            draw(self.clients, self.rows, *self.size, self.channels),
            draw(self.clients, self.out, self.channels, *self.slide.kernel),
            draw(self.clients, self.out),
        )


SHAPES = {
    "few channels, pooled": Shape(2, 2, (9, 8), 3, 5, Slide((5, 5), (1, 1), (0, 0)), 2),
    "one channel": Shape(1, 2, (6, 6), 1, 4, Slide((3, 3), (1, 1), (1, 1)), 3),
    "many channels": Shape(2, 2, (5, 7), 17, 20, Slide((3, 3), (1, 1), (1, 1)), 2),
    "pointwise": Shape(2, 3, (4, 4), 32, 16, Slide((1, 1), (1, 1), (0, 0))),
    "strided": Shape(2, 2, (6, 7), 16, 18, Slide((3, 2), (2, 2), (1, 0))),
}
