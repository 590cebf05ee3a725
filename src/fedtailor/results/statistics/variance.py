"""What makes the mean gain vary: rows, clients, training."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.results.statistics.paired import Gains

TABLE = 0.3  # of rows' variance, added with many repeats of one table


def variances(gains: Gains) -> tuple[float, float]:
    """Of the mean gain: what rows within clients make, and what differs between clients beside.

    Example:
      >>> parts, weights = (np.array([0.5, -0.5]),) * 2, (np.array([0.5, 0.5]),) * 2
      >>> none = np.zeros((1, 2))
      >>> variances(Gains(("a", "b"), {}, none, none, parts, weights, share=True))
      (0.25, 0.0)
    """
    each = gains.by_client
    clients = len(each)
    rows = sum(
        float(((parts - gain * weights) ** 2).sum())
        for parts, weights, gain in zip(gains.parts, gains.weights, each, strict=True)
    )
    of_rows = rows / clients**2
    of_clients = float(each.var(ddof=1)) / clients if clients > 1 else 0.0
    return of_rows, max(0.0, of_clients - of_rows)


def training_variance(gains: Gains, level: float = 0.05) -> float:
    """What training adds to the variance of the mean gain, beyond what test rows make.

    With more repeats more rows both test and train, and what the table happens to hold is not
    averaged away: measured, up to 0.3 of what rows make (`docs/statistics.md`). And repeats of a
    client vary by test rows and by luck in training; what rows make of that is taken off. The few
    repeats that luck is known from are allowed for, as Student does. One repeat cannot tell: then
    what clients differ by beyond their rows stands for luck; 0 for a single client.
    """
    known = np.isfinite(gains.by_repeat)
    often = known.sum(axis=0) > 1
    freedom = int((known.sum(axis=0) - 1)[often].sum())
    if freedom < 1:  # what clients differ by beyond their rows stands for luck
        if len(gains.clients) < 2:
            return 0.0
        few = scipy.stats.t.ppf(1 - level / 2, len(gains.clients) - 1) / scipy.stats.norm.ppf(
            1 - level / 2
        )
        return float(few**2) * variances(gains)[1]
    of_repeats = np.nanvar(gains.by_repeat[:, often], axis=0, ddof=1)
    of_rows = np.nanmean(gains.row_variances[:, often], axis=0)
    luck = max(0.0, float((of_repeats - of_rows).mean())) / (len(gains.clients) * gains.repeats)
    few = (
        float(scipy.stats.t.ppf(1 - level / 2, freedom) / scipy.stats.norm.ppf(1 - level / 2)) ** 2
    )
    return TABLE * (1 - 1 / gains.repeats) * variances(gains)[0] + few * luck
