"""A decision in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from fedtailor.results.statistics.decision import LEAST_SITES, Decision
from fedtailor.results.statistics.ended import TrainingEnd
from fedtailor.results.statistics.needed import Needed

MOST_NAMES = 6


class Wording(NamedTuple):
    """How a metric is spoken of."""

    metric: str  # what people call it: "accuracy", "the error in blood pressure"
    unit: str = "points"  # of a difference: "points", "mmHg"; empty where it has none
    scale: float = 100.0  # what a difference is multiplied with: 100 for points
    digits: int = 1  # after the decimal point

    def number(self, value: float) -> str:
        """A difference without its unit."""
        shown = f"{self.scale * value:.{self.digits}f}"
        if float(shown) == 0:
            shown = shown.lstrip("-")
        return shown.replace("-", "−")

    def amount(self, value: float) -> str:
        """A difference with its unit."""
        unit = self.unit.removesuffix("s") if self.number(abs(value)) == "1" else self.unit
        return f"{self.number(value)} {unit}".strip()


def sentences(
    decision: Decision,
    wording: Wording,
    *,
    clients: Mapping[str, Decision] | None = None,
    ends: Mapping[str, TrainingEnd] | None = None,
    repeats: int = 1,
) -> list[str]:
    """What was found, the most important first; `ends` says how training ended, by method.

    `repeats` is 0 where real sites played, who cannot simply draw anew.

    Example:
      >>> found = Decision(
      ...     "helps", "fedavg", "accuracy", 0.032, (0.011, 0.053), 0.004, 0.05, 0.01,
      ...     "these sites", "", None, clients=4)
      >>> first, second = sentences(found, Wording("accuracy"), repeats=5)
      >>> first[:67]
      'Federation helps here: with fedavg, accuracy is 3.2 points better t'
      >>> second
      'This speaks for these 4 sites: fewer than 6 say nothing of others like them.'
    """
    told = [_answer(decision, wording)]
    told += _for_whom(decision, wording)
    if decision.left_out:
        told.append(_left_out(decision))
    if decision.needed:
        told += _needed(decision.needed, decision, wording)
    if repeats == 1:
        told.append(
            "Split and training were drawn once: another draw may give another gain "
            "(--repeats 5 covers that)."
        )
    elif repeats == 0:
        told.append("Real sites played this once: another training may give another gain.")
    if clients:
        told += _by_client(clients, wording)
    return told + _still_rising(ends or {}, wording)


def _still_rising(ends: Mapping[str, TrainingEnd], wording: Wording) -> list[str]:
    rising = {name: end for name, end in ends.items() if end.still_rising}
    if not rising:
        return []
    each = [f"{wording.amount(end.rise)} {name}" for name, end in rising.items()]
    more = max(end.more_rounds for end in rising.values())
    return [
        f"Training had not ended: {wording.metric} still got better in the last third of the "
        f"rounds (by {' and '.join(each)}); try about {more} more."
    ]


def _interval(d: Decision, wording: Wording) -> str:
    low, high = d.interval
    share = f"{100 * (1 - d.level):g} % interval"
    if not (isfinite(low) and isfinite(high)):
        return f"no {share} can be given"
    return f"{share} {wording.number(low)} to {wording.number(high)}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _answer(d: Decision, wording: Wording) -> str:
    if not isfinite(d.gain):
        return f"Whether federation helps cannot be told: {d.reason}."
    basis = f"({_interval(d, wording)}, {_p(d.p)})"
    size = wording.amount(abs(d.gain))
    way = "better" if d.gain >= 0 else "worse"
    if d.answer == "helps":
        return (
            f"Federation helps here: with {d.method}, {wording.metric} is {size} better than "
            f"alone {basis}."
        )
    if d.answer == "harms":
        return (
            f"Federation harms here: with {d.method}, {wording.metric} is {size} worse than "
            f"alone {basis}."
        )
    if d.answer == "no difference":
        return (
            f"Federation makes no difference above {wording.amount(d.margin)}: with {d.method}, "
            f"{wording.metric} is {size} {way} than alone {basis}."
        )
    return (
        f"Whether federation helps cannot be told: with {d.method}, {wording.metric} was {size} "
        f"{way} than alone {basis}, and "
        + ("another training might undo that." if d.p < d.level else "chance alone could do that.")
    )


def _for_whom(d: Decision, wording: Wording) -> list[str]:
    if not isfinite(d.gain) or d.speaks_for == "this site":
        return []
    if d.speaks_for == "sites like these":
        line = "This speaks for sites like these, not for these alone."
        if d.beside is not None and d.beside.answer != d.answer:
            other = f"{_interval(d.beside, wording)}, {_p(d.beside.p)}"
            line += f" For these {d.clients} sites alone: {_short(d.beside, wording)} ({other})."
        return [line]
    who = "this one site" if d.clients == 1 else f"these {d.clients} sites"
    if d.beside is None:
        return [f"This speaks for {who}: fewer than {LEAST_SITES} say nothing of others like them."]
    return [
        f"This speaks for {who}. For others like them: {_short(d.beside, wording)} "
        f"({_p(d.beside.p)})."
    ]


def _short(d: Decision, wording: Wording) -> str:
    if d.answer == "no difference":
        return f"no difference above {wording.amount(d.margin)}"
    return f"it {d.answer}" if d.answer in ("helps", "harms") else "it cannot be told"


def _left_out(d: Decision) -> str:
    why = "; ".join(sorted(set(d.left_out.values())))
    return f"{_names(list(d.left_out))} not counted ({why}): means are over {d.clients}."


def _needed(needed: Needed, d: Decision, wording: Wording) -> list[str]:
    ways = []
    if needed.repeats is not None:
        ways.append(f"{needed.repeats} repeats")
    if needed.rows is not None:
        ways.append(f"{needed.rows} test rows of each site")
    if needed.sites is not None and d.speaks_for != "this site":
        ways.append(f"{needed.sites} sites")
    if not ways:
        return []
    either = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
    return [f"To tell a difference of {wording.amount(needed.gain)} takes about {either}."]


def _names(names: list[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _by_client(clients: Mapping[str, Decision], wording: Wording) -> list[str]:
    told = []
    for answer, says in (("helps", "Better off with it"), ("harms", "Better off alone")):
        found = [
            f"{n} (by {wording.amount(abs(d.gain))})"
            for n, d in clients.items()
            if d.answer == answer
        ]
        if found:
            told.append(f"{says}, beyond chance: {_names(found)}.")
    same = [n for n, d in clients.items() if d.answer == "no difference"]
    if same:
        margin = wording.amount(next(iter(clients.values())).margin)
        told.append(f"No difference above {margin}: {_names(same)}.")
    open_ = [n for n, d in clients.items() if d.answer == "cannot tell"]
    unknown = sorted({d.reason for d in clients.values() if not isfinite(d.gain)})
    if len(open_) == len(clients):
        known = any(isfinite(d.gain) for d in clients.values())
        why = ["each has too few test rows"] if known and not unknown else unknown
        why = [*why, "the others have too few test rows"] if known and unknown else why
        told.append(f"Of no single client can it be told: {'; '.join(why)}.")
    elif open_:
        told.append(f"Of {len(open_)} of {len(clients)} clients it cannot be told.")
    return told
