"""A run that was interrupted goes on where its last checkpoint left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.privacy import Spent
from fedtailor.core.version import __version__
from fedtailor.results import storage
from fedtailor.results.collect import read_result
from fedtailor.results.config import config_of
from fedtailor.results.lock import occupy
from fedtailor.results.storage import write_atomically
from fedtailor.runs.prepared import Line, Progress
from fedtailor.runs.run import Runner, Watcher


def resume_run(folder: Path, *, watch: Watcher | None = None) -> dict[str, Any]:
    """Goes on with a run where its last checkpoint left it.

    Raises:
      BadInput: there is nothing to resume, the run is not what it was, or another process is at it.
    """
    if not (folder / "config.toml").exists():
        raise BadInput(f"'{folder}' is no run: it has no config.toml")
    with occupy(folder):
        runner = restored(folder)
        if (folder / "result.json").exists():  # nothing is left to play, and time not to be added
            runner.simulation.close()
            return read_result(folder)
        return runner.play(watch)


def restored(folder: Path) -> Runner:
    """A run as its last checkpoint has it; what its history has of later rounds is removed."""
    config = config_of(folder)
    meta = storage.read_meta(folder / "checkpoint")
    if meta.get("version") != __version__:
        raise BadInput(
            f"'{folder}' was made by FedTailor {meta.get('version')}, this is {__version__}: "
            "install that version to resume it"
        )
    if meta.get("config") != config.fingerprint():
        raise BadInput(
            f"'{folder / 'config.toml'}' was changed since the run began: undo that, or start anew"
        )
    runner = Runner(config, None, folder)
    if meta.get("data") != runner.digest:
        raise BadInput(f"the data of '{folder}' have changed since the run began: start anew")
    storage.restore(folder / "checkpoint", runner.simulation)
    history = _kept_history(folder / "history.jsonl", runner.simulation.round)
    if not (folder / "result.json").exists():
        storage.remove_parts(folder)
    runner.progress = Progress(
        history,
        float(meta["seconds"]),
        int(meta["up"]),
        int(meta["down"]),
        [Spent(*spent) for spent in meta["noisy"]],
    )
    return runner


def _kept_history(path: Path, rounds: int) -> list[Line]:
    """The history up to the checkpoint; later lines, of rounds to be played again, are removed.

    Raises:
      BadInput: it lacks a round that the checkpoint has.
    """
    kept: list[Line] = []
    rows = path.read_bytes().splitlines() if path.exists() else []
    for row in rows:
        try:
            line = json.loads(row)
            number = line["round"]
        except (ValueError, KeyError, TypeError):
            break  # cut off in the middle of a write
        if number != len(kept) + 1 or number > rounds:
            break
        kept.append(line)
    if len(kept) < rounds:
        raise BadInput(
            f"'{path}' lacks round {len(kept) + 1}, but the checkpoint is at round {rounds}: put "
            "the whole file back, or start the run anew"
        )
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))
    return kept
