"""Weights that are not negative and sum to 1: the nearest, and the best for a quadratic."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 2000
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
    return torch.from_numpy(_nearest(rows.detach().cpu().numpy())).to(rows)


def _nearest(rows: NDArray[Any]) -> NDArray[Any]:
    """The same of an array: a few hundred small rows are sorted on the host before a GPU begins."""
    falling = np.sort(rows, -1)[:, ::-1]
    excess = falling.cumsum(-1) - 1
    count = np.arange(1, rows.shape[-1] + 1, dtype=rows.dtype)
    left = (falling * count > excess).sum(-1, keepdims=True)
    shift = np.take_along_axis(excess, left - 1, -1) / left
    found: NDArray[Any] = np.maximum(rows - shift.astype(rows.dtype), 0)
    return found


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
    linear = (h @ h.mT).cpu().numpy()
    quadratic = linear + np.diag(variance.double().cpu().numpy())
    rate = 1 / max(np.linalg.eigvalsh(quadratic)[-1], 1e-30)
    weights = np.full_like(linear, 1 / len(linear))
    ahead, pace = weights, np.ones_like(linear[:, :1])
    still = STILL.get(points.dtype, STILL[torch.float32])
    for _ in range(steps):
        after = _nearest(ahead - rate * (ahead @ quadratic - linear))
        change = after - weights
        # where momentum leads uphill it begins anew
        uphill = ((ahead - after) * change).sum(1, keepdims=True) > 0
        pace = np.where(uphill, 1.0, pace)
        faster = (1 + np.sqrt(1 + 4 * pace * pace)) / 2
        weights = after
        ahead, pace = after + (pace - 1) / faster * change, faster
        if abs(change).max() < still:
            break
    return torch.from_numpy(weights).to(points)
