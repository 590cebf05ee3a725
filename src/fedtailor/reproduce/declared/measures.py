"""What a cell shows, read from what a run kept: per cent, unless its unit says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.plain_text import parse_json

Result = dict[str, Any]
History = list[dict[str, Any]]


class Value(NamedTuple):
    """What a run has to say for a cell; `low` and `high` are the 5 % of clients at either end."""

    main: float
    low: float | None = None
    high: float | None = None


class Measure(NamedTuple):
    """A way to read a run."""

    read: Callable[[Result, History], Value | None]  # None where the run has no such number
    meaning: str  # in words
    unit: str = "%"  # of the number


def _mean(scores: dict[str, Any], key: str = "mean") -> Value | None:
    return Value(100 * scores[key]) if scores.get(key) is not None else None


def _groups(scores: dict[str, Any]) -> Value | None:
    if not scores:
        return None
    return Value(*(100 * scores[k] for k in ("mean", "bottom5", "top5")))


def _best_test(result: Result, history: History) -> Value | None:
    seen = [line["pre"]["mean"] for line in history if line.get("pre")]
    return Value(100 * max(seen)) if seen else None


def _epsilon(result: Result, history: History) -> Value | None:
    spent = result.get("epsilon")
    if not spent:
        return None  # no DP-SGD
    # without noise there is no guarantee: a result has no word for infinity
    return Value(inf if spent["max"] is None else spent["max"])


def _sent(result: Result) -> int:
    return int(result["bytes"]["up"] + result["bytes"]["down"])


def rounds_played(result: Result) -> int:
    """That were played: patience may have ended it."""
    return int(result.get("stopped_early") or result["rounds"])


def _models(result: Result, history: History) -> Value | None:
    turns = sum(len(line["cohort"]) for line in history)
    model = 4 * result["parameters"]  # bytes
    return Value(_sent(result) / model / turns) if turns else None


MEASURES: dict[str, Measure] = {
    "last": Measure(lambda r, h: _mean(r["accuracy"]), "mean client accuracy, last round"),
    "score": Measure(
        lambda r, h: _mean(r.get("score", {})), "mean over clients by the run's metric, last round"
    ),
    "score-weighted": Measure(
        lambda r, h: _mean(r.get("score", {}), "weighted"),
        "over all test rows by the run's metric, last round",
    ),
    "best": Measure(
        lambda r, h: _mean(r["best"]), "mean client accuracy of the round best on validation rows"
    ),
    "best-weighted": Measure(
        lambda r, h: _mean(r["best"], "weighted"),
        "accuracy over all test rows, of the round best on validation rows",
    ),
    "best-test": Measure(
        _best_test, "mean client accuracy of the round best on the test rows themselves"
    ),
    "weighted": Measure(
        lambda r, h: _mean(r["accuracy"], "weighted"), "accuracy over all test rows, last round"
    ),
    "last-groups": Measure(
        lambda r, h: _groups(r["accuracy"]),
        "mean client accuracy, last round (bottom 5 % / top 5 %)",
    ),
    "global-groups": Measure(
        lambda r, h: _groups(r["global"]),
        "the global model's mean accuracy, last round (bottom 5 % / top 5 %)",
    ),
    "global": Measure(
        lambda r, h: _mean(r["global"]), "the global model's mean accuracy, last round"
    ),
    "post": Measure(
        lambda r, h: _mean(r["points"]["post"]), "mean accuracy just after local training"
    ),
    "gap": Measure(
        lambda r, h: _mean(r, "participation_gap"),
        "accuracy of clients that train minus that of those held out",
        "points",
    ),
    "epsilon": Measure(_epsilon, "largest ε of a client", ""),
    "megabytes": Measure(
        lambda r, h: Value(_sent(r) / 1e6), "bytes up and down, all clients and rounds", "MB"
    ),
    "seconds": Measure(lambda r, h: Value(r["seconds"]), "time of the run", "s"),
    "megabytes-per-round": Measure(
        lambda r, h: Value(_sent(r) / 1e6 / rounds_played(r)),
        "bytes up and down, all clients, per round",
        "MB",
    ),
    "minutes-per-round": Measure(
        lambda r, h: Value(r["train_seconds"] / 60 / rounds_played(r)),
        "time of training per round, tests left out",
        "min",
    ),
    "models-per-round": Measure(_models, "up and down per client and round, in models", "models"),
}


def measure_of(metric: str) -> Measure:
    """A measure by its name: one of `MEASURES`, or `client:NAME`, what one client alone has.

    Raises:
      BadInput: there is none of that name.

    Example:
      >>> measure_of("client:va").read({"per_client": {"va": 0.75}}, [])
      Value(main=75.0, low=None, high=None)
    """
    kind, colon, client = metric.partition(":")
    if colon and kind == "client" and client:
        return Measure(
            lambda r, h: _mean(r["per_client"], client), f"of {client} alone, last round"
        )
    if metric not in MEASURES:
        raise unknown("metric", metric, [*MEASURES, "client:NAME"])
    return MEASURES[metric]


def result_and_history(folder: Path) -> tuple[Result, History]:
    """A finished run's result and history."""
    try:
        result = parse_json((folder / "result.json").read_text(encoding="utf-8"))
        rows = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        return result, [parse_json(row) for row in rows]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"run '{folder}' cannot be read ({error}): remove it to repeat it") from None
