"""Meets convolutions, norms, ReLU, pooling and losses while a step is traced, and fuses them.

Whatever a network does with what lies between stays right: each operator is written down on its
own first, and once more together with the ones before it when the next one comes. Nobody uses the
shorter ones then, and tracing drops what nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtailor.engine.kernels.convolutions import fused_convolution
from fedtailor.engine.kernels.losses import fused_cross_entropy
from fedtailor.engine.kernels.norms import fused_norm, norm_moments
from fedtailor.engine.kernels.outline import tensors_in
from fedtailor.engine.kernels.reference import Slide

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_POOL = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_LOSS = (
    "input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction",
    "label_smoothing",
)  # fmt: skip
_BATCH_NORM = (
    "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
)  # fmt: skip
_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps")
LARGEST = 8  # window that a program can pool
_RELUS = (F.relu, torch.relu, Tensor.relu)
_RELUS_IN_PLACE = (torch.relu_, Tensor.relu_)
_POOLS = (F.max_pool2d, torch.max_pool2d)
# these ask images how they lie, which mapped ones cannot say of channels that lie last
_NORMS = (
    F.batch_norm, F.group_norm, F.instance_norm, torch.batch_norm, torch.group_norm,
    torch.instance_norm,
)  # fmt: skip


# of those that may give a view of their tensor
_VIEWS = frozenset(
    {
        "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "permute",
        "movedim", "squeeze", "unsqueeze", "t", "select", "narrow", "expand", "expand_as", "chunk",
        "split", "unbind", "detach", "contiguous", "diagonal", "unfold", "__getitem__", "__get__",
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Made:
    """How a tensor was made."""

    make: Callable[[bool, int], Tensor]  # with ReLU or not, of windows of this size
    size: tuple[int, int]  # before pooling
    relu: bool = False
    pool: int = 1

    def tensor(self) -> Tensor:
        return self.make(self.relu, self.pool)


class CannotFuse(RuntimeError):
    """A network changes in place what was fused, or a view of it."""

    def __init__(self) -> None:
        super().__init__("a convolution's result is changed in place in a way that cannot be fused")


class FusedOperators(TorchFunctionMode):
    """While this is active, what there are kernels for is written with their operators.

    Raises:
      CannotFuse: the network would see a difference.
    """

    def __init__(self) -> None:
        super().__init__()
        # all by address: what is known is kept, so no other tensor can have it
        self._made: dict[int, tuple[Tensor, _Made]] = {}
        self._touched: set[int] = set()  # of those, what something else was made of
        self._gone: dict[int, Tensor] = {}  # replaced by what they were to become in place
        self._copied: dict[int, Tensor] = {}  # where a view was asked for, and what it is of

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        of = [id(t) for t in tensors_in((args, given))]
        if not self._gone.keys().isdisjoint(of):
            raise CannotFuse
        if _changes(func, args, given):
            return self._changed(func, args, given, of)
        made = self._fuses(func, args, given)
        if made is not None:
            return self._note(made)
        if func is F.cross_entropy:
            loss = _cross_entropy(_named(_LOSS, args, given))
            return func(*args, **given) if loss is None else loss
        if func is Tensor.view and of and of[0] in self._made:
            return self._viewed(args, given)
        found = _normalised(func, args, given) if func in _NORMS else func(*args, **given)
        results = tensors_in(found)
        if results:
            self._touched.update(of)
        if getattr(func, "__name__", "") in _VIEWS and not self._copied.keys().isdisjoint(of):
            self._copied |= {id(t): t for t in results}
        return found

    def _fuses(self, func: Any, args: Any, given: dict[str, Any]) -> _Made | None:
        """What a function makes, if there is an operator for it."""
        if func is torch.conv2d:
            return _convolution(_named(_CONVOLUTION, args, given))
        if func is F.batch_norm:
            return _batch_norm(**_named(_BATCH_NORM, args, given))
        if func is F.group_norm:
            return _group_norm(**_named(_GROUP_NORM, args, given))
        if func not in (*_RELUS, *_RELUS_IN_PLACE, *_POOLS):
            return None
        named = _named(_POOL, args, given)
        _, before = self._made.get(id(named["input"]), (None, None))
        if before is None:
            return None
        if func in _POOLS:
            return _with_pool(before, **{k: v for k, v in named.items() if k != "input"})
        # the largest after ReLU is ReLU of the largest
        return None if before.relu else replace(before, relu=True)

    def _note(self, made: _Made) -> Tensor:
        tensor = made.tensor()
        self._made[id(tensor)] = tensor, made
        return tensor

    def _changed(self, func: Any, args: Any, given: dict[str, Any], of: list[int]) -> Any:
        """What a function gives that changes a tensor: nobody knows then how others were made."""
        if not self._copied.keys().isdisjoint(of):
            raise CannotFuse
        made = self._fuses(func, args, given) if func in (F.relu, *_RELUS_IN_PLACE) else None
        if made is not None and of[0] not in self._touched:
            self._gone[of[0]] = self._made.pop(of[0])[0]
            return self._note(made)
        self._made.clear()
        return func(*args, **given)

    def _viewed(self, args: Any, given: dict[str, Any]) -> Tensor:
        """A view of a result, which lies with its channels last: copied, if need be."""
        self._touched.add(id(args[0]))
        try:
            return Tensor.view(*args, **given)
        except RuntimeError:
            found: Tensor = args[0].reshape(*args[1:], **given)
        self._copied |= {id(t): t for t in (args[0], found)}
        return found


def _normalised(func: Any, args: Any, given: dict[str, Any]) -> Any:
    """What a normalisation gives: images as rows of pixels, of which nobody asks how they lie."""
    named = dict(given)
    images = args[0] if args else named.pop("input")
    rows = images.flatten(2) if images.ndim > 3 else images
    return func(rows, *args[1:], **named).reshape(images.shape)


def _named(names: tuple[str, ...], args: Any, given: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(names, args, strict=False)) | given


def _changes(func: Any, args: Any, given: dict[str, Any]) -> bool:
    """Whether a function changes a tensor that it is given."""
    name = getattr(func, "__name__", "")
    if given.get("out") is not None or name in ("__set__", "__setitem__"):
        return True
    if name.endswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    if isinstance(func, FunctionType):
        names = func.__code__.co_varnames[: func.__code__.co_argcount]
        if "inplace" in names:
            return bool(_named(names, args, given).get("inplace", False))
    return name.endswith("_")


def _pair(value: Any) -> tuple[int, int] | None:
    if isinstance(value, int):
        return value, value
    if isinstance(value, (tuple, list)) and all(isinstance(v, int) for v in value):
        return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])
    return None


def _convolution(named: dict[str, Any]) -> _Made | None:
    x, w, bias = named["input"], named["weight"], named.get("bias")
    stride, padding = _pair(named.get("stride", 1)), _pair(named.get("padding", 0))
    plain = named.get("groups", 1) == 1 and _pair(named.get("dilation", 1)) == (1, 1)
    if not plain or stride is None or padding is None or x.ndim != 4 or not x.is_floating_point():
        return None
    slide = Slide((w.shape[2], w.shape[3]), stride, padding)
    size = slide.places(*_size(x))
    return _Made(partial(fused_convolution, x, w, bias, slide), size) if min(size) > 0 else None


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> _Made | None:
    """By the batch's own moments, which running ones follow."""
    if not training or weight is None or bias is None or not _are_alike(input, weight, bias):
        return None
    numbers = input.numel() // input.shape[1]
    if numbers < 2:  # torch says what is wrong with one number
        return None
    if (running_mean is None) != (running_var is None):
        return None
    moments = norm_moments(input)
    if running_mean is not None and running_var is not None:
        mean, var = moments
        for running, now in ((running_mean, mean), (running_var, var * (numbers / (numbers - 1)))):
            running.mul_(1 - momentum).add_(now[0].to(running.dtype), alpha=momentum)
    return _Made(partial(fused_norm, input, weight, bias, moments, 0, eps), _size(input))


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> _Made | None:
    if weight is None or bias is None or not _are_alike(input, weight, bias):
        return None
    if num_groups < 1 or input.shape[1] % num_groups:  # torch says what is wrong
        return None
    moments = norm_moments(input, num_groups)
    return _Made(partial(fused_norm, input, weight, bias, moments, num_groups, eps), _size(input))


def _are_alike(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether these are images, with scales and shifts of the same type."""
    images = x.ndim == 4 and x.numel() > 0 and x.is_floating_point()
    return images and x.dtype == weight.dtype == bias.dtype


def _size(images: Tensor) -> tuple[int, int]:
    return images.shape[2], images.shape[3]


def _with_pool(
    made: _Made,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Made | None:
    """Square windows side by side that lie within the image."""
    kernel = _pair(kernel_size)
    step = kernel if stride is None or stride == [] else _pair(stride)
    simple = (
        made.pool == 1 and kernel is not None and kernel[0] == kernel[1] <= LARGEST
        and step == kernel and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
        and not return_indices
    )  # fmt: skip
    if not simple or kernel is None:
        return None
    if min(made.size) < kernel[0] or (ceil_mode and any(size % kernel[0] for size in made.size)):
        return None
    return replace(made, pool=kernel[0])


def _cross_entropy(named: dict[str, Any]) -> Tensor | None:
    logits, labels = named["input"], named["target"]
    old = named.get("size_average") is not None or named.get("reduce") is not None
    simple = (
        named.get("reduction", "mean") == "none" and named.get("weight") is None and not old
        and not named.get("label_smoothing", 0.0) and named.get("ignore_index", -100) == -100
        and logits.ndim == 2 and labels.ndim == 1 and labels.dtype == torch.int64
    )  # fmt: skip
    return fused_cross_entropy(logits, labels) if simple else None
