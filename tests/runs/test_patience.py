"""Runs that stop when validation rows show no gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import BadInput

pytestmark = pytest.mark.usefixtures("without_pictures")

SMALL: dict[str, Any] = {"model": "linear", "clients": 3, "rounds": 6, "batch": 50, "lr": 0.0}
TIMES = ("seconds", "train_seconds", "seconds_by_phase", "preparing_seconds", "peak_memory_bytes")


def test_a_run_without_gain_stops_and_says_so() -> None:
    result = fedtailor.run("fedavg", **SMALL, patience=2)
    assert result["stopped_early"] == len(result.history) == 3
    assert result["rounds"] == 6


def test_a_run_without_patience_plays_all_rounds() -> None:
    result = fedtailor.run("fedavg", **SMALL)
    assert (result["stopped_early"], len(result.history)) == (None, 6)


def test_patience_counts_evaluated_rounds() -> None:
    result = fedtailor.run("fedavg", **SMALL, patience=1, eval_every=2)
    assert result["stopped_early"] == 4


def test_a_resumed_run_stops_where_it_would_have(tmp_path: Path) -> None:
    settings = SMALL | {"batch": 10, "lr": 0.5, "rounds": 12, "patience": 2}
    settings |= {"checkpoint_every": 1}
    whole = fedtailor.run("fedavg", **settings)
    assert whole["stopped_early"]

    def kill(line: dict[str, Any], rounds: int) -> None:
        if line["round"] == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fedtailor.run("fedavg", **settings, out=tmp_path / "run", watch=kill)
    resumed = fedtailor.resume(tmp_path / "run")
    assert {k: v for k, v in resumed.items() if k not in TIMES} == {
        k: v for k, v in whole.items() if k not in TIMES
    }


def test_a_comparison_takes_runs_that_stopped_at_different_rounds() -> None:
    settings = SMALL | {"lr": 0.5, "rounds": 12, "patience": 1}
    found = fedtailor.compare("fedavg", **settings, seeds=3, yardsticks=False)
    ends = [len(lines) for (method, _), lines in found.history.items() if method == "fedavg"]
    assert len(set(ends)) > 1
    assert len(found["table"]["fedavg"]["curve"]) == max(ends)


def test_without_validation_rows_there_is_no_patience() -> None:
    with pytest.raises(BadInput, match="val is 0"):
        fedtailor.run("fedavg", **SMALL, patience=2, val=0.0)
