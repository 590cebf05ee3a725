"""What a comparison means: does federation help these clients, which, by how much, how surely?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core.form import TaskKind
from fedtailor.results.folder import ALONE, CENTRALISED, LINEAR, YARDSTICKS, Line
from fedtailor.results.metrics.named import METRICS, Metric
from fedtailor.results.metrics.over_clients import over_most
from fedtailor.results.outputs import RunOutputs
from fedtailor.results.statistics import (
    HELD_OUT,
    NEVER_TRAINED,
    Decision,
    PairedRows,
    TrainingEnd,
    Wording,
    decide,
    decide_clients,
    holm_corrected,
    measure_gains,
    pick_method,
    scoring_of,
    sentences,
    training_end,
    usual_margin,
)
from fedtailor.results.statistics.scoring import IN_UNITS

ONLY_ALONE = "Only training alone was run: name a method to compare it with."


class JudgedRun(NamedTuple):
    """What the verdict needs to know of one run."""

    outputs: RunOutputs | None  # what its models said of all test rows, if that was kept
    val: float | None  # the metric over clients on validation rows, at the end
    curve: tuple[tuple[int, float], ...] = ()  # the same by round
    tested_share: float = 0.25  # of a client's rows
    untrained: Mapping[str, str] = {}  # clients whose model is as it began, with the reason
    valued: int = 0  # clients that `val` is over


def untrained(result: Mapping[str, Any]) -> dict[str, str]:
    """Clients whose model alone is the one that they began with, and why: none gains over that.

    Example:
      >>> untrained({"held_out": ["north"], "points": {"final": {"finetune_epochs": 0}}})
      {'north': 'held out, so alone nothing was trained'}
    """
    if result.get("points", {}).get("final", {}).get("finetune_epochs"):
        return {}
    never = dict.fromkeys(result.get("never_trained", ()), NEVER_TRAINED)
    return never | dict.fromkeys(result.get("held_out", ()), HELD_OUT)


def judged_run(
    result: Mapping[str, Any],
    history: Sequence[Line],
    outputs: RunOutputs | None,
    tested_share: float = 0.25,
) -> JudgedRun:
    """What the verdict needs to know of a run."""
    scored = [line for line in history if line.get("pre_val", {}).get("mean") is not None]
    curve = tuple((int(line["round"]), float(line["pre_val"]["mean"])) for line in scored)
    val = result.get("val", scored[-1]["pre_val"] if scored else {})
    valued = int(val.get("clients", 0))
    return JudgedRun(outputs, val.get("mean"), curve, tested_share, untrained(result), valued)


class Verdict(NamedTuple):
    """An answer with what it rests on, for files and for people."""

    decision: dict[str, Any] | None  # of the recommended method; None if nothing can be judged
    others: dict[str, Any]  # of the other methods, corrected for their number
    clients: dict[str, Any]  # of each client with that method, corrected for their number
    sentences: list[str]  # the same in words, the most important first


def wording_of(metric: Metric, label: str = "", margin: float = 0.0) -> Wording:
    """How differences of a metric are spoken of.

    Args:
      metric: which.
      label: what the label is called, where it is a number.
      margin: what does not matter: in the label's unit, digits beyond two of it do not either.

    Example:
      >>> wording_of(METRICS["accuracy"]).amount(0.021)
      '2.1 points'
      >>> wording_of(METRICS["rmse"], "price", margin=970.0).amount(1921.32)
      '1921'
    """
    title = metric.title  # ROC AUC and R² stay as they are
    title = title[0].lower() + title[1:] if title[1].islower() else title
    if metric.percent:
        return Wording(title)
    named = f"{title} of {label}" if label and metric.name in IN_UNITS else title
    digits = 3
    if margin > 0 and metric.name in IN_UNITS:
        digits = max(0, 1 - math.floor(math.log10(margin)))
    return Wording(named, "", 1.0, digits)


def short_number(value: float) -> str:
    """A number for people, with about four digits.

    Example:
      >>> [short_number(v) for v in (0.8124, -23.456, 18230.7, 0.000123)]
      ['0.812', '-23.46', '18,231', '0.000123']
    """
    size = abs(value)
    if 0 < size < 0.01:
        return f"{value:.3g}"
    digits = 3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0
    return f"{value:,.{digits}f}"


def shown(metric: Metric, value: float) -> str:
    """A metric's value for people."""
    return f"{100 * value:.1f} %" if metric.percent else short_number(value)


def margin_of(metric: Metric, labels: np.ndarray) -> float:
    """Differences up to here do not matter, unless somebody says otherwise."""
    return usual_margin(labels) if metric.name in IN_UNITS else usual_margin()


def _paired(
    ours: Sequence[RunOutputs], alone: Sequence[RunOutputs], clients: Sequence[str]
) -> dict[str, list[PairedRows]]:
    """Both models' outputs on the same rows: of each client, one entry per run."""
    found: dict[str, list[PairedRows]] = {name: [] for name in clients}
    for mine, theirs in zip(ours, alone, strict=True):
        assert mine.last is not None and theirs.last is not None
        sizes = mine.test.n.tolist()
        parts = (mine.test.row, mine.test.labels, mine.last.test, theirs.last.test)
        each = zip(*(torch.split(part, sizes) for part in parts), strict=True)
        for name, (row, labels, said, other) in zip(clients, each, strict=True):
            found[name].append(
                PairedRows(
                    row.numpy(), labels.numpy(), said.double().numpy(), other.double().numpy()
                )
            )
    return found


def judge(
    runs: Mapping[str, Sequence[JudgedRun]],
    clients: Sequence[str],
    metric_name: str,
    *,
    margin: float | None = None,
    label: str = "",
    real: bool = False,
) -> Verdict:
    """The verdict on a comparison.

    The method that is recommended is the one that is best on validation rows; it is judged on test
    rows, against training alone on the same rows.

    Args:
      runs: of each method, one per repeat or seed, in the same order for all.
      clients: their names, in the order of the outputs.
      metric_name: what is judged by.
      margin: differences up to here do not matter; None takes the usual one.
      label: what the label is called, where it is a number.
      real: a real site played it, and cannot simply draw anew.
    """
    metric = METRICS[metric_name]
    methods = [m for m in runs if m not in YARDSTICKS]
    if not methods:
        return unjudged(ONLY_ALONE)
    if ALONE not in runs:
        return unjudged(
            "Whether federation helps these clients is not known: training alone (local) is not "
            "among these runs. See fedtailor compare."
        )
    kept = {m: [run.outputs for run in runs[m]] for m in (ALONE, *methods)}
    if any(said is None or said.last is None for all_of in kept.values() for said in all_of):
        return unjudged(
            "Whether federation helps cannot be judged: some of these runs kept no outputs on test "
            "rows (runs of versions before 0.3 did not): run them again."
        )
    if len({len(all_of) for all_of in kept.values()}) > 1:
        return unjudged(
            "Whether federation helps cannot be judged: not all methods were run equally often."
        )
    known: dict[str, list[RunOutputs]] = {
        m: [said for said in all_of if said is not None] for m, all_of in kept.items()
    }
    labels = torch.cat([said.test.labels for said in known[ALONE]]).numpy()
    chosen_margin = margin_of(metric, labels) if margin is None else margin
    asked: dict[str, Any] = {
        "metric": metric_name,
        "margin": chosen_margin,
        "tested_share": runs[ALONE][0].tested_share,
    }
    scoring = scoring_of(metric)
    best = _recommended(runs, methods, metric)
    decisions, each = {}, {}
    # clients are drawn anew with every seed; a gain is the mean of all
    none = {name: why for run in runs[ALONE] for name, why in run.untrained.items()}
    for m in methods:
        pairs = _paired(known[m], known[ALONE], clients)
        gains = measure_gains(pairs, scoring, none)
        decisions[m] = decide(pairs, scoring, method=m, gains=gains, **asked)
        if m == best:
            each = decide_clients(pairs, scoring, method=m, gains=gains, **asked)
    others = holm_corrected({m: d for m, d in decisions.items() if m != best})
    wording = wording_of(metric, label, chosen_margin)
    told = sentences(
        decisions[best],
        wording,
        clients=each,
        ends={
            f"with {best}": end_of_training(runs[best], metric, chosen_margin),
            "alone": end_of_training(runs[ALONE], metric, chosen_margin),
        },
        repeats=0 if real else len(runs[best]),
    )
    told += _of_others(others, wording)
    return Verdict(
        decisions[best].as_dict(),
        {m: d.as_dict() for m, d in others.items()},
        {name: d.as_dict() for name, d in each.items()},
        told,
    )


def unjudged(why: str) -> Verdict:
    """That nothing can be said, and why."""
    return Verdict(None, {}, {}, [why])


def _recommended(
    runs: Mapping[str, Sequence[JudgedRun]], methods: Sequence[str], metric: Metric
) -> str:
    """The method that is best on validation rows; the first where there are none."""
    values = {}
    for method in over_most(methods, lambda m: sum(run.valued for run in runs[m])):
        each = [math.nan if run.val is None else run.val for run in runs[method]]
        values[method] = float(np.mean(each))
    if not any(math.isfinite(v) for v in values.values()):
        return methods[0]
    return pick_method(values, higher_is_better=metric.higher_is_better)


def end_of_training(runs: Sequence[JudgedRun], metric: Metric, margin: float) -> TrainingEnd:
    """Whether the method's training had ended, by its mean curve on validation rows."""
    shared = set.intersection(*({number for number, _ in run.curve} for run in runs))
    rounds = sorted(shared)
    each = [[dict(run.curve)[number] for number in rounds] for run in runs]
    values = np.mean(each, axis=0).tolist() if rounds else []
    return training_end(rounds, values, higher_is_better=metric.higher_is_better, margin=margin)


def _of_others(others: Mapping[str, Decision], wording: Wording) -> list[str]:
    """What was found of the methods that are not recommended."""
    told = []
    for answer, says in (("helps", "better"), ("harms", "worse")):
        found = [
            f"{m} (by {wording.size(d.gain)})" for m, d in others.items() if d.answer == answer
        ]
        if found:
            told.append(
                f"Of the other methods, {says} than alone beyond chance: {', '.join(found)}."
            )
    return told


def constant_outputs(
    labels: Sequence[np.ndarray], tested: Sequence[int], task: TaskKind, classes: int
) -> torch.Tensor:
    """What one would say without any model: how common each class is, the mean, no ranking.

    Args:
      labels: of each client's training rows.
      tested: how many test rows each client has.
      task: what is learnt.
      classes: how many.

    Example:
      >>> said = constant_outputs([np.array([0, 0, 1])], [1], "classification", 2)
      >>> said.argmax(-1).tolist()
      [0]
    """
    out = []
    for own, rows in zip(labels, tested, strict=True):
        if task == "classification":
            counts = np.bincount(own, minlength=classes) + 1e-9
            said = np.log(counts / counts.sum())
        else:
            said = np.array([own.mean() if task == "regression" and len(own) else 0.0])
        out.append(np.tile(said, (rows, 1)))
    return torch.from_numpy(np.concatenate(out))


def beside_yardsticks(
    table: Mapping[str, Any],
    constant: Mapping[str, Any],
    metric: Metric,
    decision: Mapping[str, Any] | None,
) -> list[str]:
    """How the recommended method and training alone stand beside the other yardsticks.

    Args:
      table: a comparison's, by method.
      constant: the metrics of what one would say without any model.
      metric: what is judged by.
      decision: on the recommended method.
    """
    best = decision["method"] if decision else None
    named = [str(m) for m in (best, ALONE, CENTRALISED, LINEAR) if m in table]
    values = {m: table[m]["score"].get("mean", {}).get("mean") for m in named}
    told = [f"{_called(m)} {shown(metric, v)}" for m, v in values.items() if v is not None]
    without = constant.get(metric.name, {}).get("mean")
    if without is not None:
        told.append(f"{_called('')} {shown(metric, without)}")
    wording = wording_of(metric).metric
    reasons = set(((decision or {}).get("left_out") or {}).values())
    words = {HELD_OUT: "held out", NEVER_TRAINED: "never trained"}
    there = " and ".join(told for why, told in words.items() if why in reasons)
    over, then = (f"clients, also those {there}", ",") if there else ("clients", "")
    lines = [f"Mean {wording} over {over}: {'; '.join(told)}."] if told else []
    if best is None or ALONE not in table:
        return lines
    lows = [table[m]["score"].get("bottom5", {}).get("mean") for m in (best, ALONE)]
    if None not in lows:
        lines.append(
            f"The worst-off 5 % of {over}{then} have {shown(metric, lows[0])} with {best} and "
            f"{shown(metric, lows[1])} alone."
        )
    return lines


def without_federation(
    table: Mapping[str, Any],
    constant: Mapping[str, Any],
    metric: Metric,
    decision: Mapping[str, Any] | None,
    label: str = "",
) -> list[str]:
    """Whether a gain is had without the others, too: training alone may just have gone badly.

    Args:
      table: a comparison's, by method.
      constant: the metrics of what one would say without any model.
      metric: what is judged by.
      decision: on the recommended method; of none but a help is anything said.
      label: what the label is called, where it is a number.
    """
    if decision is None or decision["answer"] != "helps":
        return []
    sign = 1 if metric.higher_is_better else -1
    values = {str(m): row["score"].get("mean", {}).get("mean") for m, row in table.items()}
    simple = {LINEAR: values.get(LINEAR), "": constant.get(metric.name, {}).get("mean")}
    known = {m: sign * v for m, v in simple.items() if v is not None}
    best, alone = values.get(decision["method"]), values.get(ALONE)
    if not known or best is None or alone is None:
        return []
    name = max(known, key=known.__getitem__)
    gained, more = known[name] - sign * alone, sign * best - known[name]
    margin = decision["margin"]
    if gained <= margin:
        return []
    wording = wording_of(metric, label, margin)
    beside = "as good as that" if abs(more) <= margin else wording.beside(more, "that")
    return [
        f"{'Some' if more > margin else 'All'} of this gain may need no federation: on average "
        f"over clients, which is not tested, {_called(name)} is {wording.size(gained)} better than "
        f"this network alone, and {decision['method']} is {beside}. Look for a better training "
        "alone first (--tune 20, or another --model)."
    ]


def _called(yardstick: str) -> str:
    names = {
        ALONE: "alone",
        CENTRALISED: "one model on all rows in one place",
        LINEAR: "a linear model alone",
        "": "always the same answer",
    }
    return names.get(yardstick, yardstick)
