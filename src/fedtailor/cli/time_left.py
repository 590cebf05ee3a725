"""How long is left of some runs, by the rounds that were played so far."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def about(seconds: float) -> str:
    """A duration for people, with one or two digits.

    Example:
      >>> about(733), about(5400), about(0.2)
      ('about 12 min', 'about 1.5 h', 'about 1 s')
    """
    unit, size = next((u for u in UNITS if seconds >= 1.5 * u[1]), UNITS[-1])
    count = max(seconds / size, 1.0)
    digits = 1 if size > 60 and count < 10 else 0
    return f"about {count:.{digits}f} {unit}"


class TimeLeft:
    """A clock that is told of rounds: what is left takes as long as what was played, by rounds.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._rounds: dict[str, int] = {}
        self._played = 0  # here: a run may go on from a checkpoint

    def played(self, run: str, number: int) -> None:
        """A run has come to the end of a round."""
        self._played += number - self._rounds.get(run, number - 1)
        self._rounds[run] = number

    def round_of(self, run: str) -> int:
        """The last round that a run has come to the end of; 0 before its first."""
        return self._rounds.get(run, 0)

    def words(self, rounds: int) -> str:
        """How long some rounds will take; empty before the first one is played.

        Args:
          rounds: left to play, of all runs.
        """
        if not self._played or rounds <= 0:
            return ""
        took = (self._clock() - self._began) / self._played
        return f"{about(took * rounds)} left"
