"""What the runs of an experiment come to, cell by cell, beside what the paper has."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used

from fedtailor.core import __version__
from fedtailor.reproduce.declared.measures import (
    History,
    Result,
    Value,
    measure_of,
    result_and_history,
    rounds_played,
)
from fedtailor.reproduce.declared.published import Published
from fedtailor.reproduce.playing.cells import ELSEWHERE, Cell, declared_rounds
from fedtailor.reproduce.playing.plan import ExperimentRuns
from fedtailor.reproduce.playing.play import PlannedRun
from fedtailor.reproduce.shown.writing import cell_text, comparable_cells, two_digits
from fedtailor.results.config import settings as known_settings
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.over_clients import mean_of_known
from fedtailor.results.numbers import played_on
from fedtailor.results.statistics import training_end
from fedtailor.results.status import failure, run_status

APART = 2.0  # standard deviations of the paper
RESUMED_BY = "fedtailor reproduce"  # be it at work already: half runs wait for their turn


def mean_over_seeds(values: Sequence[Value]) -> dict[str, float | None]:
    """Mean and standard deviation (of the sample; None for one seed), and the groups' means."""
    main = [v.main for v in values]
    spread = len(main) > 1 and all(map(isfinite, main))
    return {
        "mean": mean_of_known(main),
        "std": float(np.std(main, ddof=1)) if spread else None,
        "low": mean_of_known([v.low for v in values]),
        "high": mean_of_known([v.high for v in values]),
    }


def for_json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity: there is none, and a text beside it says so."""
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in values.items()}


def is_outside(difference: float | None, std: float | None) -> bool | None:
    """Whether a difference is more than two of the paper's standard deviations; None: unknown."""
    if difference is None or std is None:
        return None
    return bool(abs(difference) > APART * std)


def tau(pairs: Sequence[tuple[float, float]], ranks: str = "rows") -> dict[str, Any]:
    """How alike two orders are: Kendall's tau-b of (ours, the paper's), and of how many rows."""
    found = (
        float(scipy.stats.kendalltau(*zip(*pairs, strict=True)).statistic)
        if len(pairs) > 1
        else np.nan
    )
    return {"tau": None if isnan(found) else round(found, 6), ranks: len(pairs)}


def taus(cells: Sequence[dict[str, Any]], names: Sequence[str], ranks: str) -> dict[str, Any]:
    """Kendall's τ of each column's rows, or of each row's columns; `ranks`: whose order it is."""
    return {
        name: tau(
            [(c["mean"], c["paper"]["mean"]) for c in comparable_cells(cells, name, ranks)], ranks
        )
        for name in names
    }


def _how_far(tasks: Sequence[PlannedRun]) -> str:
    """In words, of those that have begun and are not finished."""
    return ", ".join(
        found.words
        for found in (run_status(task.folder, RESUMED_BY) for task in tasks)
        if found.rounds and not found.finished and not found.failed
    )


def _status(
    part: ExperimentRuns,
    cell: Cell,
    tasks: Sequence[PlannedRun],
    failed: dict[str, str],
    going: bool,
) -> tuple[str, str]:
    reasons = [r for t in tasks if (r := failed.get(t.key) or failure(t.folder).get("reason"))]
    if missing := part.missing.get((cell.row, cell.column)):
        return "missing data", missing
    if reasons:
        return "failed", reasons[0]
    if not all(task.finished for task in tasks):
        if going:
            far = _how_far(tasks)
            return ("running", far) if far else ("waiting", "")
        return "not finished", "stopped before: the same command goes on"
    return "done", ""


def _settings(task: PlannedRun) -> dict[str, Any]:
    """What of a run's settings is not as usual."""
    usual = {name: option.default for name, (option, _) in known_settings().items()}
    return {
        k: v
        for k, v in task.config.values().items()
        if k in usual and k not in ELSEWHERE | {"seed"} and v != usual[k]
    }


def _in_words(values: dict[str, Any]) -> dict[str, Any]:
    """Settings for JSON: a limit may be infinite, for which it has no number."""
    endless = {k: str(v) for k, v in values.items() if isinstance(v, float) and not isfinite(v)}
    return values | endless


def _seed(value: Value) -> dict[str, Any]:
    return for_json(value._asdict()) | {"text": two_digits(value.main)}


def _still_rising(result: Result, history: History) -> bool | None:
    """Whether more rounds would have helped; None where too few were tested to say.

    By validation rows; by test rows where a paper has no others: nothing is chosen by it.
    """
    for part in ("pre_val", "pre"):
        seen = {line["round"]: line[part]["mean"] for line in history if line.get(part)}
        if seen:
            # of before there were others
            more = METRICS[result.get("metric", "accuracy")].higher_is_better
            return training_end([*seen], [*seen.values()], higher_is_better=more).still_rising
    return None


def _per_client(result: Result, metric: str) -> list[float | None]:
    """Each client's value, of the round that the cell shows: rows can be compared by clients."""
    found = result.get("best_per_client" if metric.startswith("best") else "per_client", {})
    return list(found.values())


def _apart(mean: float | None, paper: Published | None) -> float | None:
    """Ours less the paper's, where both are numbers that can be subtracted."""
    if mean is None or paper is None or not (isfinite(mean) and isfinite(paper.mean)):
        return None
    return mean - paper.mean


def _cell(
    part: ExperimentRuns,
    cell: Cell,
    tasks: Sequence[PlannedRun],
    failed: dict[str, str],
    going: bool,
) -> dict[str, Any]:
    measure = measure_of(cell.metric)
    status, reason = _status(part, cell, tasks, failed, going)
    each, values, devices, versions = [], [], set(), set()
    for task in tasks:
        if not task.finished or status == "missing data":
            continue
        result, history = result_and_history(task.folder)
        value = measure.read(result, history)
        devices.add(played_on(result))
        versions.add(result["version"])
        entry = {
            "seed": task.config.seed,
            "run": task.folder.name,
            "seconds": result["seconds"],
            "rounds": rounds_played(result),
            "still_rising": _still_rising(result, history),
            "per_client": _per_client(result, cell.metric),
        }
        each.append(entry | (_seed(value) if value else {"main": None}))
        if value:
            values.append(value)
    if status == "done" and len(values) < len(tasks):
        status, reason = "failed", f"the run has no '{cell.metric}': {measure.meaning}"
    ours = mean_over_seeds(values)
    ends = [entry["still_rising"] for entry in each if entry["still_rising"] is not None]
    paper = cell.published
    apart = _apart(ours["mean"], paper)
    # a beside_paper waits for all seeds
    outside = is_outside(apart, paper.std if paper else None) if status == "done" else None
    return {
        "row": cell.row,
        "column": cell.column,
        "x": cell.x,
        "method": tasks[0].config.method,
        "metric": cell.metric,
        "unit": measure.unit,
        "status": status,
        "reason": reason,
        **for_json(ours),
        "text": cell_text(ours) if values else "",
        "seeds": each,
        "paper": for_json(paper._asdict()) if paper else None,
        "difference": apart,
        "outside": outside,
        "still_rising": any(ends) if ends else None,
        "devices": sorted(devices),
        "versions": sorted(versions),
        "settings": _in_words(_settings(tasks[0])),
        "options": _in_words(tasks[0].config.options),
    }


def outcome(
    part: ExperimentRuns, failed: dict[str, str], command: str, going: bool = False
) -> dict[str, Any]:
    """All that there is to say about an experiment, ready for JSON.

    `failed` has the reasons of runs by their keys; with `going` it says how far the others are.
    """
    experiment, paper = part.experiment, part.experiment.paper
    cells = [_cell(part, cell, tasks, failed, going) for cell, tasks in part.cells]
    shown = [c.name for c in experiment.columns if any(d["column"] == c.name for d in cells)]
    rows = [r.name for r in experiment.rows if any(d["row"] == r.name for d in cells)]
    left_out = len(experiment.rows) - len(rows) + len(experiment.columns) - len(shown)
    measure = measure_of(experiment.metric)
    return {
        "made_by": "FedTailor",
        "version": __version__,
        "experiment": experiment.key,
        "paper": {k: getattr(paper, k) for k in ("name", "title", "authors", "venue")},
        "title": experiment.title,
        "shows": experiment.shows,
        "metric": experiment.metric,
        "meaning": measure.meaning,
        "x": experiment.x,
        "y": experiment.y,
        "note": experiment.note,
        "scale": part.mark,
        "as_in_paper": not part.mark,
        "rows_or_columns_left_out": left_out,
        "rounds": sorted({t.config.rounds for _, tasks in part.cells for t in tasks}),
        "rounds_of_paper": sorted(
            declared_rounds(experiment, {(cell.row, cell.column) for cell, _ in part.cells})
        ),
        "seeds": max((len(tasks) for _, tasks in part.cells), default=0),
        "seeds_of_paper": experiment.seeds,
        "devices": sorted({d for c in cells for d in c["devices"]}),
        "versions": sorted({v for c in cells for v in c["versions"]}),  # that played the runs
        "command": command,
        "choices": [
            {"name": c.name, "value": c.value, "reason": c.reason} for c in experiment.chosen
        ],
        "columns": shown,
        "rows": rows,
        "cells": cells,
        "ranks": experiment.ranks,
        "tau": taus(cells, rows if experiment.ranks == "columns" else shown, experiment.ranks),
        "outside": sum(c["outside"] is True for c in cells),
        "complete": all(c["status"] == "done" for c in cells),
    }
