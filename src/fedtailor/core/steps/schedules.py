"""How the learning rate changes from round to round: a factor on it, by name or as a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.options import shortened

# (number of the round from 0, how many rounds the run has) -> factor on the learning rate
Schedule = Callable[[Tensor, Tensor], Tensor]


def constant() -> Schedule:
    """The same learning rate in every round."""
    return lambda round, rounds: torch.ones_like(round, dtype=torch.get_default_dtype())


def decay(factor: float) -> Schedule:
    """`factor` times the learning rate of the round before."""
    return lambda round, rounds: factor**round


def cosine(floor: float = 0.0) -> Schedule:
    """From 1 to `floor` over the whole run along half a cosine (Loshchilov and Hutter, 2017)."""

    def at(round: Tensor, rounds: Tensor) -> Tensor:
        done = (round / rounds.clamp(min=1)).clamp(max=1)
        return floor + (1 - floor) * (1 + (math.pi * done).cos()) / 2

    return at


def step(every: int, factor: float = 0.1) -> Schedule:
    """`factor` times the learning rate after every so many rounds."""
    return lambda round, rounds: factor ** (round // every)


def warmup(first: int, then: Schedule) -> Schedule:
    """Grows linearly over the `first` rounds, then follows another schedule.

    The last of the first rounds has the whole learning rate; the other schedule has the rounds that
    are left to itself.
    """

    def at(round: Tensor, rounds: Tensor) -> Tensor:
        left = then((round - first).clamp(min=0), (rounds - first).clamp(min=1))
        return torch.where(round < first, (round + 1) / first, left)

    return at


class _Form(NamedTuple):
    """How a schedule is written.

    Its maker, the numbers (kind, least, most) that it may have, how many of them it must have, and
    an example.
    """

    make: Callable[..., Schedule]
    numbers: tuple[tuple[type, float, float], ...]
    needed: int
    example: str


_POSITIVE, _COUNT = (float, 1e-12, math.inf), (int, 1, math.inf)
_FORMS = {
    "constant": _Form(constant, (), 0, "constant"),
    "decay": _Form(decay, (_POSITIVE,), 1, "decay:0.99"),
    "cosine": _Form(cosine, ((float, 0, 1),), 0, "cosine, or with a floor cosine:0.001"),
    "step": _Form(step, (_COUNT, _POSITIVE), 1, "step:10:0.1"),
    "warmup": _Form(warmup, (_COUNT,), 1, "warmup:5, or before another warmup:5+cosine"),
}


def _number(word: str, kind: type, low: float, high: float) -> Any:
    try:
        value = kind(word)
    except ValueError:
        return None
    return value if low <= value <= high and math.isfinite(value) else None


@lru_cache
def parse_schedule(text: str) -> Schedule:
    """A schedule by its name, with its numbers after colons.

    `constant`, `decay:0.99` (per round), `cosine`, `cosine:0.001` (down to a thousandth),
    `step:10:0.1` (a tenth after every ten rounds), and `warmup:5` in front of any other, as in
    `warmup:5+cosine`.

    Raises:
      BadInput: it is none of these.

    Example:
      >>> half_way = parse_schedule("warmup:5+cosine")(torch.tensor(10), torch.tensor(15))
      >>> round(float(half_way), 6)
      0.5
    """
    head, plus, rest = text.partition("+")
    name, *numbers = head.split(":")
    if name not in _FORMS:
        raise unknown("schedule", name, _FORMS)
    form = _FORMS[name]
    given = [_number(word, *kind) for word, kind in zip(numbers, form.numbers, strict=False)]
    fits = form.needed <= len(numbers) <= len(form.numbers) and None not in given
    if not fits or (plus and name != "warmup"):
        raise BadInput(f"schedule is '{text}': write {form.example}")
    if name == "warmup":
        given.append(parse_schedule(rest) if plus else constant())
    return form.make(*given)


def factor(schedule: str | Schedule, round: Tensor, rounds: Tensor) -> Tensor:
    """What a schedule makes of the learning rate in a round: one number.

    Raises:
      BadInput: a function of one's own gives something else.
    """
    chosen = parse_schedule(schedule) if isinstance(schedule, str) else schedule
    given: Any = chosen(round, rounds)
    try:
        found = torch.as_tensor(given, device=round.device)
    except (TypeError, ValueError, RuntimeError):  # torch has no numbers of it
        raise BadInput(f"schedule gives {shortened(given)}: give one number") from None
    if found.shape != () or found.is_complex():
        raise BadInput(f"schedule gives a tensor of shape {tuple(found.shape)}: give one number")
    return found


def check_factors(schedule: Schedule, rounds: int) -> None:
    """Refuses a function of one's own that gives in some round what no learning rate can be.

    Raises:
      BadInput: in which round, and what it gives.

    Example:
      >>> check_factors(lambda round, rounds: 1 - round / 2, 4)
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: schedule gives -0.5 for round 3 (from 0) of 4: give 0 or more
    """
    for round in range(rounds):
        found = float(factor(schedule, torch.tensor(round), torch.tensor(rounds)))
        if not 0 <= found < math.inf:
            raise BadInput(
                f"schedule gives {found:g} for round {round} (from 0) of {rounds}: give 0 or more"
            )
