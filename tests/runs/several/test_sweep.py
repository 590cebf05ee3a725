"""Sweeps: a folder for each run, what they come to over seeds, and resumed without waste."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedtailor
from fedtailor import BadInput
from fedtailor.engine import Diverged
from fedtailor.runs.several.sweep import SweepPlan, interval_over_runs
from tests.runs.runlab import LOST, history, result, table

SMALL: dict[str, Any] = {
    "model": "mlp", "clients": 4, "rounds": 2, "batch": 50, "checkpoint_every": 1,
}  # fmt: skip


class PowerCut(BaseException):
    """Nobody catches it, as nobody does when a process is killed."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> fedtailor.SweepResult:
    """Cut off in the middle of its second round, and resumed."""
    folder = tmp_path_factory.mktemp("sweep") / "s"

    def cut(name: str, place: Path | None, done: int, runs: int) -> Any:
        def watch(line: dict[str, Any], rounds: int) -> None:
            if line["round"] == 2 and done == 1:
                raise PowerCut

        return watch

    with pytest.raises(PowerCut):
        fedtailor.sweep("fedavg", seeds=2, lr=[0.05, 0.1], out=folder, announce=cut, **SMALL)
    assert not (folder / "summary.json").exists()
    found = fedtailor.resume(folder)
    assert isinstance(found, fedtailor.SweepResult)
    return found


def test_every_rate_is_played_with_every_seed(swept: fedtailor.SweepResult) -> None:
    assert swept.folder is not None
    names = [f"fedavg-lr{lr}-seed{seed}" for lr in ("0.05", "0.1") for seed in (0, 1)]
    assert list(swept.runs) == names
    assert sorted(p.name for p in (swept.folder / "runs").iterdir()) == sorted(names)
    for name in names:
        folder = swept.folder / "runs" / name
        assert (folder / "report.html").exists() and len(history(folder)) == 2
    settings = fedtailor.run("fedavg", seed=1, lr=0.1, **SMALL)
    there = result(swept.folder / "runs" / "fedavg-lr0.1-seed1")
    assert there["seed"] == 1
    assert there["score"]["mean"] == pytest.approx(settings["score"]["mean"], abs=1e-3)


def test_the_summary_is_over_seeds(swept: fedtailor.SweepResult) -> None:
    assert swept.folder is not None
    assert json.loads((swept.folder / "summary.json").read_text()) == json.loads(json.dumps(swept))
    assert swept["seeds"] == [0, 1] and swept["method"] == "fedavg"
    for row in swept["rates"]:
        scores = [swept.runs[name]["score"]["mean"] for name in row["runs"]]
        assert row["score"]["mean"] == pytest.approx(np.mean(scores), abs=1e-6)
        low, high = stats.t.interval(0.95, 1, np.mean(scores), stats.sem(scores))
        assert row["interval"] == pytest.approx((max(low, 0), min(high, 1)), abs=1e-5)
        vals = [swept.runs[name]["val"]["mean"] for name in row["runs"]]
        assert row["val"] == pytest.approx(np.mean(vals), abs=1e-6)
    assert swept["chosen"] == max(swept["rates"], key=lambda row: row["val"])["lr"]
    assert len(swept.table()) == 2


def test_nothing_is_played_twice(swept: fedtailor.SweepResult) -> None:
    assert swept.folder is not None
    before = {p: p.stat().st_mtime_ns for p in swept.folder.glob("runs/*/result.json")}
    assert fedtailor.resume(swept.folder) == swept
    assert before == {p: p.stat().st_mtime_ns for p in swept.folder.glob("runs/*/result.json")}


def test_a_sweep_is_no_run(swept: fedtailor.SweepResult) -> None:
    assert swept.folder is not None
    with pytest.raises(BadInput, match="several runs of a sweep: name one of them"):
        fedtailor.metrics(swept.folder)
    with pytest.raises(BadInput, match="earlier run"):
        fedtailor.sweep("fedavg", seeds=2, out=swept.folder, **SMALL)


def test_without_a_folder_models_are_there_still() -> None:
    found = fedtailor.sweep("fedavg", seeds=2, **SMALL | {"rounds": 1})
    assert list(found.runs) == ["fedavg-seed0", "fedavg-seed1"]
    assert type(found.runs["fedavg-seed1"].model("client-3")).__name__ == "Sequential"


def test_what_diverges_is_told_and_not_chosen() -> None:
    found = fedtailor.sweep("fedavg", lr=[0.1, 1e30], **SMALL)
    good, bad = found["rates"]
    assert good["failed"] == {} and "diverged" in bad["failed"]["fedavg-lr1e+30-seed0"]
    assert bad["score"] is None and found["chosen"] == 0.1
    with pytest.raises(Diverged):
        fedtailor.sweep("fedavg", lr=[1e29, 1e30], **SMALL)


def test_a_rate_that_loses_a_client_is_told_and_not_chosen(tmp_path: Path) -> None:
    rows = table(tmp_path / "rows.csv", {"a": 60, "b": 60, "c": 60}, huge="c")
    found = fedtailor.sweep("fedavg", data=str(rows), lr=[1e-30, 0.05], **LOST)
    assert found["chosen"] == 1e-30
    assert [row["diverged"] for row in found["rates"]] == [{}, {"c": 1}]
    assert [row["valued"] for row in found["rates"]] == [3, 2]


def test_an_interval_needs_two_runs() -> None:
    assert interval_over_runs([0.5]) is None
    assert interval_over_runs([0.5, 0.5]) == (0.5, 0.5)


def test_an_interval_ends_where_the_metric_does() -> None:
    from fedtailor.results.metrics.named import METRICS

    low, high = interval_over_runs([0.97, 1.0], bounds=METRICS["accuracy"].bounds) or (0, 0)
    assert high == 1.0 and 0 <= low < 0.97
    low, high = interval_over_runs([0.1, 1.0], bounds=METRICS["rmse"].bounds) or (0, 0)
    assert low == 0.0 and high > 1
    low, high = interval_over_runs([0.1, 1.0], bounds=METRICS["r2"].bounds) or (0, 0)
    assert low < -1 and high == 1.0


@pytest.mark.parametrize(
    ("seeds", "rates", "why"),
    [(0, [], "seeds is 0"), (1, [0.1, "0.10"], "lr 0.1 is named twice"), (1, ["x"], "lr' is 'x'")],
)
def test_bad_input_is_one_line(seeds: int, rates: list[Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        SweepPlan("fedavg", seeds, rates, SMALL, {})
