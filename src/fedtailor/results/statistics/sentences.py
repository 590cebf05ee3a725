"""A decision in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from fedtailor.core.inputs.plain_text import counted
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

    def size(self, value: float) -> str:
        """How large a difference is, without its sign; one that is too small to show says so.

        Example:
          >>> Wording("accuracy").size(-0.021), Wording("accuracy").size(0.0001)
          ('2.1 points', 'less than 0.1 points')
        """
        least = 10.0**-self.digits / self.scale
        small = value != 0 and float(self.number(abs(value))) == 0
        return f"less than {self.amount(least)}" if small else self.amount(abs(value))

    def beside_alone(self, gain: float) -> str:
        """Where a method stands beside training alone.

        Example:
          >>> [Wording("accuracy").beside_alone(gain) for gain in (0.021, -0.021, 0.0)]
          ['2.1 points better than alone', '2.1 points worse than alone', 'as alone']
        """
        return self.beside(gain, "alone")

    def beside(self, gain: float, other: str) -> str:
        """Where something stands beside another."""
        if gain == 0:
            return f"as {other}"
        return f"{self.size(gain)} {'better' if gain > 0 else 'worse'} than {other}"


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
        told += _by_client(clients, wording, "beyond chance" if repeats > 1 else _ONCE)
    return told + _still_rising(ends or {}, wording)


def _still_rising(ends: Mapping[str, TrainingEnd], wording: Wording) -> list[str]:
    rising = {name: end for name, end in ends.items() if end.still_rising}
    if not rising:
        return []
    each = [f"{wording.size(end.rise)} {name}" for name, end in rising.items()]
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
    stands = wording.beside_alone(d.gain)
    found = f"with {d.method}, {wording.metric} is {stands} {basis}"
    if d.answer in ("helps", "harms"):
        return f"Federation {d.answer} here: {found}."
    if d.answer == "no difference":
        return f"Federation makes no difference above {wording.amount(d.margin)}: {found}."
    unknown = (
        f"Whether federation helps cannot be told: with {d.method}, {wording.metric} was {stands}"
    )
    if d.gain != 0 and d.p < d.level:  # by rows; the interval allows for other trainings, too
        return (
            f"{unknown}, in these rows beyond chance ({_p(d.p)}), but another training might undo "
            f"that ({_interval(d, wording)})."
        )
    why = "chance alone could do that"
    if d.gain == 0:
        why = "a difference either way could be hidden"
    return f"{unknown} {basis}, and {why}."


def _for_whom(d: Decision, wording: Wording) -> list[str]:
    if not isfinite(d.gain) or d.speaks_for == "this site":
        return []
    if d.speaks_for == "sites like these":
        line = "This speaks for sites like these, not for these alone."
        if d.beside is not None and d.beside.answer != d.answer:
            other = f"{_interval(d.beside, wording)}, {_p(d.beside.p)}"
            line += f" For these {d.clients} sites alone: {_short(d.beside, wording)} ({other})."
        return [line]
    who, them = f"these {d.clients} sites", "them"
    if d.clients == 1:
        who, them = "this one site", "it"
    if d.beside is None:
        fewer = f"fewer than {LEAST_SITES} say nothing of others like {them}"
        return [f"This speaks for {who}: {fewer}."]
    return [
        f"This speaks for {who}. For others like {them}: {_short(d.beside, wording)} "
        f"({_p(d.beside.p)})."
    ]


def _short(d: Decision, wording: Wording) -> str:
    if d.answer == "no difference":
        return f"no difference above {wording.amount(d.margin)}"
    return f"it {d.answer}" if d.answer in ("helps", "harms") else "it cannot be told"


def _left_out(d: Decision) -> str:
    why = "; ".join(sorted(set(d.left_out.values())))
    over = "one client alone" if d.clients == 1 else str(d.clients)
    return f"{_names(list(d.left_out))} not counted ({why}): means are over {over}."


def _needed(needed: Needed, d: Decision, wording: Wording) -> list[str]:
    ways = []
    if needed.repeats is not None:
        ways.append(counted(needed.repeats, "repeat"))
    if needed.rows is not None:
        ways.append(f"{counted(needed.rows, 'test row')} of each site")
    if needed.sites is not None and d.speaks_for != "this site":
        ways.append(counted(needed.sites, "site"))
    if not ways:
        return []
    either = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
    return [f"To tell a difference of {wording.size(needed.gain)} takes about {either}."]


def _names(names: list[str]) -> str:
    if len(names) > MOST_NAMES:
        return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# one site alone does not show how much of it is the luck of training
_ONCE = "beyond chance in the rows, with the models of this training"


def _by_client(clients: Mapping[str, Decision], wording: Wording, sure: str) -> list[str]:
    told = []
    for answer, says in (("helps", "Better off with it"), ("harms", "Better off alone")):
        found = [
            f"{n} (by {wording.size(d.gain)})" for n, d in clients.items() if d.answer == answer
        ]
        if found:
            told.append(f"{says}, {sure}: {_names(found)}.")
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
