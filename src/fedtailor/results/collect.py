"""Finds runs and reads what they kept; runs that differ in the seed alone go together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.core.options import in_short
from fedtailor.results import folder as files
from fedtailor.results.config import MERE_PLACE, TUNABLE, read_config, settings
from fedtailor.results.confusion import read_confusion
from fedtailor.results.lock import is_held
from fedtailor.results.status import failure

# runs that differ in these settings alone are the same: data are compared by what is in them
NOT_TOLD = MERE_PLACE | {"seed", "split_seed", "data", "keep_path"}


def network_in_words(result: Mapping[str, Any]) -> str:
    """A run's network and its size; where clients have several, who has which.

    Example:
      >>> network_in_words({"model": "mlp", "parameters": 15010})
      'mlp (15,010 parameters)'
      >>> network_in_words({"model": "cnn", "networks": {"a": "mlp", "b": "mlp", "c": "linear"}})
      'mlp (2 clients), linear (1 client), in common cnn'
    """
    counts = Counter((result.get("networks") or {}).values())
    model = result.get("model", "?")
    if not counts:
        return f"{model} ({result.get('parameters', 0):,} parameters)"
    common = "" if model in counts else f", in common {model}"
    return ", ".join(f"{name} ({counted(n, 'client')})" for name, n in counts.items()) + common


@dataclass
class FinishedRun:
    """One run as its folder has it."""

    folder: Path  # where it lies
    result: dict[str, Any]  # `result.json`; of a run that still goes on, what it has come to so far
    history: list[files.Line]  # its evaluated rounds, with bytes summed up to each
    clients: dict[str, dict[str, str]]  # rows of `clients.csv` by client


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
class CollectedRuns:
    """All that a page is made of."""

    contenders: list[Contender]  # the methods, in the order in which they were run
    clients: list[str]  # names, the same for all runs
    # names of runs that were left out since they are not finished, with reasons
    unfinished: list[str]
    # what is to be said of runs that are shown although they still go on
    running: list[str] = field(default_factory=list)
    # methods of comparisons that have not been run with all seeds, and with which not
    not_begun: list[str] = field(default_factory=list)
    # folders of which something is left to play that nobody plays
    resumable: list[Path] = field(default_factory=list)


def read_finished_run(folder: Path) -> FinishedRun:
    """A finished run.

    Raises:
      BadInput: a file is missing or broken.
    """
    result = files.read_result(folder)
    return FinishedRun(folder, result, files.read_history(folder), files.read_clients(folder))


def _cut(run: FinishedRun) -> Any:
    """Which cut into train, val and test it has; another one is another repeat."""
    return run.result.get("split_seed", 0)


def _same_clients(first: FinishedRun, other: FinishedRun) -> bool:
    """Whether both have the same clients with as many rows each."""
    parts = ("train", "val", "test")
    whole = _cut(first) != _cut(other)  # cut anew: a client's parts may differ by a row
    rows = [
        [
            (name, sum(int(row[p]) for p in parts) if whole else [row[p] for p in parts])
            for name, row in run.clients.items()
        ]
        for run in (first, other)
    ]
    return first.result.get("data") == other.result.get("data") and rows[0] == rows[1]


def _same_rows(first: FinishedRun, other: FinishedRun) -> bool:
    """Whether both have the same rows at the same clients, as far as that is known.

    Runs from before the digest was kept are compared by how many rows of each class a client has.
    """
    kind = "rows_digest" if _cut(first) == _cut(other) else "owners_digest"
    digests = [run.result.get(kind) for run in (first, other)]
    if None not in digests:
        return digests[0] == digests[1]
    counts = [read_confusion(run.folder).get("class_counts") for run in (first, other)]
    if counts[0] is None or counts[1] is None:
        return True
    return counts[0].tolist() == counts[1].tolist()


def _variant(run: FinishedRun) -> tuple[str, str]:
    """The method, and all settings by which its result may differ, as JSON."""
    path = run.folder / files.CONFIG
    # an older version's file lacks settings that were added since: these have their defaults
    default = {name: option.default for name, (option, _) in settings().items()}
    chosen = default | (read_config(path)[1] if path.exists() else {})
    told = {k: v for k, v in chosen.items() if k not in NOT_TOLD}
    told |= {k: run.result.get(k) for k in ("model", "rounds", "participation")}
    told |= run.result.get("options", {})
    if files.read_note(run.folder.parent.parent / files.COMPARISON).get("tune"):
        # each split has what was chosen on its own validation rows: that is the method, tuned
        options = run.result.get("options", {})
        told = {k: v for k, v in told.items() if k not in (*TUNABLE, *options)}
    return str(run.result["method"]), json.dumps(told, sort_keys=True, default=str)


def variant_labels(variants: Sequence[tuple[str, str, str]]) -> list[str]:
    """A label of its own for each variant of a method.

    Args:
      variants: (method, options as JSON, folder's name), each pair of the first two but once,
        unless the same thing was run twice.

    Example:
      >>> variant_labels([("fedavg", "{}", "a"), ("fedala", '{"p": 1}', "b"),
      ...                 ("fedala", '{"p": 2}', "c")])
      ['fedavg', 'fedala p=1', 'fedala p=2']
    """
    labels = []
    for method, options, folder in variants:
        same = [json.loads(o) for m, o, _ in variants if m == method]
        mine = json.loads(options)
        telling = [k for k in mine if any(other.get(k) != mine[k] for other in same)]
        label = " ".join([method, *(f"{k}={in_short(mine[k])}" for k in telling)])
        twin = sum((m, o) == (method, options) for m, o, _ in variants) > 1
        labels.append(f"{label} ({folder})" if twin else label)
    seen: dict[str, int] = {}
    for number, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[number] = f"{label} #{seen[label]}"
    return labels


def group_seeds(runs: Sequence[FinishedRun]) -> list[Contender]:
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
    # a yardstick that is a known method with another network is no variant of that method
    named = [_yardstick(there[0]) for there in members]
    labels = iter(variant_labels([key for key, name in zip(keys, named, strict=True) if not name]))
    return [
        Contender(
            name or next(labels),
            name or key[0],
            sorted(there, key=lambda r: int(r.result["seed"])),
        )
        for name, key, there in zip(named, keys, members, strict=True)
    ]


def yardstick_of(run: Path, seed: int) -> str:
    """Which of a comparison's yardsticks a run's folder is; empty if it is none."""
    place = run.parent.parent
    return next((y for y in files.YARDSTICKS if run == files.run_folder(place, y, seed)), "")


def _yardstick(run: FinishedRun) -> str:
    """The name of a comparison's yardstick that is a known method with another network."""
    found = yardstick_of(run.folder, run.result["seed"])
    return found if found == files.LINEAR else ""


def _planned(folder: Path) -> tuple[list[str], range]:
    """The same as far as it is there: a report is of what was run, planned or not."""
    try:
        return files.read_planned(folder)
    except BadInput:
        return [], range(0)


def _not_begun(folder: Path) -> list[str]:
    """Methods of a comparison with runs that are not there.

    E.g. "ditto (2 seeds)" for all of its seeds or "ditto (seed 1)" for some.
    """
    methods, seeds = _planned(folder)
    told = []
    for method in methods:
        missing = [str(s) for s in seeds if not files.is_run(files.run_folder(folder, method, s))]
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
        left = missing or not all(files.is_finished(place) for place in files.run_folders(folder))
        if left and not is_held(folder):
            resumable.append(folder)
    return told, resumable


def places_of(folders: Sequence[Path]) -> list[Path]:
    """The runs' folders that some folders stand for, each but once."""
    return list({p.resolve(): p for folder in folders for p in files.run_folders(folder)}.values())


def group_runs(folders: Sequence[Path], runs: Sequence[FinishedRun]) -> list[Contender]:
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
    order = [files.ALONE, *(m for folder in folders for m in _planned(folder)[0])]
    ranks = {method: rank for rank, method in reversed(list(enumerate(order)))}
    rank = lambda run: ranks.get(_yardstick(run) or run.result["method"], len(order))
    return group_seeds(sorted(runs, key=rank))


def _why(folder: Path) -> str:
    """Why a run is not finished, if that is known, behind its name."""
    reason = failure(folder).get("reason", "")
    return f" (failed: {reason})" if reason else ""


def collect(folders: Sequence[Path]) -> CollectedRuns:
    """Reads everything that lies in some folders.

    Args:
      folders: of runs or comparisons.

    Raises:
      BadInput: a folder holds no finished run, or runs with other clients than the first.
    """
    places = places_of(folders)
    finished = [p for p in places if files.is_finished(p)]
    left_out = [f"{p.name}{_why(p)}" for p in places if p not in finished]
    if not finished:
        raise BadInput(
            f"'{folders[0]}' is not finished: go on with {files.resume_command(folders[0])}"
        )
    contenders = group_runs(folders, [read_finished_run(place) for place in finished])
    clients = list(contenders[0].first.result["per_client"])
    return CollectedRuns(contenders, clients, left_out, [], *left_to_play(folders))


# --- runs that still go on ---


def run_so_far(folder: Path) -> FinishedRun | None:
    """A run up to its last evaluated round; None before there is one.

    Raises:
      BadInput: a file is broken.
    """
    if files.is_finished(folder):
        return read_finished_run(folder)
    begun = files.read_note(folder / files.BEGUN)
    if not begun or not (folder / files.HISTORY).exists():
        return None
    history = files.read_history(folder, growing=True)
    clients = files.read_clients(folder)
    if not history:
        return None
    last = history[-1]
    cost = last["cost"]
    each = last.get("pre_per_client") or [None] * len(clients)
    if len(each) != len(clients):
        raise BadInput(f"'{folder / files.CLIENTS}' does not fit the history beside it: run again")
    result = (
        {"metric": "accuracy", "task": "classification"}
        | begun
        | {
            "accuracy": last["pre"],
            "score": last["pre"],
            "per_client": dict(zip(clients, each, strict=True)),
            "reached": last["round"],
            "bytes": {"up": cost["up"], "down": cost["down"]},
            "seconds": last.get("seconds", 0.0),
            "train_seconds": round(cost["train_seconds"], 3),
            "epsilon": last.get("epsilon"),
        }
    )
    return FinishedRun(folder, result, history, clients)


def _without_halves(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Runs of one method whose seeds can be averaged: half ones only where none is finished."""
    kept = []
    for contender in group_seeds(runs):
        whole = [run for run in contender.runs if "reached" not in run.result]
        kept += whole or contender.runs[:1]
    return kept


def collect_so_far(folders: Sequence[Path]) -> CollectedRuns | None:
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
    contenders = group_runs(folders, runs)
    shown = {run.folder for run in runs}
    going = [
        f"{contender.label} is at round {run.result['reached']} of {run.result['rounds']}"
        for contender in contenders
        for run in contender.runs
        if "reached" in run.result
    ]
    left_out = [place.name for place in places if place not in shown]
    clients = list(contenders[0].first.result["per_client"])
    return CollectedRuns(contenders, clients, left_out, going, *left_to_play(folders))
