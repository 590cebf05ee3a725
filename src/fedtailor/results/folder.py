"""A run's folder and a comparison's: what lies there, how it is written and how it is read.

A file is put there wholly or not at all, and nothing of anybody else's is ever overwritten.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import PART
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.inputs.spreadsheet import csv_cells
from fedtailor.results.lock import LOCK, check_free

Line = dict[str, Any]  # of a run's history

# of a run, in the order in which they come to be
CONFIG = "config.toml"  # marks the folder as a run's
PREPROCESSING = "preprocessing.json"
FROZEN = "frozen.safetensors"  # parameters that stay as they are, by network
CLIENTS = "clients.csv"
CONFUSION = "confusion.safetensors"
BEGUN = "begun.json"  # what is known before the first round
CHECKPOINT = "checkpoint"  # a folder
LATEST = "latest.json"  # in it: names the state that is whole
HISTORY = "history.jsonl"  # a line per round
RECORDS = "records"  # a folder: what the method noted at evaluated rounds
PATH = "path"  # a folder: some clients' models at evaluated rounds
FAILED = "failed.json"  # why it could not go on
MODELS = "models"  # a folder: everybody's personal model
OUTPUTS = "outputs.safetensors"  # what models said of every test and validation row
GENERAL = "general"  # the global model: a file, or a folder where the clients' differ
RESULT = "result.json"  # written last: the run is finished
REPORT = "report.html"
LANDSCAPE, TRAJECTORY = "landscape.json", "trajectory.json"  # measured afterwards
AUDIT, AUDIT_PAGE = "audit.json", "audit.html"
TRACKING = "tracking.json"
# of a comparison
COMPARISON = "comparison.json"  # what was planned; marks the folder as a comparison's
RUNS = "runs"  # a folder: its runs, one each
# of a sweep of one method, which has runs and a summary as a comparison has
SWEEP = "sweep.json"  # what was planned; marks the folder as a sweep's
SUMMARY = "summary.json"
# of a search for hyper-parameters, which has a summary, too
TUNING = "tuning.json"  # what was asked for; marks the folder as a search's
TRIALS = "trials.jsonl"  # a line for each setting and number of rounds that it was tried for
CHOSEN = "chosen"  # a folder: the chosen settings of each method, as a configuration
TUNED = "tuned"  # a folder of a comparison: its searches, one for each split
PARTITION = "partition.png"

# what methods are measured against: training alone, one model on all rows in one place, and a
# linear model alone
ALONE, CENTRALISED, LINEAR = "local", "centralised", "linear"
YARDSTICKS = (ALONE, CENTRALISED, LINEAR)

TENSORS = ".safetensors"

_FILES = {
    CONFIG, PREPROCESSING, FROZEN, CLIENTS, CONFUSION, BEGUN, HISTORY, FAILED, OUTPUTS,
    GENERAL + TENSORS, RESULT, REPORT, LANDSCAPE, TRAJECTORY, TRACKING, COMPARISON, SWEEP, SUMMARY,
    TUNING, TRIALS,
    LOCK, AUDIT, AUDIT_PAGE, "partition.npz", "statistics.json",
    *(f"{name}.{kind}" for kind in ("png", "svg")  # pictures; accuracy: before 0.3
      for name in ("partition", "score", "accuracy", "gain_per_client", "clients")),
}  # fmt: skip
# folders that a run, its figures and its trackers write, and how the names in them end
_FOLDERS: dict[str, str | tuple[str, ...]] = {
    CHECKPOINT: (LATEST, TENSORS), RECORDS: TENSORS, PATH: TENSORS, MODELS: TENSORS,
    GENERAL: TENSORS, "figures": (".pdf", ".png", ".svg"), "client-states": "",
    "tensorboard": "", "mlruns": "", "wandb": "", CHOSEN: ".toml",
}  # fmt: skip
PROBE = ".probe"  # shows that a folder can be written to, and is gone
# how the names of half-written files end, those of versions before 0.3 without a mark
_HALF = re.compile(rf"(\.[0-9a-f]+)?{re.escape(PART)}$")
NEEDED = ("method", "accuracy", "per_client", "rounds", "bytes", "seconds", "seed")


# --- where things lie ---


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Where one run of a comparison lies."""
    return folder / RUNS / f"{method.replace(':', '.')}-seed{seed}"


def model_file(folder: Path, client: str, kind: str = MODELS) -> Path:
    """Where a client's model lies: its personal one, or the global one as it has it."""
    return folder / kind / f"{file_name(client)}{TENSORS}"


def round_file(folder: Path, kind: str, number: int) -> Path:
    """Where a run keeps what it has of one round; `kind` is RECORDS or PATH."""
    return folder / kind / f"{number:06d}{TENSORS}"


def round_files(folder: Path, kind: str) -> dict[int, Path]:
    """The same for all rounds of which there is something, in order."""
    files = sorted((folder / kind).glob(f"*{TENSORS}"))
    return {int(file.stem): file for file in files if file.stem.isdecimal()}


def is_run(folder: Path) -> bool:
    """Whether a run has begun in a folder."""
    return (folder / CONFIG).exists() or is_finished(folder)


def is_finished(folder: Path) -> bool:
    """Whether a run's result is there."""
    return (folder / RESULT).exists()


def is_comparison(folder: Path) -> bool:
    """Whether a folder is a comparison's."""
    return (folder / COMPARISON).exists()


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's."""
    return (folder / SWEEP).exists()


def is_tuning(folder: Path) -> bool:
    """Whether a folder is that of a search for hyper-parameters."""
    return (folder / TUNING).exists()


def has_checkpoint(folder: Path) -> bool:
    """Whether a run could be resumed."""
    return (folder / CHECKPOINT / LATEST).exists()


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs that a folder stands for: itself, or those of a comparison.

    Raises:
      BadInput: it holds no run.
    """
    if not folder.is_dir():
        raise BadInput(f"'{folder}' is no folder: name a finished run or comparison")
    if is_comparison(folder):
        found = [f for f in sorted((folder / RUNS).glob("*")) if is_run(f)]
    else:
        found = [folder] if is_run(folder) else []
    if not found and is_sweep(folder):
        first = next(iter(sorted((folder / RUNS).glob("*"))), folder / RUNS)
        raise BadInput(f"'{folder}' holds several runs of a sweep: name one of them, as '{first}'")
    if not found and is_tuning(folder):
        raise BadInput(f"'{folder}' holds a search, whose page is '{folder / REPORT}': name a run")
    if not found:
        raise BadInput(f"'{folder}' holds no run: name what fedtailor run or compare wrote")
    return found


# --- writing ---


def file_name(client: str) -> str:
    """A client's name as a file name of its own.

    What could lead elsewhere is replaced, and a name that had to be changed gets a mark, so that no
    two clients share a file.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", client).lstrip(".")[:80]
    if safe and safe == client:
        return safe
    return f"{safe or 'client'}-{hashlib.sha256(client.encode()).hexdigest()[:10]}"


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Makes a folder if need be; what cannot be written there is bad input, no error of ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise BadInput(
            f"folder '{folder}' cannot be written to ({error.strerror}): choose another --out"
        ) from None


def _is_ours(mark: Path) -> bool:
    """Whether a file was written by FedTailor: a stranger's config.toml is not ours to remove."""
    try:
        return "FedTailor" in mark.read_text(encoding="utf-8", errors="replace")[:2000]
    except OSError:
        return False


def others_files(folder: Path) -> list[Path]:
    """What lies in a folder of a run or comparison, and none of them wrote."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.is_file():
            known = _HALF.sub("", path.name) in (*_FILES, PROBE)
            found += [] if known and not path.is_symlink() else [path]
        elif path.name in (RUNS, TUNED):
            for run in sorted(path.iterdir()):
                found += others_files(run) if run.is_dir() else [run]
        elif path.name in _FOLDERS:
            ours = _FOLDERS[path.name]
            found += [p for p in path.iterdir() if not _HALF.sub("", p.name).endswith(ours)]
        else:
            found.append(path)
    return found


def _is_barely_begun(path: Path, marks: tuple[str, ...]) -> bool:
    """Whether all that lies there is what a process left that was killed before it set its mark."""
    before = (LOCK, PROBE, *(f"{mark}{PART}" for mark in marks))
    return all(p.is_file() and _HALF.sub(PART, p.name) in before for p in path.iterdir())


def resume_command(folder: str | Path) -> str:
    """What goes on with a run, to be copied into a shell.

    Example:
      >>> resume_command("my runs/a"), resume_command("runs/a")
      ("fedtailor resume 'my runs/a'", 'fedtailor resume runs/a')
    """
    return f"fedtailor resume {quote(str(folder))}"


def open_folder(
    path: Path,
    *,
    overwrite: bool = False,
    marks: tuple[str, ...] = (CONFIG,),
    what: str = "run",
) -> Path:
    """A folder that is there, can be written to, and holds nothing that would be lost.

    Args:
      path: of the folder.
      overwrite: remove what an earlier run left there; with anything else in it, the folder stays.
      marks: files by which an earlier run is known.
      what: is kept there; only a run can be resumed.
    """
    if path.parts[:1] == ("~",):
        raise BadInput(f"'{path}': ~ would be a folder of that name here: write the path out")
    try:
        if path.is_symlink() and not path.exists():
            raise BadInput(
                f"'{path}' is a link to '{path.readlink()}', which is not there: make that folder, "
                "or choose another --out"
            )
        if path.is_dir() and not path.is_symlink() and _is_barely_begun(path, marks):
            check_free(path)
            for left in path.iterdir():
                left.unlink()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not path.is_dir():
                raise BadInput(f"'{path}' is a file: name a folder with --out")
            known = any(_is_ours(path / mark) for mark in marks)
            if not known:
                raise BadInput(f"'{path}' is not empty and no earlier {what}: choose another --out")
            if not overwrite:
                resume = f"resume it ({resume_command(path)}), " if what == "run" else ""
                raise BadInput(
                    f"'{path}' holds an earlier {what}: {resume}choose another --out, or say "
                    "--overwrite"
                )
            if path.is_symlink():  # what is removed lies where it was named, nowhere else
                raise BadInput(
                    f"'{path}' is a link, and --overwrite removes no folder through a link: say "
                    f"--out {path.resolve()}"
                )
            check_free(path)
            if others := others_files(path):
                named = ", ".join(f"'{p.relative_to(path)}'" for p in others[:3])
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                raise BadInput(
                    f"'{path}' also holds what no {what} wrote: {named}{more}: --overwrite removes "
                    "only what FedTailor wrote; move it, or choose another --out"
                )
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / PROBE
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = error.strerror or error
        raise BadInput(
            f"folder '{path}' cannot be written to ({why}): choose another --out"
        ) from None
    return path


def free_folder(stem: str) -> Path:
    """A new folder under ./runs."""
    number = 1
    while (path := Path(RUNS) / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return path


# --- reading ---


def read_note(path: Path) -> dict[str, Any]:
    """What a run said of itself in a file; empty if it has not said it."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_metric(folder: Path) -> str:
    """The metric that a run goes by, which it says before its first round."""
    return str(read_note(folder / BEGUN).get("metric", "accuracy"))  # before 0.3: always


def read_result(folder: Path) -> dict[str, Any]:
    """What a finished run found.

    Raises:
      BadInput: the file is missing or broken.
    """
    path = folder / RESULT
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None
    if not isinstance(found, dict) or not all(k in found for k in NEEDED):
        raise BadInput(f"'{path}' is no result of fedtailor run: name a run or comparison")
    found.setdefault("score", found["accuracy"])  # before 0.3 everything went by accuracy
    found.setdefault("metric", "accuracy")
    found.setdefault("task", "classification")
    if not isinstance(found["score"], dict) or not isinstance(found["per_client"], dict):
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
    path = folder / HISTORY
    kept: list[Line] = []
    up, down, trained, simulated = 0, 0, 0.0, 0.0
    try:
        rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if growing and rows and not rows[-1].endswith("\n"):
            rows.pop()
        for row in rows:
            line = parse_json(row)
            up, down = up + line["bytes"]["up"], down + line["bytes"]["down"]
            trained += line.get("train_seconds", 0.0)
            simulated += line.get("simulated_time", 0.0)
            if line.get("pre") or line.get("post"):  # of sites maybe the latter alone
                cost = {"up": up, "down": down, "train_seconds": trained, "simulated": simulated}
                kept.append(line | {"sent": up + down, "cost": cost})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None
    return kept


def read_clients(folder: Path) -> dict[str, dict[str, str]]:
    """Rows of `clients.csv` by client."""
    path = folder / CLIENTS
    try:
        head, rows = csv_cells(path.read_bytes().decode())
        return {row[head.index("client")]: dict(zip(head, row, strict=True)) for row in rows}
    except (OSError, ValueError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): run it again") from None


def read_planned(folder: Path) -> tuple[list[str], range]:
    """The methods of a comparison, yardsticks first, and the seeds of all its runs.

    Raises:
      BadInput: the file is missing or broken.
    """
    path = folder / COMPARISON
    try:
        kept = parse_json(path.read_text(encoding="utf-8"))
        # before 0.3 the only yardstick was training alone
        played = kept.get("played", [ALONE, *kept["methods"]])
        first = int(kept.get("settings", {}).get("seed", 0))
        runs = int(kept["seeds"]) * int(kept.get("repeats", 1))
        return list(dict.fromkeys(str(m) for m in played)), range(first, first + runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"'{path}' is broken ({error}): start it anew") from None
