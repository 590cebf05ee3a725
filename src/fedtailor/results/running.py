"""Runs that still go on: how far they are, and what they have come to so far.

A run writes `begun.json` (what is known before the first round) and `clients.csv` when it begins,
a line of `history.jsonl` with each round, and `result.json` at its end; or `failed.json`, if it
cannot go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.results.collect import (
    Collection,
    FinishedRun,
    group,
    in_order,
    left_to_play,
    places_of,
    read_clients,
    read_history,
    read_run,
)
from fedtailor.results.failures import failure, read_note
from fedtailor.results.lock import LOCK, is_held

BEGUN = "begun.json"
PATIENCE, PATIENCE_ROUNDS = 120.0, 10  # seconds and rounds without news before it is doubted


@dataclass(frozen=True)
class Standing:
    """How far a run is.

    Attributes:
      name: of its folder.
      round: the last one that was played.
      rounds: how many there will be; 0 if it has not begun.
      finished: whether its results are there.
      silent: seconds without news, if these are many and nothing else tells whether it goes on.
      failed: why it cannot go on; empty if it can.
      stopped: what goes on with it, if it is known that nobody plays it; else empty.
    """

    name: str
    round: int
    rounds: int
    finished: bool
    silent: float = 0.0
    failed: str = ""
    stopped: str = ""

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
        whole = (folder / "history.jsonl").read_bytes().rpartition(b"\n")[0]
        found = json.loads(whole.rpartition(b"\n")[2])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _silence(folder: Path, seconds_per_round: float) -> float:
    """Seconds since a run last wrote something, if a running one would have done so by now."""
    for name in ("history.jsonl", BEGUN):
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


def standing(folder: Path, resumed_by: str = "") -> Standing:
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
    return Standing(
        folder.name,
        done,
        planned if isinstance(planned, int) else 0,
        (folder / "result.json").exists(),
        0.0 if played else _silence(folder, pace),
        failure(folder).get("reason", ""),
        (resumed_by or f"fedtailor resume {folder}") if played is False else "",
    )


def run_so_far(folder: Path) -> FinishedRun | None:
    """A run up to its last evaluated round; None before there is one.

    Raises:
      BadInput: a file is broken.
    """
    if (folder / "result.json").exists():
        return read_run(folder)
    begun = read_note(folder / BEGUN)
    if not begun or not (folder / "history.jsonl").exists():
        return None
    history = read_history(folder, growing=True)
    clients = read_clients(folder)
    if not history:
        return None
    last = history[-1]
    cost = last["cost"]
    each = last.get("pre_per_client") or [None] * len(clients)
    if len(each) != len(clients):
        raise BadInput(f"'{folder / 'clients.csv'}' does not fit the history beside it: run again")
    result = begun | {
        "accuracy": last["pre"],
        "per_client": dict(zip(clients, each, strict=True)),
        "reached": last["round"],
        "bytes": {"up": cost["up"], "down": cost["down"]},
        "seconds": last.get("seconds", 0.0),
        "train_seconds": round(cost["train_seconds"], 3),
        "epsilon": last.get("epsilon"),
    }
    return FinishedRun(folder, result, history, clients)


def _without_halves(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Runs of one method whose seeds can be averaged: half ones only where none is finished."""
    kept = []
    for contender in group(runs):
        whole = [run for run in contender.runs if "reached" not in run.result]
        kept += whole or contender.runs[:1]
    return kept


def collect_so_far(folders: Sequence[Path]) -> Collection | None:
    """Reads what lies in some folders, also of runs that still go on.

    Args:
      folders: of runs or comparisons.

    Returns:
      None before any run has evaluated a round.

    Raises:
      BadInput: a folder holds no run, or runs with other clients than the first.
    """
    places = places_of(folders)
    found = {place: run_so_far(place) for place in places}
    runs = _without_halves([run for run in found.values() if run is not None])
    if not runs:
        return None
    contenders = in_order(folders, runs)
    shown = {run.folder for run in runs}
    going = [
        f"{contender.label} is at round {run.result['reached']} of {run.result['rounds']}"
        for contender in contenders
        for run in contender.runs
        if "reached" in run.result
    ]
    left_out = [place.name for place in places if place not in shown]
    clients = list(contenders[0].first.result["per_client"])
    return Collection(contenders, clients, left_out, going, *left_to_play(folders))
