"""One method with several seeds and learning rates: its runs, and what they come to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.core.options import how_many, shortened
from fedtailor.results import folder as files
from fedtailor.results.config import MOST_SEEDS, PATHS, Config, make_config
from fedtailor.results.metrics.named import METRICS, Metric
from fedtailor.results.metrics.over_clients import over_most
from fedtailor.results.numbers import diverged_runs, mean_and_std
from fedtailor.results.objects import Objects
from fedtailor.results.status import reason_of
from fedtailor.results.storage import reading_plan
from fedtailor.runs.run import Watcher
from fedtailor.runs.several.together import RunEnd, RunToPlay, play_together

# (name of the run, its folder, how many have begun, how many there are) -> what is told of rounds
AnnounceRun = Callable[[str, Path | None, int, int], Watcher | None]
LEVEL = 0.95


class SweepPlan:
    """What a sweep plays: every learning rate with every seed; the same when it is resumed.

    Args:
      method: its name.
      seeds: how many runs of each rate; seeds count up from the configured one.
      rates: learning rates; none takes the configured one.
      settings: of all runs.
      options: the method's hyper-parameters.
      objects: what those names stand for that are marks.
    """

    def __init__(
        self,
        method: str,
        seeds: int,
        rates: Sequence[Any],
        settings: dict[str, Any],
        options: dict[str, Any],
        objects: Objects = Objects(),
    ) -> None:
        seeds = how_many("seeds", seeds, MOST_SEEDS)
        if isinstance(rates, str) or not isinstance(rates, Iterable):
            raise BadInput(f"lr is {shortened(rates)}: give a list of learning rates")
        ways = [settings | {"lr": rate} for rate in rates] or [settings]
        made = [make_config(method, given, options, objects) for given in ways]
        self.rates = [config.lr for config in made]
        twice = [rate for rate in self.rates if self.rates.count(rate) > 1]
        if twice:
            raise BadInput(f"lr {twice[0]:g} is named twice: name it once")
        self.method, self.seeds, self.options, self.objects = method, seeds, options, objects
        # absolute by now, so that the sweep can be resumed from any folder
        self.settings = settings | {k: getattr(made[0], k) for k in PATHS if getattr(made[0], k)}
        self.configs: dict[tuple[float, int], Config] = {
            (config.lr, config.seed + i): replace(config, seed=config.seed + i)
            for config in made
            for i in range(seeds)
        }

    def name(self, rate: float, seed: int) -> str:
        """What a run is called, and its folder."""
        at = f"-lr{rate:g}" if len(self.rates) > 1 else ""
        return f"{self.method.replace(':', '.')}{at}-seed{seed}"

    def to_json(self) -> str:
        """For the folder, so that an interrupted sweep can go on."""
        kept = {
            "made_by": "FedTailor",
            "version": __version__,
            "method": self.method,
            "seeds": self.seeds,
            "rates": self.rates,
            "settings": {k: v for k, v in self.settings.items() if k != "lr"},
            "options": self.options,
        }
        return json.dumps(kept, indent=1)

    @staticmethod
    def from_json(path: Path, objects: Objects = Objects()) -> SweepPlan:
        """The plan that a folder was made with; `objects` are those that it was made with."""
        with reading_plan(path, "sweep") as kept:
            return SweepPlan(
                kept["method"],
                kept["seeds"],
                kept["rates"],
                kept["settings"],
                kept["options"],
                objects,
            )


def open_sweep(plan: SweepPlan, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a new sweep."""
    marks = (files.SWEEP, files.COMPARISON, files.CONFIG)
    files.open_folder(folder, overwrite=overwrite, marks=marks)
    write_atomically(folder / files.SWEEP, plan.to_json())
    return folder


def play_sweep(
    plan: SweepPlan,
    folder: Path | None,
    announce: AnnounceRun | None = None,
    *,
    side_by_side: bool = True,
) -> tuple[dict[str, Any], dict[str, RunEnd]]:
    """Plays what is left of a sweep and sums it up; a rate that diverges does not end the others.

    Returns:
      The summary, and how each run ended, by name.

    Raises:
      Interrupted: somebody pressed Ctrl-C.
      BadInput: no run came to its end.
    """
    ends: dict[tuple[float, int], RunEnd] = {}
    left: dict[tuple[float, int], RunToPlay] = {}
    begun = 0

    def begin(name: str, place: Path | None) -> Watcher | None:
        nonlocal begun
        begun += 1
        return announce(name, place, begun - 1, len(plan.configs)) if announce else None

    for run, config in plan.configs.items():
        name = plan.name(*run)
        place = folder / files.RUNS / name if folder else None
        if place and files.is_finished(place):
            ends[run] = RunEnd(files.read_result(place), files.read_history(place))
            begun += 1
        else:
            left[run] = RunToPlay(config, place, announce=partial(begin, name, place))
    played = play_together(list(left.values()), side_by_side=side_by_side, keep_going=True)
    ends |= dict(zip(left, played, strict=True))
    failed = [end.error for end in ends.values() if end.error is not None]
    if len(failed) == len(ends):
        raise failed[0]
    summary = _summarised(plan, ends)
    if folder:
        write_json(folder / files.SUMMARY, summary)
    return summary, {plan.name(*run): ends[run] for run in plan.configs}


def _summarised(plan: SweepPlan, ends: Mapping[tuple[float, int], RunEnd]) -> dict[str, Any]:
    """What the runs come to: for each rate, over its seeds."""
    some = next(end.result for end in ends.values() if end.error is None)
    metric = METRICS[some["metric"]]
    rows = [_row(plan, rate, ends, metric) for rate in plan.rates]
    known = [row for row in rows if row["val"] is not None and not row["failed"]]
    known = over_most(known, lambda row: row["valued"])
    best = max if metric.higher_is_better else min
    facts = ("data", "model", "clients", "partition", "device", "rounds", "task", "metric")
    return {
        "version": __version__,
        "method": plan.method,
        "options": some["options"],
        "seeds": sorted({seed for _, seed in plan.configs}),
        "rates": rows,
        # by validation rows: test rows choose nothing
        "chosen": best(known, key=lambda row: row["val"])["lr"] if known else None,
        "settings": {k: some[k] for k in facts},
        "metric": metric.name,
    }


def _row(
    plan: SweepPlan, rate: float, ends: Mapping[tuple[float, int], RunEnd], metric: Metric
) -> dict[str, Any]:
    """What the runs of one rate come to, over seeds."""
    runs = {run: end for run, end in ends.items() if run[0] == rate}
    done = [end.result for end in runs.values() if end.error is None]
    scores = [r["score"]["mean"] for r in done if "mean" in r["score"]]
    judged = [r["val"] for r in done if "mean" in r.get("val", {})]
    vals = [val["mean"] for val in judged]
    return {
        "lr": rate,
        "runs": [plan.name(*run) for run in runs],
        "score": mean_and_std(scores) if scores else None,
        "interval": interval_over_runs(scores, bounds=metric.bounds),
        "val": round(float(np.mean(vals)), 6) if vals else None,
        "valued": sum(val.get("clients", 0) for val in judged),  # values that are behind it
        "diverged": diverged_runs(done),
        "failed": {
            plan.name(*run): reason_of(end.error)
            for run, end in runs.items()
            if end.error is not None
        },
    }


def interval_over_runs(
    values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float] | None:
    """Between which values the mean over all seeds may lie, by Student's t; None below two runs.

    It ends where the metric does (`bounds`): no accuracy is above 100 %. It speaks for other seeds
    on the same rows: not for other rows or other clients.

    Example:
      >>> interval_over_runs([0.90, 0.92, 0.91])
      (0.885159, 0.934841)
      >>> interval_over_runs([0.99, 1.0, 0.98], bounds=(0.0, 1.0))
      (0.965159, 1.0)
    """
    if len(values) < 2:
        return None
    from scipy import stats  # late: it takes a while

    found = np.array(values, dtype=float)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(found) - 1)) * found.std(ddof=1)
    half /= math.sqrt(len(found))
    low, high = float(found.mean() - half), float(found.mean() + half)
    return round(max(low, bounds[0]), 6), round(min(high, bounds[1]), 6)
