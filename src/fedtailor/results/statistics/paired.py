"""Two models on the same test rows: what one gains over the other, client by client and row by row.

`ours` is the model of the method in question, `alone` that of training alone. A gain is positive
where ours is better, whichever way the metric points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when they are used

from fedtailor.core.errors import BadInput

Values = npt.NDArray[Any]
AT_A_TIME = 4_000_000  # numbers that are held at once while a metric is computed many times
HELD_OUT = "held out, so alone nothing was trained"
NEVER_TRAINED = "in no round of training alone that counts, so nothing was trained"
NOBODY: Mapping[str, str] = {}
MOST_GROUPS = 400  # of a client's rows, where each is left out once


@dataclass(frozen=True)
class PairedRows:
    """One client's test rows in one repeat, and what both models say of them."""

    rows: Values  # [n] which rows they are: the same number is the same row in every repeat
    labels: Values  # [n] classes or values; [n, 2] time and event
    ours: Values  # [n, outputs] of the method's model
    alone: Values  # [n, outputs] of the model that was trained alone

    def __post_init__(self) -> None:
        n = len(self.rows)
        if self.ours.ndim != 2 or self.alone.shape != self.ours.shape or len(self.ours) != n:
            raise BadInput(
                f"outputs of {n} rows are {self.ours.shape} and {self.alone.shape}: "
                "both models need one line of outputs for each row"
            )
        if len(self.labels) != n:
            raise BadInput(f"{len(self.labels)} labels for {n} rows: give one for each")
        if len(np.unique(self.rows)) != n:
            raise BadInput("a row is named twice among the test rows of one client and repeat")

    @property
    def finite(self) -> bool:
        """Whether all outputs are numbers: a model that diverged says none."""
        return bool(np.isfinite(self.ours).all() and np.isfinite(self.alone).all())


Paired = Mapping[str, Sequence[PairedRows]]  # client → one for each repeat


class Scoring(NamedTuple):
    """How outputs are judged."""

    # outputs [..., n, k], labels [n], weight [..., n] of 0 and 1 → a number for each leading index,
    # nan where it is undefined
    function: Callable[[Values, Values, Values], Values]
    # outputs [n, k], labels [n] → [n], whose mean is the metric, if there is such a thing
    per_row: Callable[[Values, Values], Values] | None = None
    higher_is_better: bool = True  # False for errors and losses
    # only the order of outputs counts (AUC, average precision, concordance); for more than two
    # classes it is the mean over classes, each against the rest
    ranking: bool = False
    share: bool = True  # between 0 and 1, as accuracy is, so that one row of n can change it by 1/n
    # right answers are counted, and outputs that are not finite numbers as wrong ones; otherwise a
    # client with such outputs is left out
    answers: bool = False
    # labels → the reason why there is no metric of them, if it knows one
    why_undefined: Callable[[Values], str | None] | None = None


class Gains(NamedTuple):
    """What ours gains over alone."""

    clients: tuple[str, ...]  # those at which the metric is defined
    left_out: dict[str, str]  # the others, each with the reason
    # [repeats, clients]; nan where a repeat's test rows leave the metric undefined
    by_repeat: Values
    row_variances: Values  # [repeats, clients] of those gains, as the rows of each repeat have it
    parts: tuple[Values, ...]  # each client's gain as a sum over its rows, one number for each row
    weights: tuple[Values, ...]  # how much a row counts at its client; they sum to 1
    share: bool  # the metric is a share (see `Scoring`)

    @property
    def by_client(self) -> Values:
        """[clients] gains, each the mean over its repeats."""
        return np.asarray(np.nanmean(self.by_repeat, axis=0))

    @property
    def mean(self) -> float:
        """The mean over clients: every client counts the same."""
        return float(self.by_client.mean())

    @property
    def repeats(self) -> int:
        """How often split and training were drawn anew."""
        return len(self.by_repeat)

    def only(self, client: str) -> Gains:
        """The gains of one client."""
        i = self.clients.index(client)
        return self._replace(
            clients=(client,),
            left_out={},
            by_repeat=self.by_repeat[:, i : i + 1],
            row_variances=self.row_variances[:, i : i + 1],
            parts=(self.parts[i],),
            weights=(self.weights[i],),
        )


def measure_gains(paired: Paired, scoring: Scoring, untrained: Mapping[str, str] = NOBODY) -> Gains:
    """What the method gains over training alone, on the same test rows.

    Args:
      paired: outputs of both at every client, an entry per repeat.
      scoring: what is judged by.
      untrained: clients without training alone to gain over, each with the reason.

    Example:
      >>> right = lambda outputs, labels: (outputs.argmax(-1) == labels) * 1.0
      >>> mean = lambda o, y, w: (right(o, y) * w).sum(-1) / w.sum(-1)
      >>> says = lambda *classes: np.eye(2)[list(classes)]
      >>> y = np.array([0, 1, 1, 0])
      >>> rows = PairedRows(np.arange(4), y, ours=says(0, 1, 1, 1), alone=says(0, 0, 1, 1))
      >>> measure_gains({"north": [rows]}, Scoring(mean, right)).mean
      0.25
    """
    if not paired or len({len(repeats) for repeats in paired.values()}) != 1:
        raise BadInput("the same number of repeats is needed at every client, and at least one")
    left_out: dict[str, str] = {}
    found: dict[str, tuple[Values, Values, Values, Values]] = {}
    for name, repeats in paired.items():
        if name in untrained:
            left_out[name] = untrained[name]
            continue
        if not (scoring.answers or all(one.finite for one in repeats)):
            left_out[name] = "a model's outputs are not all numbers: its training diverged"
            continue
        gains = np.array([_gain(one, scoring) if len(one.rows) else np.nan for one in repeats])
        if np.isnan(gains).all():
            why = scoring.why_undefined and scoring.why_undefined(repeats[0].labels)
            left_out[name] = why or "the metric is undefined on its test rows"
            continue
        known = [one for one, gain in zip(repeats, gains, strict=True) if not np.isnan(gain)]
        parts, weights, of_known = _by_row(known, scoring)
        of_rows = np.full(len(gains), np.nan)
        of_rows[~np.isnan(gains)] = of_known
        found[name] = (gains, of_rows, parts, weights)
    width = len(next(iter(paired.values())))
    columns = [np.array([one[i] for one in found.values()]).reshape(-1, width).T for i in (0, 1)]
    return Gains(
        clients=tuple(found),
        left_out=left_out,
        by_repeat=columns[0],
        row_variances=columns[1],
        parts=tuple(one[2] for one in found.values()),
        weights=tuple(one[3] for one in found.values()),
        share=scoring.share,
    )


def _gain(one: PairedRows, scoring: Scoring) -> float:
    if scoring.per_row is not None:
        return float(_row_gains(one, scoring).mean())
    weight = np.ones(len(one.rows))
    ours, alone = (
        float(scoring.function(outputs, one.labels, weight)) for outputs in (one.ours, one.alone)
    )
    return ours - alone if scoring.higher_is_better else alone - ours


def _row_gains(one: PairedRows, scoring: Scoring) -> Values:
    assert scoring.per_row is not None
    ours, alone = (np.asarray(scoring.per_row(o, one.labels), float) for o in (one.ours, one.alone))
    return np.asarray(ours - alone if scoring.higher_is_better else alone - ours)


def _by_row(repeats: Sequence[PairedRows], scoring: Scoring) -> tuple[Values, Values, list[float]]:
    """A client's mean gain as a sum over its rows, how much each counts; repeats' variances."""
    rows = np.unique(np.concatenate([one.rows for one in repeats]))
    at = [np.searchsorted(rows, one.rows) for one in repeats]
    weights = np.zeros(len(rows))
    for one, where in zip(repeats, at, strict=True):
        weights[where] += 1 / (len(one.rows) * len(repeats))
    if scoring.per_row is None:
        return _left_out_once(repeats, at, weights, scoring)
    parts, variances = np.zeros(len(rows)), []
    for one, where in zip(repeats, at, strict=True):
        each = _row_gains(one, scoring)
        parts[where] += each / (len(each) * len(repeats))
        variances.append(float(each.var()) / max(1, len(each) - 1))
    return parts, weights, variances


def _left_out_once(
    repeats: Sequence[PairedRows], at: Sequence[Values], weights: Values, scoring: Scoring
) -> tuple[Values, Values, list[float]]:
    """Parts of a gain that is no mean over rows: by how much it changes without each (jackknife).

    Of a mean they are exactly its terms. Many rows are left out in groups.
    """
    n = len(weights)
    group = np.arange(n) * min(n, MOST_GROUPS) // n
    groups = int(group[-1]) + 1
    without, whole, variances = np.zeros(groups), 0.0, []
    for one, where in zip(repeats, at, strict=True):
        gain = _gain(one, scoring)
        # without a row that defines the metric (the only positive) no gain would be known: 0
        each = np.nan_to_num(_without(one, group[where], groups, scoring))
        whole += gain / len(repeats)
        without += each / len(repeats)
        there = np.unique(group[where])
        shares = len(there)
        variances.append(float(((each[there] - gain) ** 2).sum()) * (shares - 1) / max(1, shares))
    weight = np.bincount(group, weights, groups)
    parts = (1 - weight) * (whole - without) + whole * weight
    return parts + (whole - parts.sum()) * weight, weight, variances


def _without(one: PairedRows, group: Values, groups: int, scoring: Scoring) -> Values:
    """[groups] gains of one repeat without each group of rows."""
    out = np.empty(groups)
    step = max(1, AT_A_TIME // max(1, one.ours.size))
    sign = 1 if scoring.higher_is_better else -1
    for first in range(0, groups, step):
        weight = (group != np.arange(first, min(first + step, groups))[:, None]).astype(float)
        ours, alone = (
            scoring.function(np.broadcast_to(o, (len(weight), *o.shape)), one.labels, weight)
            for o in (one.ours, one.alone)
        )
        out[first : first + step] = sign * (np.asarray(ours) - np.asarray(alone))
    return out


def swapped_gains(repeats: Sequence[PairedRows], scoring: Scoring, swaps: Values) -> Values:
    """A client's mean gain where the two models have changed places in some rows.

    Where only the order counts, ranks within a model change places: two models' scales differ.

    Args:
      repeats: one client's.
      scoring: how outputs are judged.
      swaps: [times, distinct rows], True where ours and alone change places, in all repeats.

    Returns:
      [times]; nan where the metric is undefined in every repeat.
    """
    rows = np.unique(np.concatenate([one.rows for one in repeats]))
    sign = 1 if scoring.higher_is_better else -1
    total, known = np.zeros(len(swaps)), 0
    for one in repeats:
        if len(one.rows) == 0:
            continue
        where = np.searchsorted(rows, one.rows)
        each = [_swapped(*problem, swaps[:, where], scoring) for problem in _problems(one, scoring)]
        defined = [gains for gains in each if not np.isnan(gains).any()]
        if defined:
            total += sign * np.mean(defined, axis=0)
            known += 1
    return total / known if known else np.full(len(swaps), np.nan)


def _swapped(
    ours: Values, alone: Values, labels: Values, swaps: Values, scoring: Scoring
) -> Values:
    """[times] differences of the metric."""
    out = np.empty(len(swaps))
    step = max(1, AT_A_TIME // max(1, ours.size))
    for first in range(0, len(swaps), step):
        swap = swaps[first : first + step, :, None]
        weight = np.ones(swap.shape[:2])
        a, b = (
            np.asarray(scoring.function(np.where(swap, x, y), labels, weight))
            for x, y in ((alone, ours), (ours, alone))
        )
        out[first : first + step] = a - b
    return out


def _problems(one: PairedRows, scoring: Scoring) -> list[tuple[Values, Values, Values]]:
    """(ours, alone, labels) as they change places; a ranking has one for each class."""
    width = one.ours.shape[1]
    if not scoring.ranking:
        return [(one.ours, one.alone, one.labels)]
    if width == 1:
        return [(_ranks(one.ours), _ranks(one.alone), one.labels)]
    ours, alone = (_ranks(scipy.special.log_softmax(o, axis=1)) for o in (one.ours, one.alone))
    of_class = [1] if width == 2 else range(width)
    # two columns, so that the second is what a function of two classes goes by
    return [
        (
            np.stack([np.zeros(len(ours)), ours[:, c]], axis=1),
            np.stack([np.zeros(len(alone)), alone[:, c]], axis=1),
            (one.labels == c).astype(np.int64),
        )
        for c in of_class
    ]


def _ranks(scores: Values) -> Values:
    """Ranks within each column, between 0 and 1; equal scores share theirs."""
    return np.asarray(scipy.stats.rankdata(scores, axis=0)) / (len(scores) + 1)
