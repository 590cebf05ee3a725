"""Chooses hyper-parameters, of methods by themselves and for a comparison, and writes the page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedtailor.core.method import Method
from fedtailor.methods import Factory
from fedtailor.report.tuning import write_tuning_page
from fedtailor.results.config import Config
from fedtailor.results.folder import REPORT, TUNED
from fedtailor.results.lock import lock_folder
from fedtailor.results.objects import separate_all
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.data import RunData
from fedtailor.runs.tuning.plan import Candidate, TuningPlan, candidate_of, check_grids
from fedtailor.runs.tuning.play import AnnounceTrial, open_tuning, play_tuning
from fedtailor.runs.tuning.result import TuningResult
from fedtailor.runs.tuning.search import SearchRules, Strategy, Target


def tune(
    *methods: str | Factory | Method,
    trials: int = 20,
    search: Strategy = "random",
    prune: bool = True,
    target: Target = "mean",
    seeds: int = 1,
    over: dict[str, str] | None = None,
    side_by_side: bool = True,
    out: str | Path | None = None,
    overwrite: bool = False,
    announce: AnnounceTrial | None = None,
    begun: Callable[[], None] | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> TuningResult:
    """Chooses hyper-parameters on validation rows, as `fedtailor tune` does; no test row is read.

    Args:
      methods: as for `fedtailor.run`; each has as many trials.
      trials: how many settings of each method are tried.
      search: `random`, `grid`, or `bayes` (Optuna).
      prune: whether most settings are given up after a few rounds (successive halving).
      target: `mean` over clients, `bottom5` (the worst twentieth) or `worst` client.
      seeds: runs of each setting, whose mean counts.
      over: what is tried: `{"mu": "0.01..1:log"}`, `{"lr": "0.01,0.1"}`, `{"ditto.lam": ""}`; by
        default the learning rate and what methods declare.
      side_by_side: whether settings that differ in the learning rate alone share one program.
      out: folder to keep everything in; None keeps nothing.
      announce: called before each run; may return what is to be called with each round.
      overwrite, begun, options, settings: as for `fedtailor.compare`; what is given is not tuned.

    Example:
      >>> found = tune("fedavg", trials=2, model="linear", clients=3, rounds=1)
      >>> sorted(found.chosen("fedavg"))
      ['lr', 'options']
    """
    names, named, objects = separate_all(methods, settings)
    rules = SearchRules(trials, search, prune, target, seeds)
    plan = TuningPlan(names, named, options or {}, over or {}, rules, objects)
    data = plan.load_data()  # before the folder: bad input leaves nothing behind
    with TemporaryDirectory() if out is None else nullcontext(out) as place:
        folder = open_tuning(plan, data, Path(place), overwrite=overwrite)
        if begun:
            begun()
        found = finish_tuning(plan, data, folder, announce, side_by_side)
    return TuningResult(found, None if out is None else folder)


def finish_tuning(
    plan: TuningPlan,
    data: RunData,
    folder: Path,
    announce: AnnounceTrial | None,
    side_by_side: bool = True,
) -> dict[str, Any]:
    """Plays what is left of a search, with its page."""
    with lock_folder(folder):
        found = play_tuning(
            plan.candidates, plan.rules, data, folder, announce, side_by_side=side_by_side
        )
        write_tuning_page(found, folder / REPORT)
    return found


def compared_candidates(plan: ComparisonPlan, split: int | None = None) -> dict[str, Candidate]:
    """The methods of a comparison of which something is left to tune, on a split of the rows.

    Raises:
      BadInput: they cannot be tuned so.
    """
    first: dict[str, Config] = {}
    for (method, _), config in plan.configs.items():
        if split in (None, config.split_seed):
            first.setdefault(method, config)
    every = {m: candidate_of(first[m], plan.given, may_be_empty=True) for m in plan.methods}
    candidates = {method: one for method, one in every.items() if one.space}
    check_grids(candidates, SearchRules(plan.tune, plan.search))
    return candidates


def tune_comparison(
    plan: ComparisonPlan,
    folder: Path | None,
    announce: AnnounceTrial | None = None,
    side_by_side: bool = True,
) -> None:
    """Gives every method of a comparison as many trials, and the plan what was chosen.

    Each split of the rows has a search of its own, on its own validation rows: what is a test row
    in one split may be a validation row in another.

    Args:
      plan: of the comparison, with its data loaded.
      folder: of the comparison; None keeps nothing.
      announce: called before each run of a trial.
      side_by_side: whether runs share one program where they can.
    """
    rules = SearchRules(plan.tune, plan.search)
    for split in sorted({config.split_seed for config in plan.configs.values()}):
        candidates = compared_candidates(plan, split)
        if not candidates:
            continue
        with TemporaryDirectory() if folder is None else nullcontext(folder) as place:
            at = Path(place) / TUNED / f"split{split}"
            at.mkdir(parents=True, exist_ok=True)
            data = plan.load_data(split)
            found = play_tuning(candidates, rules, data, at, announce, side_by_side=side_by_side)
            write_tuning_page(found, at / REPORT)
        for method, candidate in candidates.items():
            told = found["methods"][method]
            plan.choose(method, split, candidate.with_setting(told["chosen"]), told)
