"""What it would take to tell: about how many test rows, sites or repeats."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.results.statistics.intervals import Interval
from fedtailor.results.statistics.paired import Gains
from fedtailor.results.statistics.variance import variances

POWER = 0.8
MOST = 100_000  # more than that is no advice


class Needed(NamedTuple):
    """One of these would do, all else as it is; None: it alone would not."""

    gain: float  # what could be told, with a power of 80 %
    rows: int | None  # test rows of each site
    sites: int | None  # of this kind
    repeats: int | None  # of split and training


def what_is_needed(
    gains: Gains, interval: Interval, target: float, *, level: float, tested_share: float
) -> Needed:
    """About how much of one thing tells a gain of `target`, all else equal.

    Args:
      gains: what was seen.
      interval: of the mean gain, at this level; how wide it is says how much is known.
      target: the gain to be told from none.
      level: of the test, two-sided.
      tested_share: of a client's rows, in each repeat: all rows test in turn if there are many
        repeats, and no repeat adds more to them.
    """
    half = (interval[1] - interval[0]) / 2
    if not np.isfinite(half):
        return Needed(target, None, None, None)
    z = float(scipy.stats.norm.ppf(1 - level / 2))
    seen, wanted = (half / z) ** 2, (target / (z + float(scipy.stats.norm.ppf(POWER)))) ** 2
    of_rows = min(seen, variances(gains)[0])
    beside = seen - of_rows  # clients' differences, or training's: no row changes them
    tested = int(np.median([len(parts) for parts in gains.parts]))
    # rows' variance with r repeats is v·(q + (1 − q)/r), where a share q of the rows tests
    of_one = of_rows / (tested_share + (1 - tested_share) / gains.repeats)
    return Needed(
        gain=target,
        rows=_more_than(tested, tested * of_rows, wanted - beside),
        sites=_more_than(len(gains.clients), len(gains.clients) * seen, wanted),
        repeats=_more_than(
            gains.repeats, of_one * (1 - tested_share), wanted - beside - of_one * tested_share
        ),
    )


def _more_than(present: int, much: float, by: float) -> int | None:
    if by <= 0 or much / by > MOST:
        return None
    return max(present + 1, ceil(much / by))
