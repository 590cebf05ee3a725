"""Tracks the runs of a folder, one after the other; what a tool does wrong never stops a run.

Each run's folder keeps `tracking.json`: by which id the tools know it, and the last round that
they were told of, so that a resumed run goes on there and nothing is noted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.files import write_json
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.results.config import read_config
from fedtailor.results.folder import (
    CLIENTS,
    CONFIG,
    RESULT,
    TRACKING,
    Line,
    read_metric,
    read_note,
)
from fedtailor.tracking.protocol import TrackedRun, Tracker, final_values, round_values
from fedtailor.tracking.tools import TOOLS, Open, opener

_log = logging.getLogger("fedtailor")


@dataclass
class TrackingRecord:
    """What a folder keeps about tracking."""

    tools: list[str] = field(default_factory=list)  # those that the run was started with
    ids: dict[str, str] = field(default_factory=dict)  # of the run, by tool
    logged: int = 0  # the last round that was noted
    ended: bool = False  # whether the result was noted


def _read(folder: Path) -> TrackingRecord:
    """What a folder keeps; nothing if it was not tracked, or somebody broke the file."""
    try:
        found = parse_json((folder / TRACKING).read_text(encoding="utf-8"))
        ids = {str(k): str(v) for k, v in found["ids"].items()}
        tools = [str(t) for t in found["tools"] if t in TOOLS]
        return TrackingRecord(tools, ids, int(found["logged"]), bool(found["ended"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return TrackingRecord()


def _write(folder: Path, kept: TrackingRecord) -> None:
    write_json(folder / TRACKING, asdict(kept))


def read_tools(folder: Path) -> tuple[str, ...]:
    """The tools that a run or comparison was started with."""
    return tuple(_read(folder).tools)


def _tracked_run(folder: Path, home: Path) -> TrackedRun:
    method, settings, options = read_config(folder / CONFIG)
    name = f"{method}-seed{settings.get('seed', 0)}"
    told = {k: v for k, v in settings.items() if v != ""}
    return TrackedRun(name, folder, home, {"method": method} | told | options)


class Tracking:
    """Tells tools about the runs of one folder: of a run or comparison.

    `openers`, what opens a run in each tool, are by default the real ones, which must be installed.
    """

    def __init__(
        self, tools: Sequence[str], home: Path, openers: dict[str, Open] | None = None
    ) -> None:
        self._tools = list(tools)
        self._openers = dict(openers) if openers else {name: opener(name) for name in tools}
        self._home = home
        self._trackers: dict[str, Tracker] = {}
        self._folder: Path | None = None  # of the run at hand
        self._opened = False
        self._kept = TrackingRecord()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *_: Any) -> None:
        self._close()

    def remember(self) -> None:
        """Notes in the folder with which tools it is tracked, for when it is resumed."""
        kept = _read(self._home)
        kept.tools = self._tools
        _write(self._home, kept)

    def run(self, folder: Path) -> Callable[[Line, int], None]:
        """What is to be called with each line of a run's history; the run before it is closed."""
        self._close()
        self._folder, self._opened, self._kept = folder, False, TrackingRecord()
        return lambda line, rounds: self._note(folder, line)

    def _note(self, folder: Path, line: Line) -> None:
        if not self._opened:
            self._open(folder)
        number = line["round"]
        if not self._trackers or number <= self._kept.logged:
            return  # played again after an interruption, or nobody listens
        values = round_values(line, read_metric(folder))
        self._each("cannot note a round", lambda tracker: tracker.log(number, values))
        self._kept.logged = number
        _write(folder, self._kept)

    def _open(self, folder: Path) -> None:
        self._kept, self._opened = _read(folder), True
        for name in list(self._openers):
            try:
                run = _tracked_run(folder, self._home)
                known = self._kept.ids.get(name, "")
                tracker = self._openers[name](run, known, self._kept.logged)
            except Exception as error:  # a tool's troubles are of any kind
                self._drop(name, "cannot be opened", error)
                continue
            self._trackers[name] = tracker
            self._kept.ids[name] = tracker.id
        self._kept.tools = self._tools
        _write(folder, self._kept)

    def _close(self) -> None:
        """Ends the run at hand with its result, or leaves it if there is none yet."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        result, before = read_note(folder / RESULT), _read(folder)
        if result and not self._opened and before.logged and not before.ended:
            self._open(folder)  # killed between the last round and its note
        if not result:
            self._each("cannot be closed", lambda tracker: tracker.leave())
        elif self._trackers and not self._kept.ended:
            values, table = final_values(result), folder / CLIENTS
            number = result.get("stopped_early") or result["rounds"]
            self._each("cannot note the result", lambda t: t.end(number, values, table))
            self._kept.ended = True
            _write(folder, self._kept)
        self._trackers = {}

    def _each(self, failing: str, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:  # a tool's troubles are of any kind
                self._drop(name, failing, error)

    def _drop(self, name: str, failing: str, error: Exception) -> None:
        """Goes on without a tool, and says so once."""
        self._trackers.pop(name, None)
        self._openers.pop(name, None)
        told = " ".join(str(error).split()) or type(error).__name__
        _log.warning("%s %s (%s): it is left out from here on", name, failing, told)
