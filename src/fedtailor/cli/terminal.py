"""What a terminal shows, whatever the command: text, JSON, tables, bars and the time left."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedtailor.core.inputs.plain_text import printable

SPEAK_EVERY = 10.0  # seconds, where there is no terminal
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


class SafeConsole(Console):
    """A console that data cannot steer: whatever a class or a column is called is shown as text."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Text as it is shown."""
        return super().render_str(printable(text, keep="\n\t"), **how)


# a pipe has no width of its own: lines there are not broken at 80 columns
# no emoji: `natural:100:` is a partition, not a picture
out = SafeConsole(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 160)
err = SafeConsole(stderr=True, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """The result, and nothing else, on stdout."""
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def table_of(*words: str, numbers: Iterable[str] = (), **how: Any) -> Table:
    """An empty table: columns of words, then columns of numbers; `how` is rich's."""
    table = Table(*words, box=box.SIMPLE_HEAD, **how)
    for column in numbers:
        table.add_column(column, justify="right")
    return table


class _Aloud(logging.Handler):
    """What the library has to say in passing, as lines above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if err.is_terminal:
            err.print(record.getMessage(), markup=False, style="yellow")
        else:
            sys.stderr.write(f"fedtailor: {printable(record.getMessage())}\n")


@contextmanager
def library_aloud() -> Iterator[None]:
    """Within, what the library has to say is shown."""
    log, handler = logging.getLogger("fedtailor"), _Aloud()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


class WithBar:
    """Progress on stderr: within, a bar in a terminal; elsewhere whoever has it writes lines.

    Args:
      columns: behind the bar.
      width: of the bar.
      markup: whether what stands before it is marked up.
    """

    def __init__(self, *columns: ProgressColumn, width: int = 28, markup: bool = True) -> None:
        what = TextColumn("{task.description}", markup=markup)
        self._bar = Progress(what, BarColumn(bar_width=width), *columns, console=err)

    def __enter__(self) -> Self:
        if err.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if err.is_terminal:
            self._bar.stop()


@contextmanager
def points_shown(unit: str = "points") -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr in a terminal, elsewhere a line now and then, with the time left."""
    what, width = TextColumn("{task.description}"), BarColumn(bar_width=28)
    count = TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}")
    bar = Progress(what, width, count, TimeRemainingColumn(), console=err)
    task: Any = None
    begun = spoken = monotonic()

    def tell(what: str, done: int, every: int) -> None:
        nonlocal spoken, task
        if err.is_terminal:
            if task is None:
                bar.start()  # not before there is something to show
                task = bar.add_task(what, total=every)
            bar.update(task, completed=done)
            task = None if done == every else task  # the next run has a bar of its own
        elif monotonic() - spoken > SPEAK_EVERY:
            spoken = monotonic()
            left = about((spoken - begun) / max(done, 1) * (every - done))
            sys.stderr.write(f"{what}: {done}/{every} {unit}, {left} left\n")

    try:
        yield tell
    finally:
        if err.is_terminal:
            bar.stop()


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

    The first round of a run does not count: in it steps are prepared, which takes minutes where
    later ones take a second.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # a first round was over
        self._rounds: dict[str, int] = {}
        self._later = 0  # rounds, behind each run's first one here

    def played(self, run: str, number: int) -> None:
        """A run has come to the end of a round."""
        if self._since is None:
            self._since = self._clock()
        self._later += number - self._rounds.get(run, number)
        self._rounds[run] = number

    def round_of(self, run: str) -> int:
        """The last round that a run has come to the end of; 0 before its first."""
        return self._rounds.get(run, 0)

    def words(self, rounds: int) -> str:
        """How long some rounds will take; empty before a run's second one is played.

        Args:
          rounds: left to play, of all runs.
        """
        if self._since is None or not self._later or rounds <= 0:
            return ""
        took = (self._clock() - self._since) / self._later
        return f"{about(took * rounds)} left"
