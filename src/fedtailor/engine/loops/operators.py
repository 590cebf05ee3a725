"""Operators that have a faster form when steps are traced. Results are the same up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtailor.engine.loops.convolution import as_matmul
from fedtailor.engine.loops.pooling import pooled

_CONVOLUTIONS = (
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
)
# numbers under a kernel up to which a matrix product is faster than PyTorch's convolution on a CPU
FEW = 32
# rows of which, and numbers of weights from which, a layer is faster turned round on a CPU: MKL
# takes up to 1.8 times as long for few rows times a matrix that is larger than a core's cache
ROWS, WEIGHTS = range(10, 33), 1 << 18
_POOLS = (torch.max_pool2d, F.max_pool2d)
_POOL = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_LINEAR = ("input", "weight", "bias")
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class MatmulConvolutions(TorchFunctionMode):
    """While this is active, two-dimensional convolutions without groups are matrix products.

    That pays where clients are mapped. `sliced` writes what a compiler fuses best: `as_matmul`.
    """

    def __init__(self, sliced: bool) -> None:
        super().__init__()
        self._sliced = sliced

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(zip(_CONVOLUTION, args, strict=False)) | (kwargs or {})
        if func is not torch.conv2d or not _simple(named):
            return func(*args, **(kwargs or {}))
        return _product(named, sliced=self._sliced)


def _simple(named: dict[str, Any]) -> bool:
    """Images of one client, no groups, padding in numbers."""
    return (
        named.get("groups", 1) == 1
        and not isinstance(named.get("padding", 0), str)
        and named["input"].ndim == 4
    )


def _product(named: dict[str, Any], sliced: bool, last: bool = False) -> Tensor:
    rest = {k: v for k, v in named.items() if k not in ("input", "weight", "groups")}
    return as_matmul(named["input"], named["weight"], **rest, sliced=sliced, last=last)


def _turned_round(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` of few rows."""
    y = (weight @ input.t()).t()
    return y if bias is None else y + bias


class ChannelsLast(TorchFunctionMode):
    """While this is active, two-dimensional convolutions get their images with channels last.

    So does what follows them: pooling alone is ten times faster so on a CPU. `compiled` writes what
    TorchInductor makes good code of. Its own pooling is ten times slower than PyTorch's, see
    `pooled`; convolutions of very few numbers become matrix products. Large layers are turned
    round.
    """

    def __init__(self, compiled: bool) -> None:
        super().__init__()
        self._compiled = compiled

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _POOLS and self._compiled:
            named = dict(zip(_POOL, args, strict=False)) | (kwargs or {})
            if not named.pop("return_indices", False):
                return pooled(**named)
        if func is F.linear:
            named = dict(zip(_LINEAR, args, strict=False)) | (kwargs or {})
            x, weight = named["input"], named["weight"]
            if x.ndim == weight.ndim == 2 and len(x) in ROWS and weight.numel() >= WEIGHTS:
                return _turned_round(**named)
        named = dict(zip(_CONVOLUTION, args, strict=False)) | (kwargs or {})
        if func is not torch.conv2d or named["input"].ndim != 4:
            return func(*args, **(kwargs or {}))
        if self._compiled and _simple(named) and named["weight"][0].numel() <= FEW:
            return _product(named, sliced=True, last=True)
        for part in ("input", "weight"):  # once: both directions read them so
            named[part] = named[part].contiguous(memory_format=torch.channels_last)
        # with a single channel the input has no such order to pass on
        return torch.conv2d(**named).contiguous(memory_format=torch.channels_last)


class SeesConvolutions(TorchFunctionMode):
    """Notes whether there are convolutions at all."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen = self.seen or func in _CONVOLUTIONS
        return func(*args, **(kwargs or {}))
