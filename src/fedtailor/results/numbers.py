"""What runs come to, over seeds and client by client: the numbers on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from fedtailor.results.collect import CollectedRuns, Contender
from fedtailor.results.folder import ALONE, SUMMARY, Line, read_note
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.outputs import RunOutputs, read_outputs
from fedtailor.results.pack import Array, Packed, evenly, pack_scaled, rounded
from fedtailor.results.verdict import JudgedRun, Verdict, judge, shown

SUMMED = ("mean", "weighted", "std", "median", "bottom5", "top5", "worst", "loss")
# measure of a curve: (part of a history's line, number in it)
MEASURES = {
    "mean": ("pre", "mean"),
    "weighted": ("pre", "weighted"),
    "bottom5": ("pre", "bottom5"),
    "post": ("post", "mean"),
    "global": ("global", "mean"),
    "loss": ("pre", "loss"),
}
CURVE_POINTS = 200  # more than that no screen shows
CLIENT_POINTS = 60
CLIENT_VALUES = 600_000  # of all clients' curves together: 1.6 MB
SAME = 1e-9


def mean_and_std(values: list[float]) -> dict[str, float]:
    """Mean and sample deviation of one number over seeds."""
    found = np.array(values, dtype=float)
    spread = float(found.std(ddof=1)) if len(found) > 1 else 0.0
    return {"mean": round(float(found.mean()), 6), "std": round(spread, 6)}


def final_scores(contender: Contender, clients: list[str]) -> Array:
    """Each client's value at the end, averaged over seeds; nan without test rows."""
    each = [
        [np.nan if (v := run.result["per_client"].get(name)) is None else v for name in clients]
        for run in contender.runs
    ]
    return np.asarray(np.array(each, dtype=float).mean(axis=0))


def _value(line: Line, measure: str) -> float:
    part, key = MEASURES[measure]
    found = line.get(part, {}).get(key)
    return np.nan if found is None else float(found)


def _shared_rounds(contender: Contender) -> list[int]:
    """Rounds that were evaluated with every seed."""
    each = [{line["round"] for line in run.history} for run in contender.runs]
    return sorted(set.intersection(*each))


def mean_curves(contender: Contender) -> dict[str, Any]:
    """Each measure by round: mean, least and largest over seeds."""
    rounds = _shared_rounds(contender)
    rounds = [rounds[i] for i in evenly(len(rounds), CURVE_POINTS)]
    lines = [
        {line["round"]: line for line in run.history if line["round"] in set(rounds)}
        for run in contender.runs
    ]
    out: dict[str, Any] = {
        "round": rounds,
        "sent": [round(float(np.mean([run[r]["sent"] for run in lines]))) for r in rounds],
        "seconds": rounded([np.mean([run[r].get("seconds", 0) for run in lines]) for r in rounds]),
    }
    for measure in MEASURES:
        values = np.array([[_value(run[r], measure) for r in rounds] for run in lines])
        if np.isfinite(values).any():
            out[measure] = {
                "mid": rounded(values.mean(axis=0)),
                "low": rounded(values.min(axis=0)),
                "high": rounded(values.max(axis=0)),
            }
    return out


def client_curves(contender: Contender, clients: int, contenders: int) -> dict[str, Any]:
    """Each client's accuracy by round, averaged over seeds, at fewer rounds if there are many."""
    rounds = _shared_rounds(contender)
    most = min(CLIENT_POINTS, max(2, CLIENT_VALUES // max(1, clients * contenders)))
    rounds = [rounds[i] for i in evenly(len(rounds), most)]
    total = np.zeros((len(rounds), clients))
    for run in contender.runs:
        lines = {line["round"]: line for line in run.history}
        each = [lines[r].get("pre_per_client") or [None] * clients for r in rounds]
        total += np.array(each, dtype=float).reshape(len(rounds), clients)
    values: Packed = pack_scaled(total.T / len(contender.runs), 0.0, 1.0, fine=True)
    return {"round": rounds, "values": values}


def _row(contender: Contender, each: Array, alone: Array | None) -> dict[str, Any]:
    results = [run.result for run in contender.runs]
    known = [k for k in SUMMED if all(k in r["score"] for r in results)]
    gain = None if alone is None else each - alone
    if gain is not None and not METRICS[results[0]["metric"]].higher_is_better:
        gain = -gain
    return {
        "label": contender.label,
        "method": contender.method,
        "seeds": [r["seed"] for r in results],
        "score": {k: mean_and_std([r["score"][k] for r in results]) for k in known},
        "best_round": [r.get("best_round") for r in results],
        "better_off": None if gain is None else int((gain > SAME).sum()),
        "worse_off": None if gain is None else int((gain < -SAME).sum()),
        "gain": None if gain is None else rounded(gain),
        "per_client": rounded(each),
        "up": float(np.mean([r["bytes"]["up"] for r in results])),
        "down": float(np.mean([r["bytes"]["down"] for r in results])),
        "seconds": round(float(np.mean([r["seconds"] for r in results])), 3),
        "train_seconds": round(float(np.mean([r.get("train_seconds", 0) for r in results])), 3),
        "memory": max(r.get("peak_memory_bytes") or 0 for r in results) or None,
        "options": results[0].get("options", {}),
        "rounds": results[0].get("reached", results[0]["rounds"]),
        "model": results[0].get("model"),
        "device": played_on(results[0]),
        "epsilon": largest_epsilon(results),
        "skipped": sum(len(s) for r in results for s in r.get("skipped", {}).values()),
        "leaks_test": any(r.get("leaks_test") for r in results),
    }


def largest_epsilon(results: list[dict[str, Any]]) -> dict[str, float | None] | None:
    """The largest ε over seeds, as `max`; this is None where one of them gives no guarantee.

    None without differential privacy.
    """
    told = [result.get("epsilon") for result in results]
    if not any(told):
        return None
    each = [(one or {}).get("max") for one in told]
    # infinity too is written as None: JSON has no word for it
    guaranteed = [e for e in each if e is not None and isfinite(e)]
    return {"max": max(guaranteed) if len(guaranteed) == len(each) else None}


def played_on(result: dict[str, Any]) -> str:
    """The device of a run, and what that is; older results do not name the hardware."""
    device, what = result.get("device", ""), result.get("hardware")
    return f"{device} ({what})" if what else str(device)


def yardstick(collection: CollectedRuns) -> int | None:
    """Which contender is training alone."""
    found = [i for i, c in enumerate(collection.contenders) if c.method == ALONE]
    return found[0] if found else None


def rows(collection: CollectedRuns) -> list[dict[str, Any]]:
    """One row of the table per contender."""
    each = [final_scores(c, collection.clients) for c in collection.contenders]
    alone = yardstick(collection)
    return [
        _row(c, found, None if alone is None else each[alone])
        for c, found in zip(collection.contenders, each, strict=True)
    ]


def judged_run(
    result: Mapping[str, Any],
    history: Sequence[Line],
    outputs: RunOutputs | None,
    tested_share: float = 0.25,
) -> JudgedRun:
    """What the verdict needs to know of a run."""
    scored = [line for line in history if line.get("pre_val", {}).get("mean") is not None]
    curve = tuple((int(line["round"]), float(line["pre_val"]["mean"])) for line in scored)
    val = result.get("val", scored[-1]["pre_val"] if scored else {}).get("mean")
    return JudgedRun(outputs, val, curve, tested_share)


def whole_comparison(collection: CollectedRuns) -> dict[str, Any] | None:
    """The summary of the comparison whose runs these are, if they are all of its runs."""
    runs = [run for contender in collection.contenders for run in contender.runs]
    places = {run.folder.parent.parent for run in runs}
    found = read_note(places.pop() / SUMMARY) if len(places) == 1 else {}
    planned = len(found.get("methods", ())) * len(found.get("seeds", ()))
    return found if "decision" in found and planned == len(runs) else None


def verdict_of(collection: CollectedRuns) -> Verdict:
    """The verdict on runs that were brought together from anywhere."""
    alone = yardstick(collection)
    runs = {
        ALONE if number == alone else c.label: [
            judged_run(run.result, run.history, read_outputs(run.folder)) for run in c.runs
        ]
        for number, c in enumerate(collection.contenders)
    }
    return judge(runs, collection.clients, collection.contenders[0].first.result["metric"])


def words(collection: CollectedRuns, table: list[dict[str, Any]]) -> list[str]:
    """The verdict in words; without training alone only what can be said without it."""
    clients = collection.clients
    counts = collection.contenders[0].first.clients
    tested = {n: int(counts[n]["test"]) for n in clients if int(counts[n]["test"])}
    metric = METRICS[collection.contenders[0].first.result["metric"]]
    named = [row for row in table if "mean" in row["score"]]
    if not tested or not named:
        return [f"No client has test rows, so nothing can be said about {metric.name}."]
    up = -1 if metric.higher_is_better else 1
    best = min(named, key=lambda row: up * float(row["score"]["mean"]["mean"]))
    summary = whole_comparison(collection)
    if summary is not None:
        told: list[str] = summary["verdict"]
        return told
    mean, low, high = (best["score"][k]["mean"] for k in ("mean", "bottom5", "top5"))
    return [
        *verdict_of(collection).sentences,
        f"{best['label']} has {shown(metric, mean)} ({metric.title.lower()}) on average over "
        f"{len(tested)} clients after {best['rounds']} rounds; the worst-off 5 % of them have "
        f"{shown(metric, low)}, the best-off 5 % {shown(metric, high)}.",
    ]
