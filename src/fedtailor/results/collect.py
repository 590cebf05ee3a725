"""Finds runs and reads what they kept; runs that differ in the seed alone go together."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.results.config import MERE_PLACE, read_config
from fedtailor.results.confusion import read_confusion
from fedtailor.results.failures import failure
from fedtailor.results.folder import COMPARISON, run_folder
from fedtailor.results.lock import is_held
from fedtailor.results.names import variant_labels
from fedtailor.results.verdict import YARDSTICK

Line = dict[str, Any]
# runs that differ in these settings alone are the same: data are compared by what is in them
NOT_TOLD = MERE_PLACE | {"seed", "data", "keep_path"}
NEEDED = ("method", "accuracy", "per_client", "rounds", "bytes", "seconds", "seed")


@dataclass
class FinishedRun:
    """One run as its folder has it.

    Attributes:
      folder: where it lies.
      result: `result.json`; of a run that still goes on, what it has come to so far.
      history: its evaluated rounds, with bytes summed up to each.
      clients: rows of `clients.csv` by client.
    """

    folder: Path
    result: dict[str, Any]
    history: list[Line]
    clients: dict[str, dict[str, str]]


@dataclass
class Contender:
    """A method with its options: what a row of the table and a line in a chart stand for."""

    label: str
    method: str
    runs: list[FinishedRun] = field(default_factory=list)

    @property
    def first(self) -> FinishedRun:
        """The run of the first seed."""
        return self.runs[0]


@dataclass
class Collection:
    """All that a page is made of.

    Attributes:
      contenders: the methods, in the order in which they were run.
      clients: names, the same for all runs.
      unfinished: names of runs that were left out since they are not finished, with reasons.
      running: what is to be said of runs that are shown although they still go on.
      not_begun: methods of comparisons that have not been run with all seeds, and with which not.
      resumable: folders of which something is left to play that nobody plays.
    """

    contenders: list[Contender]
    clients: list[str]
    unfinished: list[str]
    running: list[str] = field(default_factory=list)
    not_begun: list[str] = field(default_factory=list)
    resumable: list[Path] = field(default_factory=list)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").exists() or (folder / "result.json").exists()


def _is_finished(folder: Path) -> bool:
    return (folder / "result.json").exists()


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs that a folder stands for: itself, or those of a comparison.

    Raises:
      BadInput: it holds no run.
    """
    if not folder.is_dir():
        raise BadInput(f"'{folder}' is no folder: name a finished run or comparison")
    if (folder / COMPARISON).exists():
        found = [f for f in sorted((folder / "runs").glob("*")) if _is_run(f)]
    else:
        found = [folder] if _is_run(folder) else []
    if not found:
        raise BadInput(f"'{folder}' holds no run: name what fedtailor run or compare wrote")
    return found


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run found.

    Raises:
      BadInput: the file is missing or broken.
    """
    path = folder / "result.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None
    if not isinstance(found, dict) or not all(k in found for k in NEEDED):
        raise BadInput(f"'{path}' is no result of fedtailor run: name a run or comparison")
    if not isinstance(found["accuracy"], dict) or not isinstance(found["per_client"], dict):
        raise BadInput(f"'{path}' is no result of fedtailor run: name a run or comparison")
    return found


def read_history(folder: Path, *, growing: bool = False) -> list[Line]:
    """The evaluated rounds, each with what all rounds up to it have cost.

    Args:
      folder: of a run.
      growing: a run still writes to it, so the last line may be half there: it is left out.

    Raises:
      BadInput: the file is missing or broken.
    """
    path = folder / "history.jsonl"
    kept: list[Line] = []
    up, down, trained = 0, 0, 0.0
    try:
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if growing and rows and not rows[-1].endswith("\n"):
            rows.pop()
        for row in rows:
            line = json.loads(row)
            up, down = up + line["bytes"]["up"], down + line["bytes"]["down"]
            trained += line.get("train_seconds", 0.0)
            if line.get("pre"):
                cost = {"up": up, "down": down, "train_seconds": trained}
                kept.append(line | {"sent": up + down, "cost": cost})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None
    return kept


def read_clients(folder: Path) -> dict[str, dict[str, str]]:
    """Rows of `clients.csv` by client."""
    path = folder / "clients.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {row["client"]: row for row in csv.DictReader(file)}
    except (OSError, KeyError, csv.Error) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None


def read_run(folder: Path) -> FinishedRun:
    """A finished run.

    Raises:
      BadInput: a file is missing or broken.
    """
    result = read_result(folder)
    return FinishedRun(folder, result, read_history(folder), read_clients(folder))


def _same_clients(first: FinishedRun, other: FinishedRun) -> bool:
    """Whether both have the same clients with as many rows each."""
    rows = [
        [(name, row["train"], row["val"], row["test"]) for name, row in run.clients.items()]
        for run in (first, other)
    ]
    return first.result.get("data") == other.result.get("data") and rows[0] == rows[1]


def _same_rows(first: FinishedRun, other: FinishedRun) -> bool:
    """Whether both have the same rows at the same clients, as far as that is known: runs from
    before the digest was kept are compared by how many rows of each class a client has."""
    digests = [run.result.get("rows_digest") for run in (first, other)]
    if None not in digests:
        return digests[0] == digests[1]
    counts = [read_confusion(run.folder).get("class_counts") for run in (first, other)]
    if counts[0] is None or counts[1] is None:
        return True
    return counts[0].tolist() == counts[1].tolist()


def _variant(run: FinishedRun) -> tuple[str, str]:
    """The method, and all settings by which its result may differ, as JSON."""
    path = run.folder / "config.toml"
    settings = read_config(path)[1] if path.exists() else {}
    told = {k: v for k, v in settings.items() if k not in NOT_TOLD}
    told |= {k: run.result.get(k) for k in ("model", "rounds", "participation")}
    told |= run.result.get("options", {})
    return str(run.result["method"]), json.dumps(told, sort_keys=True, default=str)


def group(runs: Sequence[FinishedRun]) -> list[Contender]:
    """Runs that differ in nothing but the seed become one contender."""
    keys: list[tuple[str, str, str]] = []
    members: list[list[FinishedRun]] = []
    for run in runs:
        variant, seed = _variant(run), run.result["seed"]
        for key, there in zip(keys, members, strict=True):
            if key[:2] == variant and all(r.result["seed"] != seed for r in there):
                there.append(run)
                break
        else:
            keys.append((*variant, run.folder.resolve().name))
            members.append([run])
    return [
        Contender(label, key[0], sorted(there, key=lambda r: int(r.result["seed"])))
        for label, key, there in zip(variant_labels(keys), keys, members, strict=True)
    ]


def read_planned(folder: Path) -> tuple[list[str], range]:
    """The methods of a comparison, training alone first, and its seeds.

    Raises:
      BadInput: the file is missing or broken.
    """
    path = folder / COMPARISON
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        methods = list(dict.fromkeys([YARDSTICK, *(str(m) for m in kept["methods"])]))
        first = int(kept.get("settings", {}).get("seed", 0))
        return methods, range(first, first + int(kept["seeds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"'{path}' is broken ({error}): start it anew") from None


def _planned(folder: Path) -> tuple[list[str], range]:
    """The same as far as it is there: a report is of what was run, planned or not."""
    try:
        return read_planned(folder)
    except BadInput:
        return [], range(0)


def _not_begun(folder: Path) -> list[str]:
    """Methods of a comparison with runs that are not there, e.g. "ditto (2 seeds)" for all of its
    seeds or "ditto (seed 1)" for some."""
    methods, seeds = _planned(folder)
    told = []
    for method in methods:
        missing = [str(s) for s in seeds if not _is_run(run_folder(folder, method, s))]
        if len(missing) == len(seeds) > 1:
            told.append(f"{method} ({len(missing)} seeds)")
        elif len(missing) == len(seeds) == 1:
            told.append(method)
        elif missing:
            told.append(f"{method} (seed{'s' * (len(missing) > 1)} {', '.join(missing)})")
    return told


def left_to_play(folders: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """(what has not begun, the folders of which something is left that nobody plays)."""
    told, resumable = [], []
    for folder in folders:
        missing = _not_begun(folder)
        told += missing
        left = missing or not all(_is_finished(place) for place in run_folders(folder))
        if left and not is_held(folder):
            resumable.append(folder)
    return told, resumable


def places_of(folders: Sequence[Path]) -> list[Path]:
    """The runs' folders that some folders stand for, each but once."""
    return list({p.resolve(): p for folder in folders for p in run_folders(folder)}.values())


def in_order(folders: Sequence[Path], runs: Sequence[FinishedRun]) -> list[Contender]:
    """Runs in groups, in the order in which comparisons name their methods.

    Raises:
      BadInput: a run has other data, clients or rows than the first.
    """
    for run in runs[1:]:
        if not _same_clients(runs[0], run):
            raise BadInput(
                f"'{run.folder}' has other data or clients than '{runs[0].folder}': "
                "make a report of each"
            )
    # one that kept its digest: by counts alone, two that differ could both be like an older one
    first = next((run for run in runs if "rows_digest" in run.result), runs[0])
    for run in runs:
        if not _same_rows(first, run):
            raise BadInput(
                f"the clients of '{run.folder}' have other rows than those of '{first.folder}': "
                "make a report of each, or run both with one --partition-seed"
            )
    order = [YARDSTICK, *(m for folder in folders for m in _planned(folder)[0])]
    ranks = {method: rank for rank, method in reversed(list(enumerate(order)))}
    return group(sorted(runs, key=lambda run: ranks.get(run.result["method"], len(order))))


def _why(folder: Path) -> str:
    """Why a run is not finished, if that is known, behind its name."""
    reason = failure(folder).get("reason", "")
    return f" (failed: {reason})" if reason else ""


def collect(folders: Sequence[Path]) -> Collection:
    """Reads everything that lies in some folders.

    Args:
      folders: of runs or comparisons.

    Raises:
      BadInput: a folder holds no finished run, or runs with other clients than the first.
    """
    places = places_of(folders)
    finished = [p for p in places if _is_finished(p)]
    left_out = [f"{p.name}{_why(p)}" for p in places if p not in finished]
    if not finished:
        raise BadInput(f"'{folders[0]}' is not finished: go on with fedtailor resume {folders[0]}")
    contenders = in_order(folders, [read_run(place) for place in finished])
    clients = list(contenders[0].first.result["per_client"])
    return Collection(contenders, clients, left_out, [], *left_to_play(folders))
