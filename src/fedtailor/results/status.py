"""How far a run is, also while it goes on; and why it could not, if it could not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.core.inputs.files import write_json
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.engine import Diverged
from fedtailor.engine.memory import is_out_of_memory
from fedtailor.results.folder import BEGUN, FAILED, HISTORY, is_finished, read_note, resume_command
from fedtailor.results.lock import LOCK, is_held

PATIENCE, PATIENCE_ROUNDS = 120.0, 10  # seconds and rounds without news before it is doubted


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, BadInput | Diverged):
        return text
    if is_out_of_memory(error):
        return f"out of memory: use fewer --jobs or a larger machine ({text[:150]})"
    return f"{type(error).__name__}: {text[:300]}"


@contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Writes down what ends a run in a folder; an earlier note goes, since it is tried again."""
    note = folder / FAILED
    note.unlink(missing_ok=True)
    try:
        yield
    except Interrupted:
        raise  # it can go on
    except Exception as error:
        kept = {"reason": reason_of(error), "kind": type(error).__name__, "version": __version__}
        with suppress(OSError):  # a full disk may be what ended it
            write_json(note, kept)
        raise


def failure(folder: Path) -> dict[str, Any]:
    """`reason`, `kind` (of error) and `version` of a run that could not go on; empty for others."""
    found = read_note(folder / FAILED)
    whole = isinstance(found.get("reason"), str)
    return found if whole and not is_finished(folder) else {}


@dataclass(frozen=True)
class RunStatus:
    """How far a run is."""

    name: str  # of its folder
    round: int  # the last one that was played
    rounds: int  # how many there will be; 0 if it has not begun
    finished: bool  # whether its results are there
    # seconds without news, if these are many and nothing else tells whether it goes on
    silent: float = 0.0
    failed: str = ""  # why it cannot go on; empty if it can
    stopped: str = ""  # what goes on with it, if it is known that nobody plays it; else empty

    @property
    def words(self) -> str:
        """The same for people, e.g. "round 12 of 30, running"."""
        if self.finished:
            return "finished"
        if not self.rounds:
            return "not begun"
        if self.failed:
            return f"failed in round {self.round + 1} of {self.rounds}: {self.failed}"
        if self.stopped:
            how = f"stopped: {self.stopped} goes on with it"
            return f"round {self.round} of {self.rounds}, {how}"
        minutes = self.silent / 60
        told = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
        how = f"no news for {told}: was it stopped?" if self.silent else "running"
        return f"round {self.round} of {self.rounds}, {how}"


def _last_line(folder: Path) -> dict[str, Any]:
    """The last whole line of a history; empty before the first round."""
    try:
        whole = (folder / HISTORY).read_bytes().rpartition(b"\n")[0]
        found = parse_json(whole.rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _silence(folder: Path, seconds_per_round: float) -> float:
    """Seconds since a run last wrote something, if a running one would have done so by now."""
    for name in (HISTORY, BEGUN):
        try:
            age = time.time() - (folder / name).stat().st_mtime
        except OSError:
            continue
        return age if age > PATIENCE + PATIENCE_ROUNDS * seconds_per_round else 0.0
    return 0.0


def _is_played(folder: Path, begun: dict[str, Any]) -> bool | None:
    """Whether a process plays a run that has begun; None if only its silence can tell."""
    # runs from before the digest was kept may be played without a lock
    locks = "rows_digest" in begun or (folder / LOCK).exists()
    return is_held(folder) if locks else None


def run_status(folder: Path, resumed_by: str = "") -> RunStatus:
    """How far the run in a folder is; a folder that is not there yet has not begun.

    Args:
      folder: of the run.
      resumed_by: the command that would go on with it; by default `fedtailor resume`.
    """
    begun = read_note(folder / BEGUN)
    played = _is_played(folder, begun)  # before its results: they are there when it is let go
    planned, last = begun.get("rounds"), _last_line(folder)
    number, seconds = last.get("round"), last.get("seconds")
    done = number if isinstance(number, int) else 0
    pace = seconds / done if done and isinstance(seconds, (int, float)) else 0.0
    return RunStatus(
        folder.name,
        done,
        planned if isinstance(planned, int) else 0,
        is_finished(folder),
        0.0 if played else _silence(folder, pace),
        failure(folder).get("reason", ""),
        (resumed_by or resume_command(folder)) if played is False else "",
    )
