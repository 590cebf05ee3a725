"""Weights that are not negative and sum to 1: the nearest, and the best for a quadratic."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 2000
AT_A_TIME = 20  # steps before the host asks whether anything still moves
# a step below which nothing moves any more, for weights that are kept in so many digits
STILL = {torch.float64: 1e-13, torch.float32: 1e-9}


def onto_simplex(rows: Tensor) -> Tensor:
    """The nearest point of the simplex to each row (Euclidean).

    Example:
      >>> onto_simplex(torch.tensor([[0.5, 0.5], [3.0, 1.0], [0.7, 0.1]]))
      tensor([[0.5000, 0.5000],
              [1.0000, 0.0000],
              [0.8000, 0.2000]])
    """
    falling = rows.sort(-1, descending=True).values
    excess = falling.cumsum(-1) - 1
    count = torch.arange(1, rows.shape[-1] + 1, device=rows.device, dtype=rows.dtype)
    left = (falling * count > excess).sum(-1, keepdim=True)
    shift = excess.gather(-1, left - 1) / left
    return (rows - shift).clamp(min=0)


def mixing_weights(points: Tensor, variance: Tensor, steps: int = STEPS) -> Tensor:
    """For every i the weights a on the simplex that make bias and variance of a mixture small.

        Σ_j a_j² V_j + |h_i − Σ_j a_j h_j|²

    Solved by accelerated projected gradient descent from equal weights, in double precision. The
    rows differ in the linear part alone, since a sums to 1.

    Args:
      points: h, one row each.
      variance: V, one number each, above 0.
      steps: of descent, at most.

    Returns:
      One row of weights for every i.

    Example:
      >>> same = mixing_weights(torch.zeros(2, 3), torch.tensor([1.0, 3.0]))
      >>> same  # nothing tells them apart: inversely to their variances
      tensor([[0.7500, 0.2500],
              [0.7500, 0.2500]])
    """
    # on the simplex a common shift of all points changes nothing, but makes the problem stiff
    h = points.double() - points.double().mean(0)
    linear = h @ h.mT
    quadratic = linear + variance.double().diag()
    rate = 1 / torch.linalg.eigvalsh(quadratic)[-1].clamp(min=1e-30)
    weights = torch.full_like(linear, 1 / len(linear))
    ahead, pace = weights, torch.ones_like(linear[:, :1])
    still = STILL.get(points.dtype, STILL[torch.float32])
    for step in range(1, steps + 1):
        after = onto_simplex(ahead - rate * (ahead @ quadratic - linear))
        # where momentum leads uphill it begins anew
        uphill = ((ahead - after) * (after - weights)).sum(1, keepdim=True) > 0
        pace = torch.where(uphill, 1.0, pace)
        faster = (1 + (1 + 4 * pace.square()).sqrt()) / 2
        change, weights = after - weights, after
        ahead, pace = after + (pace - 1) / faster * change, faster
        if step % AT_A_TIME == 0 and float(change.abs().max()) < still:
            break
    return weights.to(points.dtype)
