"""What it would take to tell: about how many test rows, sites or repeats."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedtailor.results.statistics.paired import Gains

POWER = 0.8
MOST = 100_000  # more than that is no advice


class Needed(NamedTuple):
    """One of these would do, all else as it is; None: it alone would not.

    Attributes:
      gain: what could be told, with a power of 80 %.
      rows: test rows of each site.
      sites: of this kind.
      repeats: of split and training.
    """

    gain: float
    rows: int | None
    sites: int | None
    repeats: int | None


def variances(gains: Gains) -> tuple[float, float]:
    """Of the mean gain: what rows within clients make, and what differs between clients beside.

    Example:
      >>> parts, weights = (np.array([0.5, -0.5]),) * 2, (np.array([0.5, 0.5]),) * 2
      >>> variances(Gains(("a", "b"), {}, np.zeros((1, 2)), parts, weights, share=True))
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


def what_is_needed(
    gains: Gains, target: float, *, level: float, beyond: bool, tested_share: float
) -> Needed:
    """About how much of one thing tells a gain of `target`, all else equal.

    Args:
      gains: what was seen.
      target: the gain to be told from none.
      level: of the test, two-sided.
      beyond: the answer is to hold for sites like these, so that sites' differences count.
      tested_share: of a client's rows, in each repeat: all rows test in turn if there are many
        repeats, and no repeat adds more to them.
    """
    of_rows, of_sites = variances(gains)
    if not beyond:
        of_sites = 0.0
    seen = of_rows + of_sites
    z = float(stats.norm.ppf(1 - level / 2) + stats.norm.ppf(POWER))
    wanted = (target / z) ** 2
    tested = float(np.median([len(parts) for parts in gains.parts]))
    # rows' variance with r repeats is v·(q + (1 − q)/r), where a share q of the rows tests
    left = tested_share + (1 - tested_share) / gains.repeats
    of_one = of_rows / left
    spare = wanted - of_sites - of_one * tested_share
    return Needed(
        gain=target,
        rows=_whole(tested * of_rows, wanted - of_sites),
        sites=_whole(len(gains.clients) * seen, wanted),
        repeats=_whole(of_one * (1 - tested_share), spare),
    )


def _whole(much: float, by: float) -> int | None:
    if by <= 0 or not np.isfinite(much) or much / by > MOST:
        return None
    return max(1, ceil(much / by))
