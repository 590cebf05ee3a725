"""Which settings mattered: how much of the trials' ranks each explains, corrected for chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.runs.tuning.space import Setting, Space

LEAST = 9  # trials below which nothing is said: three in each third
PERMUTATIONS = 2000


class Importance(NamedTuple):
    """How much one option mattered.

    Attributes:
      name: of the option.
      share: of the variance of the trials' ranks that its values explain (ε², at least 0).
      p: how often a shuffled option would explain as much.
    """

    name: str
    share: float
    p: float


def importances(
    space: Space, tried: Sequence[Setting], values: Sequence[float | None]
) -> list[Importance]:
    """How much each option mattered, the largest first; none where too few were tried.

    Trials are ranked, those that failed last: so one that diverged does not drown the others. An
    option's numbers are cut into thirds of the trials, words stay as they are. Its share is
    ε² = (between − (k − 1) · within mean square) / total: what groups explain of the variance,
    less what k groups explain by chance. It speaks of single options, over what was tried: where
    two matter only together, neither may show.

    Args:
      space: what was tried.
      tried: the settings.
      values: the larger, the better; None where a trial failed.
    """
    if len(tried) < LEAST:
        return []
    worst = -np.inf
    raw = np.array([worst if v is None else v for v in values], float)
    ranks = scipy.stats.rankdata(raw)
    if np.ptp(ranks) == 0:
        return []
    draws = np.random.default_rng(0)
    shuffled = np.array([draws.permutation(ranks) for _ in range(PERMUTATIONS)])
    found = []
    for axis in space:
        groups = _groups([setting[axis.name] for setting in tried])
        if len(set(groups.tolist())) < 2:
            continue
        share = float(_explained(groups, ranks[None])[0])
        # with the one that was seen: a p of 0 cannot be known
        p = (1 + int((_explained(groups, shuffled) >= share - 1e-12).sum())) / (1 + PERMUTATIONS)
        found.append(Importance(axis.name, round(max(share, 0.0), 4), round(p, 4)))
    return sorted(found, key=lambda one: -one.share)


def _groups(values: Sequence[Any]) -> np.ndarray:
    """Numbers by thirds of the trials, other values as they are."""
    if any(isinstance(v, bool | str) for v in values) or len(set(values)) <= 3:
        names = sorted({str(v) for v in values})
        return np.array([names.index(str(v)) for v in values])
    ranks = scipy.stats.rankdata(np.array(values, float))
    return np.asarray(np.minimum((3 * (ranks - 0.5) / len(values)).astype(int), 2))


def _explained(groups: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """ε² for each row of ranks."""
    trials, kinds = ranks.shape[1], sorted(set(groups.tolist()))
    centred = ranks - ranks.mean(1, keepdims=True)
    total = (centred**2).sum(1)
    between = np.zeros(len(ranks))
    for kind in kinds:
        mine = centred[:, groups == kind]
        between += mine.shape[1] * mine.mean(1) ** 2
    left = trials - len(kinds)
    within = (total - between) / left if left > 0 else np.zeros(len(ranks))
    return np.asarray((between - (len(kinds) - 1) * within) / total)
