"""One run of a reproduction: begun, gone on with, or already there."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.engine import Diverged
from fedtailor.reproduce.playing.cells import run_key, world_key
from fedtailor.results.config import Config
from fedtailor.results.folder import (
    CHECKPOINT,
    GENERAL,
    MODELS,
    RUNS,
    TENSORS,
    file_name,
    has_checkpoint,
    is_finished,
)
from fedtailor.results.lock import LOCK, lock_folder
from fedtailor.results.status import failure
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.resume import restored
from fedtailor.runs.run import Runner, Watcher, play_config

HEAVY = (MODELS, CHECKPOINT, GENERAL)  # hundreds of runs would fill any disk
WORLDS = 2  # in memory at a time


@dataclass(frozen=True)
class PlannedRun:
    """A run and where it lies."""

    key: str  # names the run
    config: Config  # what is run
    folder: Path  # of its own
    label: str  # what people are told
    keep: bool = False  # whether models and checkpoint stay when it is finished
    needs_models: bool = False  # a picture looks at them: without them it is not finished

    @property
    def finished(self) -> bool:
        """Its result is written last."""
        there = is_finished(self.folder)
        return there and (not self.needs_models or (self.folder / MODELS).exists())

    @property
    def diverged(self) -> str:
        """Why it would be no use to play it again with this version; empty where it may be."""
        found = failure(self.folder)
        same = found.get("kind") == Diverged.__name__ and found.get("version") == __version__
        return str(found["reason"]) if same else ""


def plan_run(
    config: Config, out: Path, label: str, keep: bool = False, needs_models: bool = False
) -> PlannedRun:
    """A run with its folder: equal runs have the same."""
    key = run_key(config)
    name = file_name(f"{config.method.replace('+', '_')}-seed{config.seed}-{key}")
    return PlannedRun(key, config, out / RUNS / name, label, keep or needs_models, needs_models)


class DataCache:
    """Data laid out by client, kept for the next run that has the same."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, RunData] = OrderedDict()

    def of(self, config: Config) -> RunData:
        """The world of a run."""
        key = world_key(config)
        if key not in self._kept:
            while len(self._kept) >= WORLDS:
                self._kept.popitem(last=False)
            self._kept[key] = load_run_data(config)
        self._kept.move_to_end(key)
        return self._kept[key]


def remove_heavy_files(task: PlannedRun) -> None:
    """Removes what no table or report needs."""
    if not task.keep:
        # states on disk are in folders called tmp...: a process that was killed leaves them
        for heavy in (*(task.folder / name for name in HEAVY), *task.folder.glob("tmp*/")):
            shutil.rmtree(heavy, ignore_errors=True)
        (task.folder / f"{GENERAL}{TENSORS}").unlink(missing_ok=True)


def _half_done(task: PlannedRun) -> Runner | None:
    """A run as its checkpoint has it; None where there is none that can still be used."""
    if not has_checkpoint(task.folder):
        return None
    try:  # the playing is left out: what is wrong then does not speak against the checkpoint
        return restored(task.folder)
    except BadInput:  # of another version, or of data that have changed: not the same run
        return None


def _clear(folder: Path) -> None:
    """Removes what an earlier try left."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def play(task: PlannedRun, worlds: DataCache, watch: Watcher | None = None) -> None:
    """Plays what is left of a run.

    Raises:
      BadInput: it cannot be run so.
      FolderLocked: another process plays it.
      Diverged: a client's training did.
      Interrupted: somebody pressed Ctrl-C.
    """
    with lock_folder(task.folder):
        if task.finished:  # by another process, meanwhile: what it keeps is its own affair
            return
        half = _half_done(task)
        try:
            if half:
                half.play(watch)
            else:
                world = worlds.of(task.config)  # before anything is lost: it may be bad input
                _clear(task.folder)
                play_config(task.config, task.folder, data=world, watch=watch)
        except (Diverged, Interrupted) as error:
            # a run that is interrupted in its last round is finished all the same
            if isinstance(error, Diverged) or task.finished:
                remove_heavy_files(task)
            raise
        remove_heavy_files(task)
