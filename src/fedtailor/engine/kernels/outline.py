"""What is known of a tensor before it is computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Outline(NamedTuple):
    """All of a tensor but its numbers.

    Example:
      >>> Outline.of(torch.zeros(2, 3).t()).strides
      (1, 3)
    """

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    contiguous: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Outline:
        """A tensor's."""
        return cls(
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_contiguous()
        )
