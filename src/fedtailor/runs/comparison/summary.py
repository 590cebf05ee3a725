"""What the runs of a comparison come to, over repeats and seeds and against training alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core import __version__
from fedtailor.results.config import TUNABLE
from fedtailor.results.folder import ALONE, YARDSTICKS, Line
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.over_clients import mean_of_known
from fedtailor.results.metrics.table import table_of_metrics
from fedtailor.results.numbers import diverged_runs, mean_and_std, over_runs
from fedtailor.results.outputs import RunOutputs
from fedtailor.results.verdict import (
    beside_yardsticks,
    constant_outputs,
    end_of_training,
    judge,
    judged_run,
    untrained,
    without_federation,
)
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.data import RunData
from fedtailor.runs.evaluation import evaluation_of, rounded_table


class PlayedRun(NamedTuple):
    """One run of a comparison."""

    result: dict[str, Any]  # what it came to
    history: list[Line]  # a line for each round
    # what its models said of all test and validation rows; None if they were not kept
    outputs: RunOutputs | None


Played = dict[tuple[str, int], PlayedRun]  # by method and seed


def _mean_curve(lines: list[list[Line]]) -> list[dict[str, Any]]:
    """The metric by round over runs: mean, least and largest.

    A run that stopped early counts on with its last models, which are what it ends with.
    """
    judged = [[line for line in run if "pre" in line] for run in lines]
    longest = max(judged, key=len)
    judged = [
        [*run, *(run[-1] | {"round": at["round"]} for at in longest[len(run) :])]
        for run in judged
        if run
    ]
    curve = []
    for at in zip(*judged, strict=True):
        known = [line["pre"]["mean"] for line in at if "mean" in line["pre"]]
        if known:
            mean = float(np.mean(known))
            row = {"round": at[0]["round"], "mean": mean, "low": min(known), "high": max(known)}
            curve.append(row)
    return curve


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _row(
    runs: list[PlayedRun], names: list[str], alone: dict[str, float | None], up: bool
) -> dict[str, Any]:
    """A method's row of the summary, over its runs and against training alone."""
    results = [run.result for run in runs]
    each = {name: mean_of_known([r["per_client"][name] for r in results]) for name in names}
    gains = {
        name: (value - without) * (1 if up else -1)
        for name, value in each.items()
        if value is not None and (without := alone.get(name)) is not None
    }
    # runs of 0.1 have no metrics but accuracy, and none on validation rows
    shared = set.intersection(*(set(r.get("metrics", {})) for r in results))
    return {
        "score": over_runs(results, "score"),
        "accuracy": over_runs(results, "accuracy"),
        "best": {
            "round": [r["best_round"] for r in results],
            "mean": mean_and_std([r["best"]["mean"] for r in results])
            if all("mean" in r["best"] for r in results)
            else None,
        },
        "val": _rounded(mean_of_known([r.get("val", {}).get("mean") for r in results])),
        "metrics": {
            name: mean_and_std([r["metrics"][name]["mean"] for r in results])
            for name in results[0].get("metrics", {})
            if name in shared and all(r["metrics"][name].get("mean") is not None for r in results)
        },
        "better_off": sum(g > 1e-9 for g in gains.values()),
        "worse_off": sum(g < -1e-9 for g in gains.values()),
        "gain": {name: round(g, 6) for name, g in gains.items()},
        "per_client": {name: _rounded(v) for name, v in each.items()},
        "diverged": diverged_runs(results),
        "bytes": {k: int(np.mean([r["bytes"][k] for r in results])) for k in ("up", "down")},
        # runs side by side share theirs
        "seconds": round(
            float(np.mean([r["seconds"] / r.get("side_by_side", 1) for r in results])), 3
        ),
        "peak_memory_bytes": max(r["peak_memory_bytes"] or 0 for r in results) or None,
        "options": results[0]["options"],
        "curve": _mean_curve([run.history for run in runs]),
    }


def _constant(data: RunData) -> dict[str, Any]:
    """What each client would have with no model at all: its commonest class, its mean label."""
    judge, fed = evaluation_of(data.alone(), data.config.metric), data.client_data
    labels = [own.numpy() for own in torch.split(judge.labels("train"), fed.train.n.tolist())]
    form = data.encoder.form
    said = constant_outputs(labels, fed.test.n.tolist(), form.task, form.classes)
    n = dict(zip(fed.names, fed.test.n.tolist(), strict=True))
    return rounded_table(table_of_metrics(said, judge.labels("test"), n, form.task))


def summarise_runs(plan: ComparisonPlan, played: Played) -> dict[str, Any]:
    """What the runs come to, over repeats and seeds and against training alone."""
    seeds = sorted({seed for _, seed in played})
    data = plan.load_data()
    names = list(data.client_data.names)
    runs = {m: [played[m, s] for s in seeds] for m in plan.methods}
    metric = METRICS[data.config.metric]
    none = {name for run in runs[ALONE] for name in untrained(run.result)}
    alone = {
        name: mean_of_known([run.result["per_client"][name] for run in runs[ALONE]])
        for name in names
        if name not in none
    }
    table = {m: _row(of, names, alone, metric.higher_is_better) for m, of in runs.items()}
    first = played[plan.methods[0], seeds[0]].result
    shared = {
        k: v
        for k, v in plan.configs[plan.methods[0], seeds[0]].values().items()
        # what was tuned is each method's own
        if k not in ("method", "options", "seed", *(TUNABLE if plan.tune else ()))
    }
    facts = ("data", "model", "clients", "partition", "device", "rounds", "task", "metric")
    judged = {
        m: [judged_run(r.result, r.history, r.outputs, data.config.test) for r in of]
        for m, of in runs.items()
    }
    label = data.targets.name if data.targets else ""
    found = judge(judged, names, metric.name, margin=plan.margin, label=label)
    if found.decision:  # in its unit, differences up to the margin do not matter
        margin = found.decision["margin"]
        for m, row in table.items():
            row["still_rising"] = end_of_training(judged[m], metric, margin).still_rising
    constant = _constant(data)
    beside = table, constant, metric, found.decision
    answer, *more = found.sentences
    return {
        "version": __version__,
        "methods": plan.methods,
        "yardstick_added": ALONE not in plan.asked,
        "yardsticks": [m for m in plan.methods if m in YARDSTICKS],
        "yardsticks_left_out": plan.left_out,
        "seeds": seeds,
        "repeats": plan.repeats,
        "tuned": {"trials": plan.tune, "search": plan.search, "methods": plan.tuned}
        if plan.tune
        else None,
        "settings": shared | {k: first[k] for k in facts},
        "metric": metric.name,
        "engines": {m: runs[m][0].result["engine"] for m in plan.methods},
        "test_rows": {name: int(n) for name, n in zip(names, data.client_data.test.n, strict=True)},
        "table": table,
        "constant": constant,
        "decision": found.decision,
        "others": found.others,
        "clients": found.clients,
        "verdict": [
            answer,
            *without_federation(*beside, label),
            *more,
            *beside_yardsticks(*beside),
        ],
    }
