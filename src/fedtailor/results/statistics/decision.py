"""The answer: does it help, does it harm, is there no difference that matters, or who can tell?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.results.statistics.intervals import Interval, both_interval, rows_interval
from fedtailor.results.statistics.needed import Needed, what_is_needed
from fedtailor.results.statistics.paired import Gains, Paired, Scoring, Values, measure_gains
from fedtailor.results.statistics.permutation import DRAWS, SWAPS, clients_test, rows_test

Answer = Literal["helps", "harms", "no difference", "cannot tell"]
SpeaksFor = Literal["sites like these", "these sites", "this site"]
LEVEL = 0.05
MARGIN = 0.01  # a point of a share; of an error in the label's unit, this times its deviation
MANY_SITES = 8  # from here on clients and rows are asked, and both must agree
LEAST_SITES = 6  # with fewer, clients cannot reach 0.05: the least p of K is 2/2^K


@dataclass(frozen=True)
class Decision:
    """An answer, and what it rests on."""

    answer: Answer  # "no difference" means: none above the margin
    method: str  # that is compared with training alone
    metric: str
    gain: float  # mean over clients; positive is better, whichever way the metric points
    interval: Interval  # 95 % at level 0.05; an end is infinite where nothing bounds it
    p: float  # two-sided; of both tests the larger, where both are asked
    level: float  # up to which p an answer may be chance
    margin: float  # differences up to here do not matter
    speaks_for: SpeaksFor
    reason: str
    needed: Needed | None  # what it would take to tell; None where it was told
    clients: int  # over how many the mean is
    left_out: dict[str, str] = field(default_factory=dict)  # without a gain, each with the reason
    beside: Decision | None = None  # the answer for the other reading, where there is one

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no word for what is no number: None."""
        out = asdict(self)
        out["interval"] = [_number(end) for end in self.interval]
        out["gain"] = _number(self.gain)
        out["needed"] = self.needed._asdict() if self.needed else None
        out["beside"] = self.beside.as_dict() if self.beside else None
        return out


class _Terms(NamedTuple):
    """What all decisions of a comparison share."""

    method: str
    metric: str
    margin: float
    level: float
    tested_share: float

    def checked(self) -> _Terms:
        if not (isfinite(self.margin) and self.margin >= 0):
            raise BadInput(f"margin is {self.margin:g}: give 0 or more, 0.01 for a point")
        if not 0 < self.level < 0.5:
            raise BadInput(f"level is {self.level:g}: give a number between 0 and 0.5, as 0.05")
        return self


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def usual_margin(labels: Values | None = None) -> float:
    """The margin if none is given: a point; for errors in the labels' unit 1 % of their deviation.

    Example:
      >>> usual_margin(), usual_margin(np.array([10.0, 30.0]))
      (0.01, 0.1)
    """
    return MARGIN if labels is None else MARGIN * float(np.std(labels))


def pick_method(validation: Mapping[str, float], *, higher_is_better: bool = True) -> str:
    """The method to recommend: best on validation rows, the first of equals.

    Example:
      >>> pick_method({"fedavg": 0.81, "ditto": 0.84, "fedrep": float("nan")})
      'ditto'
    """
    known = {m: v if higher_is_better else -v for m, v in validation.items() if isfinite(v)}
    if not known:
        raise BadInput("no method has a value on validation rows: none can be recommended")
    return max(known, key=lambda method: known[method])


def decide(
    paired: Paired,
    scoring: Scoring,
    *,
    method: str,
    metric: str,
    margin: float = MARGIN,
    level: float = LEVEL,
    tested_share: float = 0.25,
    gains: Gains | None = None,
) -> Decision:
    """Whether a method helps these clients, against training alone.

    From 8 clients on it speaks for sites like these, and clients and rows must agree. With fewer
    it speaks for these sites. The other reading stands beside it where it can be had.

    Args:
      paired: what both models say of the same test rows.
      scoring: how that is judged.
      method: for the record.
      metric: for the record.
      margin: differences up to here do not matter.
      level: of all tests.
      tested_share: of a client's rows in each repeat.
      gains: what `measure_gains` finds, if somebody has it: of rankings it takes long.

    Example:
      >>> from fedtailor.results.statistics.paired import PairedRows
      >>> right = lambda outputs, labels: (outputs.argmax(-1) == labels) * 1.0
      >>> accuracy = Scoring(lambda o, y, w: (right(o, y) * w).sum(-1) / w.sum(-1), right)
      >>> y, says = np.zeros(40, int), np.eye(2)
      >>> rows = PairedRows(np.arange(40), y, ours=says[y], alone=says[np.arange(40) // 24])
      >>> found = decide({"north": [rows]}, accuracy, method="fedavg", metric="accuracy")
      >>> found.answer, round(found.gain, 2), found.speaks_for
      ('helps', 0.4, 'these sites')
    """
    terms = _Terms(method, metric, margin, level, tested_share).checked()
    gains = gains or measure_gains(paired, scoring)
    if not gains.clients:
        return _nothing_known(gains, terms)
    of_rows = rows_test(gains, paired, scoring)
    of_clients = clients_test(gains)
    these = _judged(gains, of_rows, of_clients, "these sites", terms)
    if len(gains.clients) < LEAST_SITES:
        return these
    like = _judged(gains, of_rows, of_clients, "sites like these", terms)
    if len(gains.clients) < MANY_SITES:
        return replace(these, beside=like)
    return replace(like, beside=these)


def _nothing_known(gains: Gains, terms: _Terms) -> Decision:
    reason = "at no client is a gain known: " + "; ".join(sorted(set(gains.left_out.values())))
    return Decision(
        answer="cannot tell",
        method=terms.method,
        metric=terms.metric,
        gain=float("nan"),
        interval=(-np.inf, np.inf),
        p=1.0,
        level=terms.level,
        margin=terms.margin,
        speaks_for="these sites",
        reason=reason,
        needed=None,
        clients=0,
        left_out=gains.left_out,
    )


def _judged(
    gains: Gains,
    of_rows: float,
    of_clients: float,
    speaks_for: SpeaksFor,
    terms: _Terms,
    *,
    side_by_side: int = 1,
) -> Decision:
    level, margin = terms.level, terms.margin
    beyond = speaks_for == "sites like these"
    interval_of = both_interval if beyond else rows_interval
    p = max(of_rows, of_clients) if beyond else of_rows
    interval = interval_of(gains, level)
    if gains.share and isfinite(interval[0]) and isfinite(interval[1]):  # a share's gain is no more
        interval = max(-1.0, interval[0]), min(1.0, interval[1])
    # two one-sided tests at the level: the interval of 1 − 2·level, corrected as Bonferroni does
    inner = interval_of(gains, 2 * level / side_by_side)
    answer = _answer(gains.mean, interval, inner, p, level, margin)
    target = max(abs(gains.mean), margin)
    told = answer != "cannot tell"
    return Decision(
        answer=answer,
        method=terms.method,
        metric=terms.metric,
        gain=gains.mean,
        interval=interval,
        p=p,
        level=level,
        margin=margin,
        speaks_for=speaks_for,
        reason=_reason(answer, of_rows, of_clients, len(gains.clients), speaks_for, level),
        needed=None
        if told or target == 0
        else what_is_needed(gains, interval, target, level=level, tested_share=terms.tested_share),
        clients=len(gains.clients),
        left_out=gains.left_out,
    )


def _answer(
    gain: float, interval: Interval, inner: Interval, p: float, level: float, margin: float
) -> Answer:
    if -margin <= inner[0] and inner[1] <= margin:
        return "no difference"
    if p < level and interval[0] > 0 and gain > 0:
        return "helps"
    if p < level and interval[1] < 0 and gain < 0:
        return "harms"
    return "cannot tell"


def _reason(
    answer: Answer,
    of_rows: float,
    of_clients: float,
    clients: int,
    speaks_for: SpeaksFor,
    level: float,
) -> str:
    beyond = speaks_for == "sites like these"
    found = f"p = {of_rows:.2g} over rows"
    if beyond:
        found = f"p = {of_clients:.2g} over clients and {of_rows:.2g} over rows"
    if answer == "no difference":
        why = f"every gain that the data leave possible is within the margin ({found})"
    elif answer == "cannot tell" and max(of_rows, of_clients if beyond else 0) < level:
        why = f"rows differ beyond chance ({found}), but another training might undo that"
    elif answer == "cannot tell":
        why = f"chance alone could do this ({found}), and more than the margin remains possible"
    else:
        why = f"chance alone hardly does this ({found})"
    if not beyond and speaks_for != "this site" and clients < LEAST_SITES:
        few = "one site" if clients == 1 else f"{clients} sites"
        why += f"; {few} cannot speak for others, as their least p is {min(1, 2 / 2**clients):.2g}"
    return why


def decide_clients(
    paired: Paired,
    scoring: Scoring,
    *,
    method: str,
    metric: str,
    margin: float = MARGIN,
    level: float = LEVEL,
    tested_share: float = 0.25,
    gains: Gains | None = None,
) -> dict[str, Decision]:
    """Whether it helps each client, by the client's own rows, corrected over clients (Holm).

    With accuracy and one repeat the test is McNemar's. Intervals are each client's own.
    Clients at which the metric is undefined cannot be told.
    """
    terms = _Terms(method, metric, margin, level, tested_share).checked()
    gains = gains or measure_gains(paired, scoring)
    # so many draws that the least p, times the number of clients, still is below the level
    swaps = int(np.clip(3 * len(gains.clients) / level, SWAPS, DRAWS))
    found = {}
    for name in gains.clients:
        own = gains.only(name)
        p = rows_test(own, paired, scoring, swaps)
        found[name] = _judged(own, p, 1.0, "this site", terms, side_by_side=len(gains.clients))
    out = holm_corrected(found)
    for name, why in gains.left_out.items():
        lost = _nothing_known(gains._replace(left_out={name: why}), terms)
        out[name] = replace(lost, speaks_for="this site", reason=why)
    return {name: out[name] for name in paired}


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: p-values of which the chance of even one false answer holds.

    Example:
      >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
      {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    order = sorted(p, key=lambda name: p[name])
    out, least = {}, 0.0
    for i, name in enumerate(order):
        least = max(least, min(1.0, (len(order) - i) * p[name]))
        out[name] = least
    return {name: out[name] for name in p}


def holm_corrected(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Decisions that were made side by side (clients; methods that are not recommended)."""
    corrected = holm({name: d.p for name, d in decisions.items()})
    out = {}
    for name, d in decisions.items():
        lost = d.answer in ("helps", "harms") and corrected[name] >= d.level
        out[name] = replace(
            d,
            p=corrected[name],
            answer="cannot tell" if lost else d.answer,
            reason=f"{d.reason}; of {len(decisions)} such tests, one as clear may be chance"
            if lost
            else d.reason,
        )
    return out
