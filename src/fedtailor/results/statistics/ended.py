"""Had training ended? Whether a curve still rises in its last third, and how far it may go on."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used

LEAST_POINTS = 12  # of a curve: four in each third


class TrainingEnd(NamedTuple):
    """How a curve ends."""

    still_rising: bool | None  # None where the curve has too few points to say
    rise: float  # over the last third, by its slope; positive is better
    more_rounds: int  # to try; 0 where training had ended


def training_end(
    rounds: Sequence[int],
    values: Sequence[float],
    *,
    higher_is_better: bool = True,
    margin: float = 0.01,
) -> TrainingEnd:
    """Whether more rounds would have helped, by a method's values on validation rows.

    A curve still rises if the slope of its last third (Theil and Sen's: the median slope between
    pairs of points) is above 0 beyond its own noise (95 %), and worth the margin over that third.
    How many more rounds: until a third as long brings less than the margin, if each rises by the
    same share of the one before as the last did; at most as many again as were played.

    Example:
      >>> played = range(1, 31)
      >>> training_end(played, [0.9 - 0.8 / r for r in played]).still_rising
      True
      >>> training_end(played, [0.9 - 0.8 * 0.5**r for r in played])
      TrainingEnd(still_rising=False, rise=0.0, more_rounds=0)
    """
    sign = 1.0 if higher_is_better else -1.0
    x, y = np.asarray(rounds, float), sign * np.asarray(values, float)
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < LEAST_POINTS:
        return TrainingEnd(None, float("nan"), 0)
    third = len(x) // 3
    slope, _, low, _ = scipy.stats.theilslopes(y[-third:], x[-third:], alpha=0.95)
    before = scipy.stats.theilslopes(y[-2 * third : -third], x[-2 * third : -third])[0]
    length = x[-1] - x[-third]
    rise = float(slope * length)
    if low <= 0 or rise < margin:
        return TrainingEnd(False, round(rise, 6), 0)
    return TrainingEnd(True, round(rise, 6), _more(rise, float(before * length), margin, x))


def _more(rise: float, before: float, margin: float, x: np.ndarray) -> int:
    played = int(x[-1])
    third = ceil(played / 3)
    slowing = rise / before if before > 0 else 1.0
    if slowing >= 1 or margin <= 0:
        return played
    thirds = max(1, ceil(log(margin / rise) / log(slowing)))
    return min(played, thirds * third)
