"""Which run a worker takes next, and what became of the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..engine import Diverged
from ..errors import BadInput
from .cells import world_key
from .play import Task


class News(NamedTuple):
    """What a worker has to tell.

    Attributes:
      kind: `begins`, `round`, `done`, `failed` or `again` (its process died, it is tried again).
      job: number of the worker.
      task: the run.
      line: of its history (round).
      reason: in one line (failed, again).
    """

    kind: str
    job: int
    task: Task
    line: dict[str, Any] | None = None
    reason: str = ""


Tell = Callable[[News], None]


@dataclass
class Played:
    """What became of the runs: reasons of those that failed, and whether somebody stopped it."""

    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, BadInput | Diverged):
        return text
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return f"out of memory: use fewer --jobs or a larger machine ({text[:150]})"
    return f"{type(error).__name__}: {text[:300]}"


def _code(task: Task) -> tuple[str, str]:
    """Runs that differ in this have hardly any code in common."""
    return task.config.method, task.config.model


class Waiting:
    """Runs that wait, those of the same world together.

    Args:
      tasks: in the order of the tables.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._of: dict[str, list[Task]] = {}
        for task in tasks:
            self._of.setdefault(world_key(task.config), []).append(task)

    def __bool__(self) -> bool:
        return bool(self._of)

    def take(self, world: str = "", others: Sequence[Task] = ()) -> tuple[str, Task]:
        """The next run, best of the world that the worker has laid out already.

        And best of a method that no other worker is at: two that compile the same code at the same
        time do it twice; one after the other finds it done.

        Args:
          world: what the worker played last.
          others: runs that other workers are at.
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

    def put_back(self, task: Task) -> None:
        """A run that has to be tried again."""
        self._of.setdefault(world_key(task.config), []).insert(0, task)
