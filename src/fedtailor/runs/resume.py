"""A run that was interrupted goes on where its last checkpoint left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import remove_parts, write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.steps.privacy import Spent
from fedtailor.results import folder as files
from fedtailor.results.config import config_of
from fedtailor.results.lock import lock_folder
from fedtailor.results.objects import Objects
from fedtailor.results.outputs import read_outputs
from fedtailor.results.storage import (
    READABLE_VERSIONS,
    OtherState,
    read_checkpoint,
    restore_checkpoint,
)
from fedtailor.runs.data import RunData
from fedtailor.runs.prepared import Progress
from fedtailor.runs.run import Runner, Watcher


def resume_run(
    folder: Path, *, watch: Watcher | None = None, objects: Objects = Objects()
) -> dict[str, Any]:
    """Goes on with a run where its last checkpoint left it.

    Args:
      folder: of the run.
      watch: called with each line of the history.
      objects: those that the run was started with, if there were any.

    Raises:
      BadInput: there is nothing to resume, the run is not what it was, or another process is at it.
    """
    if not (folder / files.CONFIG).exists():
        raise BadInput(f"'{folder}' is no run: it has no config.toml")
    with lock_folder(folder):
        runner = restored(folder, objects)
        if files.is_finished(folder):  # nothing is left to play, and time not to be added
            runner.simulation.close()
            return files.read_result(folder)
        return runner.play(watch)


def restored(folder: Path, objects: Objects = Objects(), data: RunData | None = None) -> Runner:
    """A run as its last checkpoint has it; what its history has of later rounds is removed.

    `data` are its data, if they are there already.

    Raises:
      BadInput: it is not what it was, or another version's; its folder is left as it is.
    """
    meta = read_checkpoint(folder / files.CHECKPOINT)
    made_by = meta.get("version")
    if made_by not in READABLE_VERSIONS:
        raise BadInput(
            f"'{folder}' was made by FedTailor {made_by}, this is {__version__}: "
            "install that version to resume it"
        )
    spent = [Spent.of(row) for row in meta["noisy"]]
    config = config_of(folder, objects)
    if meta.get("config") != config.fingerprint():
        raise BadInput(
            f"'{folder / files.CONFIG}' was changed since the run began: undo that, or start anew"
        )
    runner = Runner(config, data, folder)
    runner.fingerprint = config.fingerprint()
    try:
        if meta.get("data") != runner.digest:
            raise BadInput(
                f"the data of '{folder}' have changed since the run began{_why(made_by)}"
            )
        restore_checkpoint(folder / files.CHECKPOINT, runner.simulation)
        history = _kept_history(folder / files.HISTORY, runner.simulation.round)
    except BaseException as error:
        runner.simulation.close()
        if isinstance(error, OtherState) and made_by != __version__:
            raise BadInput(
                f"'{folder}' was made by FedTailor {made_by}, which keeps other states of "
                f"'{config.method}' than {__version__}: pip install fedtailor=={made_by} to resume "
                "it, or start it anew"
            ) from None
        raise
    if not files.is_finished(folder):
        remove_parts(folder)
    runner.progress = Progress(
        history,
        float(meta["seconds"]),
        int(meta["up"]),
        int(meta["down"]),
        spent,
    )
    kept = read_outputs(folder)
    if kept is not None and kept.best is not None and kept.best.round <= runner.simulation.round:
        runner.progress.best = kept.best
    return runner


def _why(made_by: str) -> str:
    if made_by == __version__:
        return ": start anew"
    return (
        f", or FedTailor {made_by} prepared them otherwise than {__version__}: pip install "
        f"fedtailor=={made_by} to resume it, or start anew"
    )


def _kept_history(path: Path, rounds: int) -> list[files.Line]:
    """The history up to the checkpoint; later lines, of rounds to be played again, are removed.

    Raises:
      BadInput: it lacks a round that the checkpoint has.
    """
    kept: list[files.Line] = []
    rows = path.read_bytes().splitlines() if path.exists() else []
    for row in rows:
        try:
            line = parse_json(row)
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
