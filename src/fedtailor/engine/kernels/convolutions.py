"""Convolutions of many clients as operators: kernels where there are some, else plain torch.

A client axis is one of the operator's own: mapped over clients that have weights of their own, it
grows, and nested mappings become one axis. The operators are closed under differentiation: the
gradient of each is made of the others, so gradients of gradients are right too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor.engine.kernels.launch import as_operator, gives_shapes
from fedtailor.engine.kernels.reference import (
    Slide,
    has_places,
    plain_convolution,
    plain_gather,
    plain_input_gradient,
    plain_spread,
    plain_weight_gradient,
)
from fedtailor.engine.kernels.support import has_kernels, may_round

MOST = 2**31  # numbers of one client that kernels can count
CLIENTS = 2**16  # that one launch can have
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def _fits(x: Tensor, out: int, places: tuple[int, int]) -> bool:
    """Whether there is a kernel for such images."""
    most = x[0].numel() if len(x) else 0
    given = x.shape[1] * places[0] * places[1] * out
    return (
        x.dtype in TYPES and 0 < len(x) < CLIENTS and 0 < most < MOST and 0 < given < MOST
        and has_kernels(x.device)
    )  # fmt: skip


def _rounds(x: Tensor) -> bool:
    return x.dtype == torch.float32 and may_round()


def _convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, slide: list[int], relu: bool, pool: int
) -> tuple[Tensor, Tensor]:
    how = Slide.of(slide)
    if gives_shapes():
        return _shapes(x, w, bias, slide, relu, pool)
    if _fits(x, w.shape[1], how.places(*x.shape[2:4])):
        from fedtailor.engine.kernels.triton_convolution import launch_convolution

        return launch_convolution(x, w, bias, how, relu, pool, _rounds(x))
    return plain_convolution(x, w, bias, how, relu, pool)


def _shapes(
    x: Tensor, w: Tensor, bias: Tensor | None, slide: list[int], relu: bool, pool: int
) -> tuple[Tensor, Tensor]:
    high, wide = (size // pool for size in Slide.of(slide).places(*x.shape[2:4]))
    y = x.new_zeros(*x.shape[:2], high, wide, w.shape[1])
    return y, y.new_zeros(y.shape if relu or pool > 1 else (len(x), 0), dtype=torch.int8)


def _spread(g: Tensor, place: Tensor, pool: int, size: list[int]) -> Tensor:
    high, wide = size
    if gives_shapes():
        return _spread_shape(g, place, pool, size)
    if g.dtype in TYPES and has_kernels(g.device):
        from fedtailor.engine.kernels.triton_layout import launch_spread

        return launch_spread(g, place, pool, (high, wide))
    return plain_spread(g, place, pool, (high, wide))


def _spread_shape(g: Tensor, place: Tensor, pool: int, size: list[int]) -> Tensor:
    return g.new_zeros(*g.shape[:2], *size, g.shape[-1])


def _gather(g: Tensor, place: Tensor, pool: int) -> Tensor:
    return plain_gather(g, place, pool)


def _gather_shape(g: Tensor, place: Tensor, pool: int) -> Tensor:
    return g.new_zeros(place.shape)


def _input_gradient(g: Tensor, w: Tensor, slide: list[int], size: list[int]) -> Tensor:
    how, (high, wide) = Slide.of(slide), size
    if gives_shapes():
        return _input_shape(g, w, slide, size)
    if _fits(g, w.shape[2], (high, wide)):
        from fedtailor.engine.kernels.triton_convolution import launch_input_gradient

        return launch_input_gradient(g, w, how, (high, wide), _rounds(g))
    return plain_input_gradient(g, w, how, (high, wide))


def _input_shape(g: Tensor, w: Tensor, slide: list[int], size: list[int]) -> Tensor:
    return g.new_zeros(*g.shape[:2], *size, w.shape[2])


def _weight_gradient(
    x: Tensor, g: Tensor, place: Tensor, slide: list[int], pool: int, biased: bool
) -> tuple[Tensor, Tensor]:
    how = Slide.of(slide)
    if gives_shapes():
        return _weight_shapes(x, g, place, slide, pool, biased)
    places = how.places(*x.shape[2:4])
    if _fits(x, g.shape[-1], places):
        from fedtailor.engine.kernels.triton_convolution import launch_weight_gradient

        return launch_weight_gradient(x, g, place, how, pool, biased, _rounds(x))
    if has_places(place):
        g = plain_spread(g, place, pool, places)
    return plain_weight_gradient(x, g, how, biased)


def _weight_shapes(
    x: Tensor, g: Tensor, place: Tensor, slide: list[int], pool: int, biased: bool
) -> tuple[Tensor, Tensor]:
    out = g.shape[-1]
    weight = x.new_zeros(len(x), out, x.shape[-1], *Slide.of(slide).kernel)
    return weight, x.new_zeros(len(x), out if biased else 0)


_CONVOLVE = as_operator(_convolve, _shapes)
_SPREAD = as_operator(_spread, _spread_shape)
_GATHER = as_operator(_gather, _gather_shape)
_INPUT_GRADIENT = as_operator(_input_gradient, _input_shape)
_WEIGHT_GRADIENT = as_operator(_weight_gradient, _weight_shapes)


def stack_clients(size: int, axes: Any, *tensors: Tensor | None) -> list[Tensor | None]:
    """Tensors with a mapped axis as part of their client axis; those without are the same for all.

    Example:
      >>> [t.shape for t in stack_clients(3, (1, None), torch.zeros(2, 3, 4), torch.zeros(2, 5))]
      [torch.Size([6, 4]), torch.Size([6, 5])]
    """
    found: list[Tensor | None] = []
    for tensor, axis in zip(tensors, axes, strict=True):
        if tensor is None:
            found.append(None)
            continue
        whole = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        found.append(whole.flatten(0, 1))
    return found


def _apart(size: int, *tensors: Tensor) -> list[Tensor]:
    """The mapped axis in front again."""
    return [t.unflatten(0, (size, -1)) for t in tensors]  # type: ignore[no-untyped-call]


def _as_rows(tensor: Tensor, axis: int) -> Tensor:
    """A mapped axis as more rows of each client: for those that share weights."""
    return tensor.movedim(axis, 1).flatten(1, 2)


class _Convolved(torch.autograd.Function):
    """Images, weights and biases -> result, places of the largest."""

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, slide: Slide, relu: bool, pool: int
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _CONVOLVE(x, w, bias, slide.flat(), relu, pool)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, bias, ctx.slide, _, ctx.pool = inputs
        _, place = output
        ctx.biased, ctx.size = bias is not None, tuple(x.shape[2:4])
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(x, w, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, w, place), g = ctx.saved_tensors, gradients[0]
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            whole = g
            if has_places(place):
                whole = spread_back(g, place, ctx.pool, ctx.slide.places(*ctx.size))
            dx = _InputGradient.apply(whole, w, ctx.slide, ctx.size)  # type: ignore[no-untyped-call]
        if any(ctx.needs_input_grad[1:3]):
            how = ctx.slide, ctx.pool, ctx.biased
            dw, db = _WeightGradient.apply(x, g, place, *how)  # type: ignore[no-untyped-call]
        return dx, dw, db if ctx.biased else None, None, None, None

    @staticmethod
    def vmap(
        info: Any, axes: Any, x: Tensor, w: Tensor, bias: Tensor | None, *how: Any
    ) -> tuple[Any, Any]:
        size = info.batch_size
        if axes[1] is None and axes[2] is None:
            y, place = _Convolved.apply(_as_rows(x, axes[0]), w, bias, *how)  # type: ignore[no-untyped-call]
            rows = (size, -1)
            if not has_places(place):
                return (y.unflatten(1, rows), place), (1, None)
            return (y.unflatten(1, rows), place.unflatten(1, rows)), (1, 1)
        stacked = stack_clients(size, axes[:3], x, w, bias)
        found = _Convolved.apply(*stacked, *how)  # type: ignore[no-untyped-call]
        return tuple(_apart(size, *found)), (0, 0)


class _Spread(torch.autograd.Function):
    """A gradient, and the places of the largest -> the gradient before pooling and ReLU."""

    @staticmethod
    def forward(g: Tensor, place: Tensor, pool: int, size: tuple[int, int]) -> Tensor:
        found: Tensor = _SPREAD(g, place, pool, list(size))
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, place, ctx.pool, _ = inputs
        ctx.save_for_backward(place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (place,) = ctx.saved_tensors
        back = _Gathered.apply(gradients[0], place, ctx.pool)  # type: ignore[no-untyped-call]
        return back, None, None, None

    @staticmethod
    def vmap(info: Any, axes: Any, g: Tensor, place: Tensor, *how: Any) -> tuple[Any, Any]:
        stacked = stack_clients(info.batch_size, axes[:2], g, place)
        found = _Spread.apply(*stacked, *how)  # type: ignore[no-untyped-call]
        return _apart(info.batch_size, found)[0], 0


def spread_back(g: Tensor, place: Tensor, pool: int, size: tuple[int, int]) -> Tensor:
    """A gradient before the ReLU and the pooling that chose these places; has a gradient, too."""
    found: Tensor = _Spread.apply(g, place, pool, size)  # type: ignore[no-untyped-call]
    return found


class _Gathered(torch.autograd.Function):
    """What a spread is the gradient of."""

    @staticmethod
    def forward(g: Tensor, place: Tensor, pool: int) -> Tensor:
        found: Tensor = _GATHER(g, place, pool)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        g, place, ctx.pool = inputs
        ctx.size = tuple(g.shape[2:4])
        ctx.save_for_backward(place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (place,) = ctx.saved_tensors
        back = _Spread.apply(gradients[0], place, ctx.pool, ctx.size)  # type: ignore[no-untyped-call]
        return back, None, None

    @staticmethod
    def vmap(info: Any, axes: Any, g: Tensor, place: Tensor, pool: int) -> tuple[Any, Any]:
        stacked = stack_clients(info.batch_size, axes[:2], g, place)
        found = _Gathered.apply(*stacked, pool)  # type: ignore[no-untyped-call]
        return _apart(info.batch_size, found)[0], 0


class _InputGradient(torch.autograd.Function):
    """A gradient, which is spread already, and weights -> the gradient of the images."""

    @staticmethod
    def forward(g: Tensor, w: Tensor, slide: Slide, size: tuple[int, int]) -> Tensor:
        found: Tensor = _INPUT_GRADIENT(g, w, slide.flat(), list(size))
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        g, w, ctx.slide, _ = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (g, w), gg = ctx.saved_tensors, gradients[0]
        dg = dw = None
        if ctx.needs_input_grad[0]:
            dg = _Convolved.apply(gg, w, None, ctx.slide, False, 1)[0]  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            nowhere = g.new_zeros(len(g), 0, dtype=torch.int8)
            dw = _WeightGradient.apply(gg, g, nowhere, ctx.slide, 1, False)[0]  # type: ignore[no-untyped-call]
        return dg, dw, None, None

    @staticmethod
    def vmap(info: Any, axes: Any, g: Tensor, w: Tensor, *how: Any) -> tuple[Any, Any]:
        size = info.batch_size
        if axes[1] is None:
            found = _InputGradient.apply(_as_rows(g, axes[0]), w, *how)  # type: ignore[no-untyped-call]
            return found.unflatten(1, (size, -1)), 1
        found = _InputGradient.apply(*stack_clients(size, axes[:2], g, w), *how)  # type: ignore[no-untyped-call]
        return _apart(size, found)[0], 0


class _WeightGradient(torch.autograd.Function):
    """Images, a gradient, and the places of the largest -> gradients of weights and biases."""

    @staticmethod
    def forward(
        x: Tensor, g: Tensor, place: Tensor, slide: Slide, pool: int, biased: bool
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _WEIGHT_GRADIENT(x, g, place, slide.flat(), pool, biased)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, g, place, ctx.slide, ctx.pool, ctx.biased = inputs
        ctx.size = tuple(x.shape[2:4])
        ctx.save_for_backward(x, g, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (x, g, place), (gw, gb) = ctx.saved_tensors, gradients
        dx = dg = None
        if ctx.needs_input_grad[0]:
            if has_places(place):
                g = spread_back(g, place, ctx.pool, ctx.slide.places(*ctx.size))
            dx = _InputGradient.apply(g, gw, ctx.slide, ctx.size)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            bias = gb if ctx.biased else None
            dg = _Convolved.apply(x, gw, bias, ctx.slide, False, 1)[0]  # type: ignore[no-untyped-call]
            if has_places(place):
                dg = _Gathered.apply(dg, place, ctx.pool)  # type: ignore[no-untyped-call]
        return dx, dg, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, axes: Any, x: Tensor, g: Tensor, place: Tensor, *how: Any
    ) -> tuple[Any, Any]:
        size = info.batch_size
        stacked = stack_clients(size, axes[:3], x, g, place)
        found = _WeightGradient.apply(*stacked, *how)  # type: ignore[no-untyped-call]
        return tuple(_apart(size, *found)), (0, 0)


def fused_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    slide: Slide,
    relu: bool = False,
    pool: int = 1,
) -> Tensor:
    """`max_pool2d(relu(conv2d(x, w, bias)), pool)` of one client, in one operator.

    Example:
      >>> x, w = torch.ones(2, 3, 8, 8), torch.ones(4, 3, 5, 5)
      >>> fused_convolution(x, w, None, Slide((5, 5), (1, 1), (0, 0)), relu=True, pool=2).shape
      torch.Size([2, 4, 2, 2])
    """
    # in one piece: both directions read it so
    images = x.permute(0, 2, 3, 1).contiguous()[None]
    biases = None if bias is None else bias[None]
    y: Tensor = _Convolved.apply(images, w[None], biases, slide, relu, pool)[0]  # type: ignore[no-untyped-call]
    return y[0].permute(0, 3, 1, 2)
