"""Tables in a terminal: by the run's metric, best first whichever way it points."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from fedtailor.cli.showing import comparison_table, result_table


def lines(table: Table) -> list[str]:
    console = Console(width=200)
    with console.capture() as said:
        console.print(table)
    return [line.strip() for line in said.get().splitlines() if line.strip()]


def row(mean: float | None, better: int = 0) -> dict[str, Any]:
    keys = ("mean", "std", "bottom5", "top5")
    score = {} if mean is None else {k: {"mean": mean, "std": 0.001} for k in keys}
    return {
        "score": score,
        "better_off": better,
        "gain": {"a": 0.0, "b": 0.0},
        "bytes": {"up": 1000, "down": 0},
        "seconds": 1.0,
    }


def summary(metric: str, table: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metric": metric, "seeds": [0], "table": table, "constant": {}} | more


@pytest.mark.parametrize(
    ("metric", "order"),
    [("roc-auc", ["fedavg", "local", "ditto"]), ("rmse", ["local", "fedavg", "ditto"])],
)
def test_the_best_method_stands_first(metric: str, order: list[str]) -> None:
    table = {"local": row(0.25), "fedavg": row(0.75), "ditto": row(None)}
    said = lines(comparison_table(summary(metric, table)))
    first = [line.split()[0] for line in said if line.split()[0] in table]
    assert first == order, "and last whose clients have no value"
    assert "0.750" in next(line for line in said if line.startswith("fedavg"))
    assert ("less is better" in " ".join(said)) == (metric == "rmse")


def test_yardsticks_are_marked_and_no_model_at_all_stands_last() -> None:
    constant = {"accuracy": {"mean": 0.97, "std": 0.0, "bottom5": 0.9, "top5": 1.0}}
    table = {"local": row(0.5), "centralised": row(0.6), "linear": row(0.4), "fedavg": row(0.55)}
    said = lines(comparison_table(summary("accuracy", table, constant=constant)))
    marked = [line.split()[0] for line in said if line.split()[1:2] == ["*"]]
    assert marked == ["centralised", "local", "linear"]
    rows = [line for line in said if line.endswith(("1.0", "–"))]
    assert rows[-1].startswith("always the same answer *") and "97.00" in rows[-1]


def test_what_more_rounds_would_have_helped_is_marked() -> None:
    ends = {"fedavg": True, "local": False, "ditto": None}
    table = {name: row(0.5) | {"still_rising": end} for name, end in ends.items()}
    said = lines(comparison_table(summary("accuracy", table)))
    marked = [line.split()[0] for line in said if "50.00 ↗" in line]
    assert marked == ["fedavg"] and "↗: still better" in " ".join(said)
    over = lines(comparison_table(summary("accuracy", {"local": row(0.5)})))
    assert "↗" not in " ".join(over)


def test_several_runs_are_shown_with_their_spread() -> None:
    said = lines(comparison_table(summary("mae", {"local": row(12.5)}, seeds=[0, 1, 2])))
    assert "12.50 ± 0.001" in next(line for line in said if line.startswith("local"))
    assert "over 3 runs" in " ".join(said)


def test_a_runs_points_go_by_its_metric() -> None:
    point = {"mean": 1234.5, "weighted": 2.0, "std": 0.5, "bottom5": 3.0, "top5": 1.0, "worst": 3.0}
    result = {
        "method": "fedavg",
        "data": "prices",
        "metric": "rmse",
        "points": {"pre": point, "post": {}, "final": {"finetune_epochs": 0}},
        "score": point,
        "best": {},
        "best_round": None,
    }
    said = lines(result_table(result))
    assert said[1].startswith("RMSE")
    final = next(line for line in said if line.startswith("final"))
    assert final.split()[1:4] == ["1,234", "2.000", "0.500"]
    assert "–" in next(line for line in said if line.startswith("post"))
