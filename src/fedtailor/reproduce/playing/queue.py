"""Which run a worker takes next, and what became of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from fedtailor.reproduce.playing.cells import world_key
from fedtailor.reproduce.playing.play import PlannedRun

LATER = 5.0  # seconds until a run that another process plays is looked at again


class RunEvent(NamedTuple):
    """What a worker has to tell."""

    # `begins`, `round`, `done`, `failed`, `again` (its process died or found no memory: it is tried
    # again) or `elsewhere` (another process plays it)
    kind: str
    job: int  # number of the worker
    task: PlannedRun  # the run
    line: dict[str, Any] | None = None  # of its history (round)
    reason: str = ""  # in one line (failed, again, elsewhere)


OnEvent = Callable[[RunEvent], None]


@dataclass
class PlayedRuns:
    """What became of the runs: reasons of those that failed, and whether somebody stopped it."""

    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


def _code(task: PlannedRun) -> tuple[str, str]:
    """Runs that differ in this have hardly any code in common."""
    return task.config.method, task.config.model


class RunQueue:
    """Runs that wait, those of the same world together; they come in the order of the tables."""

    def __init__(self, tasks: Sequence[PlannedRun], clock: Callable[[], float] = monotonic) -> None:
        self._of: dict[str, list[PlannedRun]] = {}
        self._later: list[tuple[float, PlannedRun]] = []
        self._clock = clock
        for task in tasks:
            self._add(task)

    def _add(self, task: PlannedRun) -> None:
        self._of.setdefault(world_key(task.config), []).append(task)

    def __bool__(self) -> bool:
        return bool(self._of or self._later)

    @property
    def ready(self) -> bool:
        """Whether there is a run to take now, not only ones that were put off."""
        now, later = self._clock(), self._later
        self._later = [(at, task) for at, task in later if at > now]
        for at, task in later:
            if at <= now:
                self._add(task)
        return bool(self._of)

    def take(self, world: str = "", others: Sequence[PlannedRun] = ()) -> tuple[str, PlannedRun]:
        """The next run, best of the world that the worker has laid out already.

        And best of a method that no other worker is at: two that compile the same code at the same
        time do it twice; one after the other finds it done.
        """
        if world not in self._of:
            busy = {world_key(task.config) for task in others}
            free = [w for w in self._of if w not in busy]
            world = free[0] if free else max(self._of, key=lambda w: len(self._of[w]))
        there, taken = self._of[world], {_code(task) for task in others}
        task = next((t for t in there if _code(t) not in taken), there[0])
        there.remove(task)
        if not self._of[world]:
            del self._of[world]
        return world, task

    def put_back(self, task: PlannedRun) -> None:
        """A run that has to be tried again."""
        self._of.setdefault(world_key(task.config), []).insert(0, task)

    def put_off(self, task: PlannedRun) -> None:
        """A run that another process plays: whether it ended well is seen later."""
        self._later.append((self._clock() + LATER, task))
