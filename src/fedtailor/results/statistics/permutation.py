"""Tests by permutation: could gains like these come about by chance?

Where there is no difference, ours and alone could change places. A unit that changes places turns
its gain's sign. Units are clients ("sites like these") or rows within fixed clients ("these
sites"), as in Fisher's test of paired differences.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.results.statistics.paired import Gains, Paired, Scoring, Values, swapped_gains

EXACT_UNITS = 15  # up to 2^15 vectors of signs all are tried, else some are drawn
DRAWS = 9999
SWAPS = 999  # draws where a metric is computed anew for each
MOST_NUMBERS = 100_000_000  # drawn for one test; fewer draws for more rows than that
_SEED = 20_240_229  # the same data give the same p


def sign_flip_p(values: Values) -> float:
    """Two-sided p of a sum whose terms are as likely negative as positive if nothing is there.

    Exact for up to 15 terms other than 0, and where all are of one size (then it is the binomial
    test: McNemar's, for rows of which one model is right and the other wrong).

    Example:
      >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))  # 2 of 8 vectors of signs are as extreme
      0.25
      >>> sign_flip_p(np.array([1.0] * 7 + [-1.0, 0.0]))  # 7 of 8 discordant rows, as McNemar's
      0.0703125
    """
    terms = values[values != 0]
    if len(terms) == 0:
        return 1.0
    size = np.abs(terms)
    if np.allclose(size, size[0], rtol=1e-9, atol=0):
        return float(scipy.stats.binomtest(int((terms > 0).sum()), len(terms)).pvalue)
    positive, _, exact = half_sums(size, size)
    whole = size.sum()
    # a rounding error must not make one of two equal sums the larger
    extreme = np.abs(2 * positive - whole) >= abs(terms.sum()) - 1e-12 * whole
    return _share_of(extreme, exact)


def _share_of(extreme: Values, exact: bool) -> float:
    """p from draws; those that were seen count as one draw, so that it is never 0."""
    if exact:
        return float(extreme.mean())
    return float((1 + extreme.sum()) / (1 + len(extreme)))


def half_sums(values: Values, weights: Values) -> tuple[Values, Values, bool]:
    """Sums of values and of weights over random halves of the units.

    Every half that is not empty and holds the first unit once, if there are at most 2^15 vectors
    of signs (a half and the rest of it are one division); else as many as are drawn.

    Returns:
      [halves] sums of values, [halves] sums of weights, and whether these are all halves.
    """
    n = len(values)
    if n <= EXACT_UNITS:
        sums = np.array([values[:1], weights[:1]], dtype=float)
        for one in np.array([values[1:], weights[1:]]).T[:, :, None]:  # without it, and with it
            sums = np.hstack([sums, sums + one])
        return sums[0], sums[1], True
    rng = np.random.default_rng(_SEED)
    # rows of the same value and weight are drawn together: how many of them are in the half
    kinds, counts = np.unique(
        np.stack([_rounded(values), _rounded(weights)], axis=1), axis=0, return_counts=True
    )
    draws = int(np.clip(MOST_NUMBERS // len(kinds), SWAPS, DRAWS))
    sums = np.zeros((draws, 2))
    for chosen, one_each in ((kinds[counts == 1], True), (kinds[counts > 1], False)):
        many = counts[counts > 1]
        for first in range(0, len(chosen), 1000):
            part = chosen[first : first + 1000]
            if one_each:  # a coin for each row, eight of a byte: far quicker than the binomial
                coins = rng.integers(0, 256, (draws, (len(part) + 7) // 8), dtype=np.uint8)
                held = np.unpackbits(coins, axis=1, count=len(part)).astype(float)
            else:
                held = rng.binomial(many[first : first + 1000], 0.5, (draws, len(part))) * 1.0
            sums += held @ part
    return sums[:, 0], sums[:, 1], False


def _rounded(values: Values) -> Values:
    """Without what differs by rounding errors alone, so that equal terms are seen as equal."""
    scale = np.abs(values).max()
    return values if scale == 0 else np.round(values / scale, 12) * scale


def clients_test(gains: Gains) -> float:
    """p with clients as the units: speaks for sites like these.

    With K clients the least p is 2/2^K: 5 clients cannot reach 0.05.
    """
    return sign_flip_p(gains.by_client)


def rows_test(gains: Gains, paired: Paired, scoring: Scoring, swaps: int = SWAPS) -> float:
    """p with clients fixed and their rows as the units: speaks for these sites.

    A row changes places in all repeats at once. A metric that is no mean over rows is computed
    anew each time, for `swaps` draws.
    """
    if scoring.per_row is not None:
        return sign_flip_p(np.concatenate(gains.parts))
    rng = np.random.default_rng(_SEED)
    seen, drawn = 0.0, np.zeros(swaps)
    for name in gains.clients:
        rows = np.unique(np.concatenate([one.rows for one in paired[name]]))
        swapped = rng.random((1 + swaps, len(rows))) < 0.5
        swapped[0] = False
        found = swapped_gains(paired[name], scoring, swapped)
        seen, drawn = seen + found[0], drawn + found[1:]
    return _share_of(np.abs(drawn) >= abs(seen) * (1 - 1e-9), exact=False)
