"""What people call: run, compare, resume, predict, report. Plays first, then writes the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedtailor.figures import comparison_figures
from fedtailor.figures.partition import draw_partition
from fedtailor.report import write_report
from fedtailor.results.config import make_config
from fedtailor.results.folder import COMPARISON, PARTITION, is_comparison, open_folder
from fedtailor.results.lock import lock_folder
from fedtailor.runs.compare import Announce, ComparisonPlan, open_comparison, play_comparison
from fedtailor.runs.predict import Prediction, predict
from fedtailor.runs.resume import resume_run
from fedtailor.runs.run import Runner, Watcher

__all__ = ["Prediction", "compare", "predict", "report", "resume", "run"]

Begun = Callable[[], None]


def run(
    method: str,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    watch: Watcher | None = None,
    begun: Begun | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Runs a method and returns its result, as `fedtailor run` does.

    Args:
      method: its name, or package.module:factory.
      out: folder to keep everything in; None keeps nothing.
      overwrite: replace an earlier run in that folder.
      watch: called with each line of the history.
      begun: called once before the first round, when the folder is there.
      options: the method's hyper-parameters.
      settings: any setting of `fedtailor.Config` by name.

    Raises:
      BadInput: it cannot be run so; no folder is left behind.
      Interrupted: somebody pressed Ctrl-C.

    Example:
      >>> result = run("fedavg", model="mlp", clients=5, rounds=1)
      >>> sorted(result["bytes"])
      ['down', 'up']
    """
    runner = Runner(make_config(method, settings, options or {}))
    if out is not None:  # after the data: bad input leaves no folder behind
        runner.keep_in(open_folder(Path(out), overwrite=overwrite))
    if begun:
        begun()
    result = runner.play(watch)
    if runner.folder:
        report(runner.folder)
    return result


def compare(
    *methods: str,
    seeds: int = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    announce: Announce | None = None,
    begun: Begun | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Compares methods on the same data, as `fedtailor compare` does.

    Args:
      methods: their names. Training alone is always among them.
      seeds: how many runs per method; seeds count up from `seed`.
      out: folder for runs, summary and pictures; None keeps nothing.
      overwrite: replace an earlier comparison there.
      announce: called before each run; may return what is to be called with each round.
      begun: called once before the first run, when the folder is there.
      options: hyper-parameters: `name` for all methods that have it, `method.name` for one.
      settings: any setting of `fedtailor.Config`, the same for all methods.

    Example:
      >>> summary = compare("fedavg", model="mlp", clients=5, rounds=1)
      >>> summary["methods"]
      ['local', 'fedavg']
    """
    plan = ComparisonPlan(methods, seeds, settings, options or {})
    plan.load_data()  # before the folder: bad input leaves nothing behind
    folder = open_comparison(plan, Path(out), overwrite=overwrite) if out is not None else None
    if begun:
        begun()
    return _finish_comparison(plan, folder, announce)


def _finish_comparison(
    plan: ComparisonPlan, folder: Path | None, announce: Announce | None
) -> dict[str, Any]:
    """Plays what is left of a comparison, with its pictures and its page."""
    # held as a whole: each of its runs holds only its own folder
    with lock_folder(folder) if folder else nullcontext():
        if folder:
            data = plan.load_data()
            draw_partition(
                data.partition, data.source.labels, data.source.classes, folder / PARTITION
            )
        summary = play_comparison(plan, folder, announce)
        if folder:
            comparison_figures(summary, folder)
            report(folder)
    return summary


def resume(
    folder: str | Path, *, watch: Watcher | None = None, announce: Announce | None = None
) -> dict[str, Any]:
    """Goes on with a run or comparison that was stopped; it ends as if it never had been.

    Args:
      folder: of the run or comparison.
      watch: of a run, called with each line of the history.
      announce: of a comparison, called before each run.

    Returns:
      What `run` or `compare` would have returned.

    Raises:
      BadInput: there is nothing to resume, it is not what it was, or another process is at it.
      Interrupted: somebody pressed Ctrl-C.

    Example:
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as folder:
      ...     first = run("fedavg", model="mlp", clients=5, rounds=1, out=folder)
      ...     first == resume(folder)  # nothing is left to play
      True
    """
    folder = Path(folder)
    if is_comparison(folder):
        return _finish_comparison(ComparisonPlan.from_json(folder / COMPARISON), folder, announce)
    result = resume_run(folder, watch=watch)
    report(folder)
    return result


def report(folders: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Writes one page about finished runs or comparisons and returns where it lies.

    Args:
      folders: of one or several; several are compared, if their clients are the same.
      out: the file; by default `report.html` in the first folder.

    Raises:
      BadInput: a folder holds no finished run, or the file cannot be written.
    """
    several = [folders] if isinstance(folders, str | Path) else folders
    return write_report(several, out)
