"""Normalisations of many clients as operators: kernels where there are some, else plain torch.

Images come with their channels last, as convolutions leave them. ReLU and pooling that follow are
part of the operator, so what is normalised is read twice and never written. Means and variances
are found first, by an operator of their own: running statistics are made of them, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor.engine.kernels.convolutions import (
    CLIENTS,
    MOST,
    TYPES,
    spread_back,
    stack_clients,
)
from fedtailor.engine.kernels.launch import as_operator, gives_shapes
from fedtailor.engine.kernels.reference import (
    has_places,
    plain_moments,
    plain_norm,
    plain_norm_gradient,
)
from fedtailor.engine.kernels.support import has_kernels

CHANNELS = 1024  # more do not fit into a program


def _fits(z: Tensor, groups: int) -> bool:
    """Whether there are kernels for such images."""
    sets, channels = len(z) * (z.shape[1] if groups else 1), z.shape[-1]
    even = groups in (0, channels) or (_is_power(channels) and _is_power(groups))
    return (
        z.dtype in TYPES and 0 < sets < CLIENTS and 0 < z[0].numel() < MOST
        and channels <= CHANNELS and even and has_kernels(z.device)
    )  # fmt: skip


def _is_power(size: int) -> bool:
    return size & (size - 1) == 0


def _precise(z: Tensor) -> torch.dtype:
    """What moments are counted in."""
    return z.dtype if z.dtype == torch.float64 else torch.float32


def _norm_moments(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    if gives_shapes():
        return _moment_shapes(z, groups)
    if _fits(z, groups):
        from fedtailor.engine.kernels.triton_norms import launch_moments

        return launch_moments(z, groups)
    return plain_moments(z.to(_precise(z)), groups)


def _moment_shapes(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    shape = len(z) * (z.shape[1] if groups else 1), z.shape[-1]
    return z.new_zeros(shape, dtype=_precise(z)), z.new_zeros(shape, dtype=_precise(z))


def _normalise(
    z: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, groups: int, eps: float,
    relu: bool, pool: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if gives_shapes():
        return _norm_shapes(z, scale, shift, mean, var, groups, eps, relu, pool)
    if _fits(z, groups):
        from fedtailor.engine.kernels.triton_norms import launch_norm

        return launch_norm(z, scale, shift, mean, var, eps, relu, pool)
    y, place = plain_norm(z, scale, shift, mean, var, eps, relu, pool)
    return y.to(z.dtype), place


def _norm_shapes(
    z: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, groups: int, eps: float,
    relu: bool, pool: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    y = z.new_zeros(*z.shape[:2], z.shape[2] // pool, z.shape[3] // pool, z.shape[4])
    return y, y.new_zeros(y.shape if relu or pool > 1 else (len(z), 0), dtype=torch.int8)


def _norm_gradient(
    g: Tensor, place: Tensor, z: Tensor, scale: Tensor, mean: Tensor, var: Tensor, groups: int,
    eps: float, pool: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if gives_shapes():
        return _gradient_shapes(g, place, z, scale, mean, var, groups, eps, pool)
    if _fits(z, groups):
        from fedtailor.engine.kernels.triton_norms import launch_norm_gradient

        return launch_norm_gradient(g, place, z, scale, mean, var, groups, eps, pool)
    spread = _before(g, place, pool, z)
    back, *rest = plain_norm_gradient(spread, z, scale, mean, var, groups, eps)
    return back.to(z.dtype), rest[0].to(scale.dtype), rest[1].to(scale.dtype)


def _gradient_shapes(
    g: Tensor, place: Tensor, z: Tensor, scale: Tensor, mean: Tensor, var: Tensor, groups: int,
    eps: float, pool: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return z.new_zeros(z.shape), scale.new_zeros(scale.shape), scale.new_zeros(scale.shape)


_MOMENTS = as_operator(_norm_moments, _moment_shapes)
_NORMALISE = as_operator(_normalise, _norm_shapes)
_NORM_GRADIENT = as_operator(_norm_gradient, _gradient_shapes)


def _before(g: Tensor, place: Tensor, pool: int, z: Tensor) -> Tensor:
    """A gradient before ReLU and pooling, if there were any."""
    return spread_back(g, place, pool, (z.shape[2], z.shape[3])) if has_places(place) else g


def _mapped(function: Any, size: int, axes: Any, given: Any, tensors: int) -> tuple[Any, Any]:
    """A mapped axis as part of the clients' one."""
    stacked = stack_clients(size, axes[:tensors], *given[:tensors])
    found = function.apply(*stacked, *given[tensors:])
    return tuple(t.unflatten(0, (size, -1)) for t in found), (0,) * len(found)


class _Moments(torch.autograd.Function):
    """Images -> means and variances. `_Normed` answers for their part in a gradient."""

    @staticmethod
    def forward(z: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _MOMENTS(z, groups)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> tuple[Any, Any]:
        return _mapped(_Moments, info.batch_size, axes, given, 1)


class _Normed(torch.autograd.Function):
    """Images, scales, shifts, means and variances -> result, places of the largest."""

    @staticmethod
    def forward(
        z: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, var: Tensor, groups: int,
        eps: float, relu: bool, pool: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        found: tuple[Tensor, Tensor]
        found = _NORMALISE(z, scale, shift, mean, var, groups, eps, relu, pool)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        z, scale, _, mean, var, ctx.groups, ctx.eps, _, ctx.pool = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], z, scale, mean, var)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        how = ctx.groups, ctx.eps, ctx.pool
        back = _NormGradient.apply(gradients[0], *ctx.saved_tensors, *how)  # type: ignore[no-untyped-call]
        return *back, *(None,) * 6

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> tuple[Any, Any]:
        return _mapped(_Normed, info.batch_size, axes, given, 5)


class _NormGradient(torch.autograd.Function):
    """A gradient -> those of images, scales and shifts."""

    @staticmethod
    def forward(
        g: Tensor, place: Tensor, z: Tensor, scale: Tensor, mean: Tensor, var: Tensor,
        groups: int, eps: float, pool: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        found: tuple[Tensor, Tensor, Tensor]
        found = _NORM_GRADIENT(g, place, z, scale, mean, var, groups, eps, pool)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, _, _, ctx.groups, ctx.eps, ctx.pool = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        g, place, z, scale = ctx.saved_tensors

        def again(g: Tensor, z: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            # moments anew: those that were given have no gradient
            moments = plain_moments(z, ctx.groups)
            spread = _before(g, place, ctx.pool, z)
            return plain_norm_gradient(spread, z, scale, *moments, ctx.groups, ctx.eps)

        dg, dz, dscale = torch.func.vjp(again, g, z, scale)[1](gradients)
        return dg, None, dz, dscale, *(None,) * 5

    @staticmethod
    def vmap(info: Any, axes: Any, *given: Any) -> tuple[Any, Any]:
        return _mapped(_NormGradient, info.batch_size, axes, given, 6)


def norm_moments(x: Tensor, groups: int = 0) -> tuple[Tensor, Tensor]:
    """Means and variances of one client's images, for each channel.

    Of all rows together for BatchNorm, of each row's `groups` of channels for GroupNorm.

    Example:
      >>> [t.tolist() for t in norm_moments(torch.arange(4.0).reshape(1, 1, 2, 2))]
      [[[1.5]], [[1.25]]]
    """
    found: tuple[Tensor, Tensor] = _Moments.apply(x.permute(0, 2, 3, 1)[None], groups)  # type: ignore[no-untyped-call]
    return found


def fused_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    moments: tuple[Tensor, Tensor],
    groups: int,
    eps: float,
    relu: bool = False,
    pool: int = 1,
) -> Tensor:
    """`max_pool2d(relu(batch_norm(x)), pool)` of one client, in one operator.

    Example:
      >>> x, one = torch.arange(4.0).reshape(1, 1, 2, 2), torch.ones(1)
      >>> fused_norm(x, one, 0 * one, norm_moments(x), 0, 0.0, relu=True, pool=2)
      tensor([[[[1.3416]]]])
    """
    y: Tensor = _Normed.apply(  # type: ignore[no-untyped-call]
        x.permute(0, 2, 3, 1)[None], scale[None], shift[None], *moments, groups, eps, relu, pool
    )[0]
    return y[0].permute(0, 3, 1, 2)
