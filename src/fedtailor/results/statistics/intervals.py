"""Between which values the mean gain may lie: all that the permutation test would not reject."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.results.statistics.paired import Gains, Values
from fedtailor.results.statistics.permutation import half_sums
from fedtailor.results.statistics.variance import training_variance

Interval = tuple[float, float]


def flip_interval(values: Values, weights: Values, level: float) -> Interval:
    """All θ for which the signs of values − θ·weights could be turned, at this level.

    Turning signs divides the units into two halves. A division is as extreme as what was seen
    just where θ lies between the two halves' weighted means, so the ends are quantiles of the
    lower and of the upper ones. Too few units for the level give no bound at all.

    Args:
      values: [units].
      weights: [units], positive; Σ values / Σ weights is what the interval is of.
      level: of the test, two-sided: 0.05 for an interval of 95 %.

    Example:
      >>> flip_interval(np.array([1.0, 2.0, 3.0]), np.ones(3), 0.5)
      (1.5, 2.5)
      >>> flip_interval(np.array([1.0, 2.0, 3.0]), np.ones(3), 0.05)
      (-inf, inf)
    """
    if len(values) == 0:
        return -np.inf, np.inf
    if values.sum() < 0:  # so that two models that change places turn the interval round exactly
        low, high = flip_interval(-values, weights, level)
        return -high, -low
    total, whole = values.sum(), weights.sum()
    some, weight, exact = half_sums(values, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        one = some / weight
        other = (total - some) / (whole - weight)
    lows, highs = np.fmin(one, other), np.fmax(one, other)
    nothing = (weight <= 1e-12 * whole) | (whole - weight <= 1e-12 * whole)
    lows[nothing], highs[nothing] = -np.inf, np.inf
    if not exact:  # what was seen counts as one draw
        lows, highs = np.append(lows, -np.inf), np.append(highs, np.inf)
    # θ is kept while more than `level` of the divisions are as extreme
    at = int(np.floor(level * len(lows) + 1e-9))
    return float(np.sort(lows)[at]), float(np.sort(highs)[::-1][at])


def clients_interval(gains: Gains, level: float = 0.05) -> Interval:
    """Of the mean gain at sites like these: clients are the units. Needs 6 clients for 95 %."""
    return flip_interval(gains.by_client, np.ones(len(gains.clients)), level)


def rows_interval(gains: Gains, level: float = 0.05) -> Interval:
    """Of the mean gain at these sites: clients are fixed, and rows and training are drawn.

    What turning rows' signs gives is widened about the mean gain by what training adds.
    """
    low, high = _turned_rows(gains, level)
    mean = gains.mean
    added = scipy.stats.norm.ppf(1 - level / 2) ** 2 * training_variance(gains, level)
    low, high = mean - np.hypot(mean - low, added**0.5), mean + np.hypot(high - mean, added**0.5)
    return float(low), float(high)


def both_interval(gains: Gains, level: float = 0.05) -> Interval:
    """Of the mean gain at sites like these, what neither test rejects: rows' bound clients' below.

    Where all clients gain the same by chance, rows tell how little that means.
    """
    ends = clients_interval(gains, level), _turned_rows(gains, level)
    return min(low for low, _ in ends), max(high for _, high in ends)


def _turned_rows(gains: Gains, level: float) -> Interval:
    """All mean gains that turning rows' signs would not reject.

    Two more rows are assumed, each better predicted by another model, as Bonett and Price do for
    paired shares: where no row tells two models apart, the interval still is as wide as so few
    rows leave it.
    """
    parts = np.concatenate(gains.parts) / len(gains.parts)
    weights = np.concatenate(gains.weights) / len(gains.parts)
    usual = 1 / len(parts)
    most = usual if gains.share else np.abs(parts).max()
    return flip_interval(np.append(parts, [most, -most]), np.append(weights, [usual, usual]), level)
