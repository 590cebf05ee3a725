"""What people call: run, sweep, tune, compare, resume, predict, metrics, audit, report, simulate.

Plays, then writes pages.

Everything that a run needs is a name or an object: a method by its name, as a factory or as a
`Method`; data by name, by path, or as rows in memory; a network by name, as an `nn.Module` or as
what makes one. The command line calls the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from fedtailor.analysis.audit.audited import audit
from fedtailor.analysis.tuning import compared_candidates, finish_tuning, tune, tune_comparison
from fedtailor.core.errors import unknown
from fedtailor.core.method import Method
from fedtailor.figures import comparison_figures
from fedtailor.figures.partition import draw_partition
from fedtailor.methods import Factory
from fedtailor.report import write_report
from fedtailor.results.config import make_config
from fedtailor.results.folder import (
    COMPARISON,
    PARTITION,
    REPORT,
    RUNS,
    SWEEP,
    TUNING,
    is_comparison,
    is_finished,
    is_sweep,
    is_tuning,
    open_folder,
    read_history,
)
from fedtailor.results.lock import lock_folder
from fedtailor.results.objects import AGAIN, Objects, separate, separate_all
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.comparison.play import Announce, open_comparison, play_comparison
from fedtailor.runs.predict import Prediction, predict
from fedtailor.runs.resume import resume_run
from fedtailor.runs.returned import (
    ComparisonResult,
    MetricsResult,
    RunResult,
    SimulatedRound,
    SweepResult,
    metrics,
    simulate,
)
from fedtailor.runs.run import Runner, Watcher
from fedtailor.runs.several.sweep import AnnounceRun, SweepPlan, open_sweep, play_sweep
from fedtailor.runs.stopwatch import Stopwatch
from fedtailor.runs.tuning.plan import TuningPlan
from fedtailor.runs.tuning.play import AnnounceTrial
from fedtailor.runs.tuning.result import TuningResult
from fedtailor.runs.tuning.search import Strategy

__all__ = [
    "ComparisonResult",
    "MetricsResult",
    "Prediction",
    "RunResult",
    "SimulatedRound",
    "SweepResult",
    "TuningResult",
    "audit",
    "compare",
    "metrics",
    "predict",
    "report",
    "resume",
    "run",
    "simulate",
    "sweep",
    "tune",
]

MethodLike: TypeAlias = str | Factory | Method
Begun = Callable[[], None]


def run(
    method: MethodLike,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    watch: Watcher | None = None,
    begun: Begun | None = None,
    stopwatch: Stopwatch | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> RunResult:
    """Runs a method and returns its result, as `fedtailor run` does.

    Args:
      method: its name, package.module:factory, a factory, or a `Method`.
      out: folder to keep everything in; None keeps nothing.
      overwrite: replace an earlier run in that folder.
      watch: called with each line of the history.
      begun: called once before the first round, when the folder is there.
      stopwatch: counts the run's seconds by phase, beside what it has counted before.
      options: the method's hyper-parameters.
      settings: any setting of `fedtailor.Config` by name. These may be objects:
        `data`: a DataFrame (with `label`, `client_column`), a mapping client -> (x, y) arrays, or
        client -> torch Dataset; `model`: an `nn.Module`, whose weights everybody starts from, or
        what makes one; `partition`: a function (source, clients, seed) -> rows of each client;
        `schedule`: a function (round, rounds) -> factor on the learning rate; `loss`: a function
        (outputs, labels) -> loss of each row; `metrics`: functions (outputs, labels) -> number, by
        name.

    Raises:
      BadInput: it cannot be run so; no folder is left behind.
      Interrupted: somebody pressed Ctrl-C.

    Example:
      >>> result = run("fedavg", model="mlp", clients=5, rounds=1)
      >>> sorted(result["bytes"]), [line["round"] for line in result.history]
      (['down', 'up'], [1])
      >>> type(result.model("client-3")).__name__
      'Sequential'
    """
    name, named, objects = separate(method, settings)
    config = make_config(name, named, options or {}, objects)
    runner = Runner(config, stopwatch=stopwatch, kept=out is not None)
    if out is not None:  # after the data: bad input leaves no folder behind
        runner.keep_in(open_folder(Path(out), overwrite=overwrite))
    if begun:
        begun()
    with _reported(runner.folder, runner.stopwatch):
        result = runner.play(watch)
    if runner.folder:
        runner.finish(result)  # once more: with the page's time
    kept = None if runner.folder else runner
    return RunResult(result, runner.progress.history, report, runner.folder, kept, objects)


@contextmanager
def _reported(folder: Path | None, stopwatch: Stopwatch | None = None) -> Iterator[None]:
    """The page of a run that ends within, also if somebody pressed Ctrl-C in its last round."""
    try:
        yield
    finally:
        if folder and is_finished(folder):
            with (stopwatch or Stopwatch()).phase("report"):
                report(folder)


def sweep(
    method: MethodLike,
    *,
    seeds: int = 1,
    lr: Sequence[float | str] = (),
    side_by_side: bool = True,
    out: str | Path | None = None,
    overwrite: bool = False,
    announce: AnnounceRun | None = None,
    begun: Begun | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> SweepResult:
    """Runs a method with several seeds and learning rates, as `fedtailor run --seeds 5` does.

    Args:
      method: as for `run`.
      seeds: how many runs of each learning rate; seeds count up from `seed`.
      lr: learning rates; none takes the usual one.
      side_by_side: whether runs share one program where they can; each ends as if it were alone.
      out: folder for all runs, each in a folder of its own; None keeps nothing.
      announce: called when a run begins; may return what is to be called with each round.
      overwrite, begun, options, settings: as for `run`.

    Example:
      >>> sorted(sweep("fedavg", lr=[0.05, 0.1], model="mlp", clients=3, rounds=1).runs)
      ['fedavg-lr0.05-seed0', 'fedavg-lr0.1-seed0']
    """
    name, named, objects = separate(method, settings)
    plan = SweepPlan(name, seeds, lr, named, options or {}, objects)
    folder = open_sweep(plan, Path(out), overwrite=overwrite) if out is not None else None
    if begun:
        begun()
    return _finish_sweep(plan, folder, announce, side_by_side)


def _finish_sweep(
    plan: SweepPlan, folder: Path | None, announce: AnnounceRun | None, side_by_side: bool = True
) -> SweepResult:
    """Plays what is left of a sweep, with the page of each run."""
    with lock_folder(folder) if folder else nullcontext():
        summary, ends = play_sweep(plan, folder, announce, side_by_side=side_by_side)
        runs = {}
        for name, end in ends.items():
            if end.error is None:
                place, kept = (folder / RUNS / name, None) if folder else (None, end.runner)
                runs[name] = RunResult(end.result, end.history, report, place, kept, plan.objects)
                if place and not (place / REPORT).exists():
                    report(place)
    return SweepResult(summary, runs, folder)


def compare(
    *methods: MethodLike,
    seeds: int = 1,
    repeats: int = 1,
    margin: float | None = None,
    yardsticks: bool = True,
    tune: int = 0,
    search: Strategy = "random",
    side_by_side: bool = True,
    out: str | Path | None = None,
    overwrite: bool = False,
    announce: Announce | None = None,
    announce_trial: AnnounceTrial | None = None,
    begun: Begun | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> ComparisonResult:
    """Compares methods on the same data, as `fedtailor compare` does.

    Args:
      methods: names, factories or methods, as for `run`. Training alone is always among them.
      seeds: how many runs per method share a split; seeds count up from `seed`.
      repeats: how often split (train, val, test) and seed are drawn anew: what makes small
        differences known.
      margin: differences up to here do not matter; None is a point, or its like.
      yardsticks: also train one model on all rows in one place, and a linear model alone.
      tune: if not 0, every method, yardsticks too, has its settings chosen among so many on
        validation rows; `search` and `announce_trial` are as for `tune`.
      side_by_side: whether a method's runs share one program where they can; see `sweep`.
      out: folder for runs, summary and pictures; None keeps nothing.
      overwrite: replace an earlier comparison there.
      announce: called before each run; may return what is to be called with each round.
      begun: called once before the first run, when the folder is there.
      options: hyper-parameters: `name` for all methods that have it, `method.name` for one.
      settings: any setting of `fedtailor.Config`, the same for all methods; some may be objects, as
        for `run`.

    Example:
      >>> summary = compare("fedavg", model="mlp", clients=5, rounds=1, yardsticks=False)
      >>> summary["methods"], summary["metric"]
      (['local', 'fedavg'], 'accuracy')
      >>> sorted(summary["decision"])[:4]
      ['answer', 'beside', 'clients', 'gain']
    """
    names, named, objects = separate_all(methods, settings)
    plan = ComparisonPlan(
        names,
        seeds,
        named,
        options or {},
        objects,
        repeats=repeats,
        margin=margin,
        yardsticks=yardsticks,
        tune=tune,
        search=search,
    )
    plan.load_data()  # before the folder: bad input leaves nothing behind
    if plan.tune:
        compared_candidates(plan)
    folder = open_comparison(plan, Path(out), overwrite=overwrite) if out is not None else None
    if begun:
        begun()
    return _finish_comparison(plan, folder, announce, side_by_side, announce_trial)


def _finish_comparison(
    plan: ComparisonPlan,
    folder: Path | None,
    announce: Announce | None,
    side_by_side: bool = True,
    announce_trial: AnnounceTrial | None = None,
) -> ComparisonResult:
    """Plays what is left of a comparison, with its pictures and its page."""
    # held as a whole: each of its runs holds only its own folder
    with lock_folder(folder) if folder else nullcontext():
        if folder:
            data = plan.load_data()
            draw_partition(
                data.partition, data.source.strata, data.source.strata_names, folder / PARTITION
            )
        if plan.tune:
            tune_comparison(plan, folder, announce_trial, side_by_side)
        summary, histories = play_comparison(plan, folder, announce, side_by_side=side_by_side)
        if folder:
            comparison_figures(summary, folder)
            report(folder)
    return ComparisonResult(summary, histories, report, folder, plan.objects)


def resume(
    folder: str | Path,
    *,
    watch: Watcher | None = None,
    announce: Announce | None = None,
    announce_run: AnnounceRun | None = None,
    announce_trial: AnnounceTrial | None = None,
    side_by_side: bool = True,
    method: MethodLike | None = None,
    methods: Sequence[MethodLike] = (),
    **objects: Any,
) -> RunResult | ComparisonResult | SweepResult | TuningResult:
    """Goes on with a run, comparison, sweep or search; it ends as if it had never been stopped.

    Args:
      folder: of the run, comparison, sweep or search.
      watch: of a run, called with each line of the history.
      announce, announce_run, announce_trial, side_by_side: of the others, as there.
      method: of a run or sweep that was given it as an object: the same again.
      methods: the same for a comparison or search.
      objects: `data`, `model`, `partition`, `schedule`, `loss`, `metrics` (with `label`,
        `client_column` for a DataFrame) that it was given as objects: the same again.

    Returns:
      What `run`, `compare`, `sweep` or `tune` would have returned.

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
    for name in objects:
        if name not in AGAIN:
            raise unknown("object of a run", name, AGAIN)
    _, _, again = separate_all(methods, objects)

    def by_name(names: Sequence[str]) -> dict[str, Objects]:
        return {name: again.get(name, again["local"]) for name in names}

    if is_tuning(folder):
        search, data = TuningPlan.again(folder / TUNING, by_name)
        found = finish_tuning(search, data, folder, announce_trial, side_by_side)
        return TuningResult(found, folder)
    if is_comparison(folder):
        plan = ComparisonPlan.from_json(folder / COMPARISON, by_name)
        return _finish_comparison(plan, folder, announce, side_by_side, announce_trial)
    shared = again["local"]
    if method is not None:
        shared = shared._replace(method=separate(method, {})[2].method)
    if is_sweep(folder):
        swept = SweepPlan.from_json(folder / SWEEP, shared)
        return _finish_sweep(swept, folder, announce_run, side_by_side)
    with _reported(folder):
        found = resume_run(folder, watch=watch, objects=shared)
    return RunResult(found, read_history(folder), report, folder, objects=shared)


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
