"""Which tensors an operator is given, and what is known of them before they are computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx


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


def outline_of(node: fx.Node) -> Outline:
    """Of a recorded value."""
    outline: Outline = node.meta["outline"]
    return outline


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors among arguments or results, however deep.

    Example:
      >>> len(tensors_in((torch.ones(1), [2, {"x": torch.ones(3)}])))
      2
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]
