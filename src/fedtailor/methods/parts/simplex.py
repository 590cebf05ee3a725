"""Weights that are not negative and sum to 1: the nearest, and the best for a quadratic."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 8  # of descent, for a first guess of who gets a weight
PASSES = 12  # of corrections; most rows are right after five
ROUNDING = 1e-13  # a weight, or a slope as a part of the largest, below which it is 0


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


def mixing_weights(points: Tensor, variance: Tensor) -> Tensor:
    """For every i the weights a on the simplex that make bias and variance of a mixture small.

        Σ_j a_j² V_j + |h_i − Σ_j a_j h_j|²

    Exact, in double precision. Once it is known who gets a weight above 0, the rest is a linear
    system; so that is guessed by a few steps of descent, and corrected until the conditions of a
    minimum hold. The few i for whom corrections go in circles are left to Lawson and Hanson's
    method, which is slower and always ends.

    Args:
      points: h, one row each.
      variance: V, one number each, above 0.

    Returns:
      One row of weights for every i.

    Example:
      >>> same = mixing_weights(torch.zeros(2, 3), torch.tensor([1.0, 3.0]))
      >>> same  # nothing tells them apart: inversely to their variances
      tensor([[0.7500, 0.2500],
              [0.7500, 0.2500]])
    """
    # on the simplex a common shift of all points changes nothing, but makes the problem stiff
    h = points.double()
    h = h - h.mean(0)
    linear = (h @ h.mT).cpu().numpy()
    own = variance.double().cpu().numpy()
    # since a sums to 1, the rows differ in the linear part alone: a Q a / 2 − linear_i a
    quadratic = linear + np.diag(own)
    weights = _descended(quadratic, linear)
    left = _corrected(quadratic, linear, weights)
    if len(left):
        weights[left] = _lawson_hanson(linear, own, left)
    weights = np.maximum(weights, 0)
    return torch.from_numpy(weights / weights.sum(1, keepdims=True)).to(points)


def _descended(quadratic: NDArray[Any], linear: NDArray[Any]) -> NDArray[Any]:
    """A first guess: accelerated projected gradient descent from equal weights."""
    rate = 1 / max(np.linalg.eigvalsh(quadratic)[-1], 1e-30)
    weights = ahead = np.full_like(linear, 1 / len(linear))
    for step in range(STEPS):
        after = _nearest(ahead - rate * (ahead @ quadratic - linear))
        weights, ahead = after, after + step / (step + 3) * (after - weights)
    return weights


def _corrected(
    quadratic: NDArray[Any], linear: NDArray[Any], weights: NDArray[Any]
) -> NDArray[np.intp]:
    """Makes `weights` exact, and returns the rows that are not: block principal pivoting.

    Weights that are `used`, those above 0, have equal slopes and sum to 1, so with Q cut to them

        Q a − linear_i = level,  hence  a = free + level · even,  Q free = linear_i,  Q even = 1

    Whose weight is then negative leaves, whose slope is below the level comes in, all at once.
    """
    solve = scipy.linalg.lapack.dposv
    sides = np.stack([linear, np.ones_like(linear)], -1)
    flat = ROUNDING * quadratic.diagonal().max()
    used = weights > 0
    left = np.arange(len(linear))
    for _ in range(PASSES):
        found = np.zeros_like(sides[left])
        for k, i in enumerate(left):
            who = used[i].nonzero()[0]
            found[k, who] = solve(quadratic[who][:, who], sides[i, who])[1]
        free, even = found[..., 0], found[..., 1]
        level = (1 - free.sum(1, keepdims=True)) / even.sum(1, keepdims=True)
        now = weights[left] = free + level * even
        slope = now @ quadratic - linear[left] - level
        wrong = np.where(used[left], now < -ROUNDING, slope < -flat)
        used[left] ^= wrong
        unsolved = used[left] & ~(abs(slope) <= flat)  # no number is no solution either
        left = left[(wrong | unsolved).any(1)]
        if not len(left):
            break
    return left


def _lawson_hanson(linear: NDArray[Any], own: NDArray[Any], left: NDArray[np.intp]) -> NDArray[Any]:
    """The weights of the rows `left`, by least squares without negative numbers.

    The form of row i is |E a|², where E has a column (√V_j e_j, h_j − h_i) for every j. Without
    the sum, |E x|² + (Σ_j x_j − 1)² is least at a multiple of a.
    """
    n = len(linear)
    values, vectors = np.linalg.eigh(linear)
    h = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T  # its columns; products are the same
    variance, ones = np.diag(np.sqrt(own)), np.ones((1, n))
    target = np.append(np.zeros(2 * n), 1)
    rows = []
    for i in left:
        columns = np.concatenate([variance, h - h[:, [i]]])
        system = np.concatenate([columns / max(abs(columns).max(), 1e-30), ones])
        rows.append(scipy.optimize.nnls(system, target, maxiter=30 * n)[0])
    found = np.stack(rows)
    weights: NDArray[Any] = found / found.sum(1, keepdims=True)
    return weights
