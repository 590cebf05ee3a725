"""What a folder holds at this moment: how far its runs are, and the page about them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fedtailor.core.errors import BadInput
from fedtailor.report.page import page_data, render_report
from fedtailor.reproduce.playing.request import REQUEST
from fedtailor.results import folder as files
from fedtailor.results.collect import collect_so_far
from fedtailor.results.lock import is_held
from fedtailor.results.status import RunStatus, run_status

TOLD = (files.BEGUN, files.HISTORY, files.RESULT, files.FAILED)
POLL = 2.0  # seconds between two questions of a browser
SHARE = 20  # the page may take a twentieth of the time from a run in the same process


def planned(folder: Path) -> list[Path]:
    """The folders of all runs that a folder stands for, also of those that are not there yet."""
    if not folder.is_dir():
        raise BadInput(f"'{folder}' is no folder: name a run or comparison")
    if files.is_sweep(folder):
        raise BadInput(f"'{folder}' is a sweep's: watch one of the runs in {folder / files.RUNS}")
    if not files.is_comparison(folder):
        if not (folder / files.CONFIG).exists():
            raise BadInput(
                f"'{folder}' holds no run: name what fedtailor run or compare writes, or an "
                "experiment of reproduce (reproduction/fedala/table2)"
            )
        return [folder]
    methods, seeds = files.read_planned(folder)
    return [files.run_folder(folder, method, seed) for seed in seeds for method in methods]


class _Runs:
    """A run or comparison."""

    def __init__(self, folder: Path) -> None:
        planned(folder)
        self._folder = folder

    def places(self) -> list[Path]:
        return planned(self._folder)

    def standings(self) -> list[RunStatus]:
        # a comparison is held as a whole: it will come to its half runs
        going = is_held(self._folder)
        found = [run_status(p, files.resume_command(self._folder)) for p in self.places()]
        return [replace(one, stopped="") for one in found] if going else found

    def page(self) -> str | None:
        if not any((place / files.CONFIG).exists() for place in self.places()):
            return None
        found = collect_so_far([self._folder])
        return None if found is None else render_report(page_data(found))


class Watchable(Protocol):
    """What can be watched."""

    def places(self) -> list[Path]:
        """The folders of its runs, also of those that are not there yet."""

    def standings(self) -> list[RunStatus]:
        """How far each of them is."""

    def page(self) -> str | None:
        """The page as it is now; None before there is anything to show."""


def _source(folder: Path) -> Watchable:
    if (folder / REQUEST).exists():
        from fedtailor.reproduce.shown.live import LiveExperiment

        return LiveExperiment(folder)
    return _Runs(folder)


def progress_line(standings: Sequence[RunStatus]) -> str:
    """How far everything is, in a line.

    Example:
      >>> done, half = RunStatus("local-seed0", 9, 9, True), RunStatus("fedala-seed0", 2, 9, False)
      >>> progress_line([done, half])
      '1 of 2 runs finished; fedala-seed0: round 2 of 9, running'
    """
    done = sum(one.finished for one in standings)
    if done == len(standings):
        return "finished"
    if len(standings) == 1:
        return standings[0].words
    going = [f"{one.name}: {one.words}" for one in standings if one.rounds and not one.finished]
    return "; ".join([f"{done} of {len(standings)} runs finished", *going])


def _trace(places: Sequence[Path]) -> str:
    """Changes whenever there is something new to show."""
    found = []
    for place in places:
        for name in TOLD:
            try:
                kept = (place / name).stat()
                found.append(f"{kept.st_mtime_ns:x}-{kept.st_size:x}")
            except OSError:
                found.append("")
        # a run may end without a word; a finished one is not shown otherwise when it is let go
        going = not files.is_finished(place) and is_held(place)
        found.append("held" if going else "")
    return ".".join(found)


class PageCache:
    """The page about a folder, made anew when something has changed, and not too often.

    Raises:
      BadInput: it holds no run, no comparison and no paper's experiment.
    """

    def __init__(self, folder: Path) -> None:
        self._source = _source(folder)
        self._lock = threading.Lock()
        self._page: str | None = None
        self._trace = ""  # what the page was made of
        self._number = 0  # of the page: a browser asks for it again when it is another one
        self._failed = ""
        self._rest_until = 0.0

    def state(self) -> dict[str, Any]:
        """What a browser asks for every two seconds."""
        standings = self._source.standings()
        self.refresh()
        return {
            "words": progress_line(standings),
            "finished": all(one.finished for one in standings) and not self._stale(),
            "page": self._number,
            "failed": self._failed,
            "runs": [{"name": one.name, "words": one.words} for one in standings],
            "poll": POLL,
        }

    def page(self) -> str | None:
        """The page; None before any run has evaluated a round."""
        return self._page

    def _stale(self) -> bool:
        trace = _trace(self._source.places())
        return not self._failed and (self._page is None or self._trace != trace)

    def refresh(self) -> None:
        """Makes the page anew if something has changed since.

        Not too soon for what the last one cost; what cannot be read leaves that as it was.
        """
        with self._lock:
            trace = _trace(self._source.places())
            fresh = self._page is not None and self._trace == trace
            if fresh or time.monotonic() < self._rest_until:
                return
            begun = time.monotonic()
            try:
                page = self._source.page()
                if page is not None:
                    self._page, self._trace = page, trace
                    self._number += 1
                self._failed = ""
            except BadInput as error:
                self._failed = str(error)
            self._rest_until = time.monotonic() + SHARE * (time.monotonic() - begun)
