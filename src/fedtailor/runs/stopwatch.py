"""Where the time of a run goes: seconds by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

Phase = Literal["importing", "data", "preparing", "training", "evaluating", "saving", "report"]

_LOADED = time.perf_counter()


def process_age() -> float:
    """Seconds since this process was started; where that cannot be asked, since this was loaded."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # the name, in brackets, may hold anything; start is the 22nd field, in ticks since boot
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return time.perf_counter() - _LOADED


class Stopwatch:
    """Counts seconds by phase; time of an inner phase is not counted for the one around it.

    Example:
      >>> watch = Stopwatch()
      >>> with watch.phase("training"), watch.phase("saving"):
      ...     time.sleep(0.02)
      >>> watch.count("importing", 1.5)
      >>> found = watch.seconds()
      >>> found["importing"], found["saving"] >= 0.02, found["training"] < 0.02
      (1.5, True, True)
    """

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = dict.fromkeys(get_args(Phase), 0.0)
        self._within: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Within, time counts for this phase."""
        self._stop()
        self._within.append(name)
        try:
            yield
        finally:
            self._stop()
            self._within.pop()

    def _stop(self) -> None:
        now = time.perf_counter()
        if self._within:
            self._seconds[self._within[-1]] += now - self._since
        self._since = now

    def count(self, name: Phase, seconds: float) -> None:
        """Adds seconds that were measured elsewhere, or takes them off."""
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """What each phase took so far, for a file."""
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}


def phases_line(seconds: dict[str, float]) -> str:
    """The same for people, without what took no time.

    Example:
      >>> phases_line({"importing": 2.04, "data": 0.001, "training": 7.0})
      'importing 2.0 s, training 7.0 s'
    """
    return ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items() if took >= 0.05)
