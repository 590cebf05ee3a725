"""What runs come to, over seeds and client by client: the numbers on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import counted
from fedtailor.results.collect import CollectedRuns, Contender
from fedtailor.results.folder import ALONE, SUMMARY, Line, read_note
from fedtailor.results.metrics.named import METRICS, Metric
from fedtailor.results.outputs import read_outputs
from fedtailor.results.pack import Array, Packed, evenly, pack_scaled, rounded
from fedtailor.results.verdict import (
    Verdict,
    judge,
    judged_run,
    shown,
    unjudged,
    untrained,
    wording_of,
)

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
METRIC_VALUES = 300_000  # of all metrics of all clients with all methods: about 2 MB
SAME = 1e-9
ODD_SHARE = 0.05  # of a client's rounds: ten times what honest uploads have


def metric_of(collection: CollectedRuns) -> Metric:
    """What all of these runs are judged by.

    Raises:
      BadInput: one of them goes by another metric than the first, or by one that is not known.
    """
    first = collection.contenders[0].first
    name = first.result["metric"]
    for run in (run for contender in collection.contenders for run in contender.runs):
        if run.result["metric"] != name:
            raise BadInput(
                f"'{run.folder}' is judged by {run.result['metric']}, but '{first.folder}' by "
                f"{name}: choose runs with one --metric"
            )
    if name not in METRICS:
        raise BadInput(f"'{first.folder}' is judged by '{name}', which this version does not know")
    return METRICS[name]


def task_of(collection: CollectedRuns) -> str:
    """What was learnt: classification, regression or survival."""
    return str(collection.contenders[0].first.result["task"])


def axis_of(metric: Metric, mean: str = "") -> str:
    """What an axis with a metric's values is called.

    Example:
      >>> axis_of(METRICS["accuracy"], "mean test"), axis_of(METRICS["rmse"])
      ('mean test accuracy (%)', 'RMSE')
    """
    named = f"{mean} {wording_of(metric).metric}" if mean else metric.title
    return f"{named} (%)" if metric.percent else named


def digits_for(metric: Metric, values: Sequence[float | None]) -> int:
    """How many digits behind the point tell values apart: three that count, one of a percentage.

    Example:
      >>> digits_for(METRICS["rmse"], [5.13, 7.2]), digits_for(METRICS["rmse"], [2130.0])
      (2, 0)
    """
    sizes = [abs(v) for v in values if v is not None and isfinite(v) and v != 0]
    if metric.percent or not sizes:
        return 1 if metric.percent else 3
    return min(6, max(0, 2 - floor(log10(float(np.median(sizes))))))


def metric_in_words(collection: CollectedRuns, table: list[dict[str, Any]]) -> dict[str, Any]:
    """How the page shows the metric's values."""
    metric = metric_of(collection)
    means = [row["score"].get("mean", {}).get("mean") for row in table]
    low, high = metric.bounds
    return {
        "name": metric.name,
        "word": wording_of(metric).metric,
        "axis": axis_of(metric),
        "percent": metric.percent,
        "higher": metric.higher_is_better,
        "digits": digits_for(metric, means),
        "least": low if isfinite(low) else None,
        "most": high if isfinite(high) else None,
    }


def mean_and_std(values: list[float]) -> dict[str, float]:
    """Mean and sample deviation of one number over seeds."""
    found = np.array(values, dtype=float)
    spread = float(found.std(ddof=1)) if len(found) > 1 else 0.0
    return {"mean": round(float(found.mean()), 6), "std": round(spread, 6)}


def over_runs(results: Sequence[Mapping[str, Any]], part: str) -> dict[str, dict[str, float]]:
    """A part of results ("score") over seeds: each of its numbers that all of them have."""
    known = [k for k in SUMMED if all(k in r[part] for r in results)]
    return {k: mean_and_std([r[part][k] for r in results]) for k in known}


def final_scores(contender: Contender, clients: list[str]) -> Array:
    """Each client's value at the end, averaged over the seeds that have one; nan without any."""
    return _mean_of_known([run.result["per_client"] for run in contender.runs], clients)


def _mean_of_known(each: Sequence[Mapping[str, float | None]], clients: list[str]) -> Array:
    """Each client's mean over the seeds in which it has a value; nan without any."""
    values = np.array([[run.get(name) for name in clients] for run in each], dtype=float)
    there = np.isfinite(values)
    sums = np.where(there, values, 0).sum(axis=0)
    return np.where(there.any(axis=0), sums / there.sum(axis=0).clip(1), np.nan)


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
    if any("simulated_time" in line for run in lines for line in run.values()):
        simulated = [np.mean([run[r]["cost"]["simulated"] for run in lines]) for r in rounds]
        out["simulated"] = rounded(simulated)
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
    """Each client's value by round, averaged over seeds, at fewer rounds if there are many."""
    rounds = _shared_rounds(contender)
    most = min(CLIENT_POINTS, max(2, CLIENT_VALUES // max(1, clients * contenders)))
    rounds = [rounds[i] for i in evenly(len(rounds), most)]
    total = np.zeros((len(rounds), clients))
    for run in contender.runs:
        lines = {line["round"]: line for line in run.history}
        # real sites may have no more than scores right after training
        told = [lines[r].get("pre_per_client", lines[r].get("post_per_client")) for r in rounds]
        total += np.array([line or [None] * clients for line in told], float).reshape(total.shape)
    mean = total.T / len(contender.runs)
    known = mean[np.isfinite(mean)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    values: Packed = pack_scaled(np.where(np.isfinite(mean), mean, np.nan), low, high, fine=True)
    return {"round": rounds, "values": values}


def all_metrics(collection: CollectedRuns) -> dict[str, Any]:
    """All metrics of all clients with every method, and why a client has none.

    Returns:
      `names`: how each metric is shown; `values`: of each method by metric, one per client, the
      mean over seeds; `undefined`: reasons by metric and client's number. Empty where older runs
      kept none, or where there are too many for a page.
    """
    clients, contenders = collection.clients, collection.contenders
    names = list(contenders[0].first.result.get("metrics", {}))
    if len(names) * len(clients) * len(contenders) > METRIC_VALUES:
        return {"names": [], "values": [], "undefined": {}}
    values: list[dict[str, list[float | None]]] = []
    undefined: dict[str, dict[int, str]] = {}
    for contender in contenders:
        own = {}
        for name in names:
            tables = [run.result.get("metrics", {}).get(name, {}) for run in contender.runs]
            found = _mean_of_known([t.get("per_client", {}) for t in tables], clients)
            own[name] = [float(f"{v:.5g}") if np.isfinite(v) else None for v in found]
            reasons = {c: why for t in tables for c, why in t.get("undefined", {}).items()}
            for number, client in enumerate(clients):
                if own[name][number] is None and client in reasons:
                    undefined.setdefault(name, {}).setdefault(number, reasons[client])
        values.append(own)
    return {
        "names": [_metric_shown(n, [v for of in values for v in of[n]]) for n in names],
        "values": values,
        "undefined": undefined,
    }


def _metric_shown(name: str, values: list[float | None]) -> dict[str, Any]:
    """How values of one of many metrics are shown; somebody's own may be better either way."""
    if name not in METRICS:
        return {"name": name, "title": name, "percent": False, "higher": None, "digits": 3}
    metric = METRICS[name]
    return {
        "name": name,
        "title": metric.title,
        "percent": metric.percent,
        "higher": metric.higher_is_better,
        "digits": digits_for(metric, values),
    }


def _row(contender: Contender, each: Array, alone: Array | None) -> dict[str, Any]:
    results = [run.result for run in contender.runs]
    seconds = [result["seconds"] for result in results]
    gain = None if alone is None else each - alone
    if gain is not None and not METRICS[results[0]["metric"]].higher_is_better:
        gain = -gain
    return {
        "label": contender.label,
        "method": contender.method,
        "seeds": [r["seed"] for r in results],
        "score": over_runs(results, "score"),
        "best_round": [r.get("best_round") for r in results],
        "better_off": None if gain is None else int((gain > SAME).sum()),
        "worse_off": None if gain is None else int((gain < -SAME).sum()),
        "gain": None if gain is None else rounded(gain),
        "per_client": rounded(each),
        "up": float(np.mean([r["bytes"]["up"] for r in results])),
        "down": float(np.mean([r["bytes"]["down"] for r in results])),
        "seconds": None if None in seconds else round(float(np.mean(seconds)), 3),  # sites' alone
        "train_seconds": round(float(np.mean([r.get("train_seconds", 0) for r in results])), 3),
        "memory": max(r.get("peak_memory_bytes") or 0 for r in results) or None,
        "options": results[0].get("options", {}),
        "rounds": results[0].get("reached", results[0]["rounds"]),
        "stopped_early": [r["stopped_early"] for r in results if r.get("stopped_early")],
        "model": results[0].get("model"),
        "device": played_on(results[0]),
        "epsilon": largest_epsilon(results),
        "skipped": sum(len(s) for r in results for s in r.get("skipped", {}).values()),
        "diverged": diverged_runs(results),
        "never_trained": Counter(name for r in results for name in r.get("never_trained", ())),
        "odd_uploads": _often_odd(results),
        "dropped": sum(n for r in results for n in r.get("dropped", {}).values()),
        "stragglers": sum(n for r in results for n in r.get("stragglers", {}).values()),
        "never_in_time": sorted({n for r in results for n in r.get("never_in_time", ())}),
        "leaks_test": any(r.get("leaks_test") for r in results),
    }


def diverged_runs(results: list[dict[str, Any]]) -> dict[str, int]:
    """Clients whose final models diverged, with the number of runs."""
    return Counter(name for r in results for name in r.get("diverged", ()))


def _often_odd(results: list[dict[str, Any]]) -> dict[str, int]:
    """Clients whose uploads stood out more often than honest ones' do, with the number of rounds.

    Of honest uploads one in 200 does, see `fedtailor.core.uploads.watch`.
    """
    counts = sum((Counter(r.get("odd_uploads", {})) for r in results), Counter[str]())
    rounds = sum(r["rounds"] * r.get("participation", 1.0) for r in results)
    return {name: n for name, n in counts.most_common() if n >= 3 and n > ODD_SHARE * rounds}


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
    without = None
    if alone is not None:
        none = [c for run in collection.contenders[alone].runs for c in untrained(run.result)]
        without = np.where(np.isin(collection.clients, none), np.nan, each[alone])
    return [_row(c, found, without) for c, found in zip(collection.contenders, each, strict=True)]


def its_summary(collection: CollectedRuns) -> dict[str, Any]:
    """The summary of the comparison that all of these runs are from; empty if there is none."""
    runs = [run for contender in collection.contenders for run in contender.runs]
    places = {run.folder.parent.parent for run in runs}
    return read_note(places.pop() / SUMMARY) if len(places) == 1 else {}


def whole_comparison(collection: CollectedRuns) -> dict[str, Any] | None:
    """The summary of the comparison whose runs these are, if they are all of its runs."""
    found = its_summary(collection)
    planned = len(found.get("methods", ())) * len(found.get("seeds", ()))
    there = sum(len(contender.runs) for contender in collection.contenders)
    return found if "decision" in found and planned == there else None


def verdict_of(collection: CollectedRuns) -> Verdict:
    """The verdict on runs that were brought together from anywhere."""
    alone = yardstick(collection)
    runs = {
        ALONE if number == alone else c.label: [
            judged_run(run.result, run.history, read_outputs(run.folder)) for run in c.runs
        ]
        for number, c in enumerate(collection.contenders)
    }
    # some of a comparison's runs are judged as all of them were
    margin = (its_summary(collection).get("decision") or {}).get("margin")
    return judge(runs, collection.clients, metric_of(collection).name, margin=margin)


def decisions(collection: CollectedRuns) -> Verdict:
    """The verdict: that of their comparison if these are all of its runs, else a new one."""
    summary = whole_comparison(collection)
    if summary is None:
        return verdict_of(collection)
    return Verdict(
        summary["decision"], summary["others"], summary["clients"], list(summary["verdict"])
    )


def constant_answer(collection: CollectedRuns) -> dict[str, Any]:
    """What always giving the same answer comes to, by the metric; empty if it is not known."""
    kept = its_summary(collection).get("constant", {})
    found: dict[str, Any] = kept.get(metric_of(collection).name, {})
    return found


def page_verdict(collection: CollectedRuns, table: list[dict[str, Any]]) -> Verdict:
    """The verdict for a page; without training alone only what can be said without it."""
    counts = collection.contenders[0].first.clients
    tested = [n for n in collection.clients if counts[n]["test"] != "0"]  # a site may not tell
    metric = metric_of(collection)
    word = wording_of(metric).metric
    named = [row for row in table if "mean" in row["score"]]
    if not tested:
        return unjudged(f"No client has test rows, so nothing can be said about {word}.")
    if not named:
        return unjudged(f"No client has a value of {word}: see why under Client by client.")
    found = decisions(collection)
    if whole_comparison(collection) is not None:
        return found
    up = -1 if metric.higher_is_better else 1
    best = min(named, key=lambda row: up * float(row["score"]["mean"]["mean"]))
    mean, low, high = (best["score"][k]["mean"] for k in ("mean", "bottom5", "top5"))
    over = f"on average over {len(tested)} clients" if len(tested) > 1 else "at one client"
    ends = f"; of the worst-off 5 % {shown(metric, low)}, of the best-off {shown(metric, high)}"
    after = f"{over} after {counted(best['rounds'], 'round')}{ends * (len(tested) > 1)}"
    told = f"{best['label']} has {shown(metric, mean)} ({word}) {after}."
    return found._replace(sentences=[*found.sentences, told])
