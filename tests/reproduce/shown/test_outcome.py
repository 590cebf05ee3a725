"""What runs come to beside the paper: means, differences, orders."""

from __future__ import annotations

import csv
import io
import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from fedtailor.reproduce.declared.measures import MEASURES, Value
from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.plan import plan_runs
from fedtailor.reproduce.shown.latex import as_latex, latex
from fedtailor.reproduce.shown.outcome import is_outside, mean_over_seeds, outcome, tau
from fedtailor.reproduce.shown.writing import cell_text

PlayedRuns = tuple[Path, dict[str, dict[str, Any]]]


def test_tau_by_hand() -> None:
    # of three pairs two stand in the same order, one does not: (2 - 1) / 3
    assert tau([(1, 1), (2, 3), (3, 2)]) == {"tau": pytest.approx(1 / 3, abs=1e-6), "rows": 3}
    assert tau([(1, 3), (2, 2), (3, 1)])["tau"] == -1
    assert tau([(1, 1)]) == {"tau": None, "rows": 1}
    assert tau([(1, 1), (1, 2)])["tau"] is None  # ours are all the same: no order


def test_outside_is_more_than_two_standard_deviations() -> None:
    assert is_outside(0.2, 0.1) is False
    assert is_outside(-0.21, 0.1) is True
    assert is_outside(0.2, None) is None
    assert is_outside(None, 0.1) is None


def test_over_seeds_by_hand() -> None:
    found = mean_over_seeds([Value(1.0, 0.0, 4.0), Value(3.0, 2.0, 6.0)])
    assert found == {"mean": 2.0, "std": pytest.approx(2**0.5), "low": 1.0, "high": 5.0}
    assert mean_over_seeds([Value(1.0)])["std"] is None
    endless = mean_over_seeds([Value(inf), Value(inf)])
    assert (endless["mean"], endless["std"]) == (inf, None)


def test_measures_read_what_they_say() -> None:
    scores = {"mean": 0.5, "weighted": 0.6, "bottom5": 0.1, "top5": 0.9}
    result = {
        "accuracy": scores, "score": {"mean": 0.55, "weighted": 0.45},
        "best": {"mean": 0.7, "weighted": 0.65}, "global": {},
        "points": {"post": {"mean": 0.8}},
        "epsilon": {"max": 3.5}, "participation_gap": 0.05,
        "bytes": {"up": 1_500_000, "down": 500_000}, "seconds": 12.0,
        "train_seconds": 6.0, "rounds": 4, "parameters": 125_000,
    }  # fmt: skip
    history = [
        {"round": 1, "cohort": [0, 1], "pre": {"mean": 0.4}},
        {"round": 2, "cohort": [0]},
        {"round": 3, "cohort": [2], "pre": {"mean": 0.3}},
    ]
    expected = {
        "last": Value(50), "best": Value(70), "best-weighted": Value(65), "best-test": Value(40),
        "weighted": Value(60), "score": Value(55), "score-weighted": Value(45),
        "last-groups": Value(50, 10, 90), "global-groups": None, "global": None, "post": Value(80),
        "gap": Value(5), "epsilon": Value(3.5), "megabytes": Value(2.0), "seconds": Value(12.0),
        "megabytes-per-round": Value(0.5), "minutes-per-round": Value(0.025),
        "models-per-round": Value(1.0),
    }  # fmt: skip
    assert set(expected) == set(MEASURES)
    for name, value in expected.items():
        found = MEASURES[name].read(result, history)
        assert found == (value and pytest.approx(value)), name


def test_an_epsilon_without_noise_is_infinite_and_without_privacy_there_is_none() -> None:
    read = MEASURES["epsilon"].read
    assert read({"epsilon": {"max": None}}, []) == Value(inf)
    assert read({"epsilon": None}, []) is None


def test_the_table_is_that_of_the_runs(played: PlayedRuns) -> None:
    out, found = played
    table = found["tiny/table1"]
    assert json.loads((out / "tiny/table1/table.json").read_text()) == table
    cells = {(c["row"], c["column"]): c for c in table["cells"]}
    cell = cells["FedAvg", "iid"]
    results = [
        json.loads((out / "runs" / seed["run"] / "result.json").read_text())
        for seed in cell["seeds"]
    ]
    each = [100 * r["accuracy"]["mean"] for r in results]
    assert [s["main"] for s in cell["seeds"]] == pytest.approx(each)
    assert cell["mean"] == pytest.approx(sum(each) / 2)
    assert cell["difference"] == pytest.approx(cell["mean"] - 50)
    assert cell["outside"] is False  # the paper's ±100 holds everything
    assert cells["FedAvg", "two classes"]["outside"] is True  # ±0.01 does not
    assert cells["Ditto", "iid"]["outside"] is None  # the paper has no ±
    assert table["scale"] == ""
    assert table["as_in_paper"]
    assert table["complete"]
    assert table["choices"][0]["reason"] == "the paper does not say"
    assert table["tau"]["iid"]["rows"] == 2


def test_runs_of_two_experiments_are_shared(played: PlayedRuns) -> None:
    out, found = played
    # FedAvg twice and Ditto once, two seeds each; the figure's are those of the table
    assert len(list((out / "runs").iterdir())) == 6
    mine = {s["run"] for s in found["tiny/fig1"]["cells"][0]["seeds"]}
    assert mine == {s["run"] for s in found["tiny/table1"]["cells"][0]["seeds"]}


def test_models_are_dropped_and_the_rest_kept(played: PlayedRuns) -> None:
    out, _ = played
    for run in (out / "runs").iterdir():
        names = {p.name for p in run.iterdir()}
        assert not names & {"models", "checkpoint", "general", "general.safetensors"}
        assert {"result.json", "history.jsonl", "clients.csv", "config.toml"} <= names


def test_csv_has_a_line_per_cell(played: PlayedRuns) -> None:
    out, found = played
    rows = list(csv.DictReader(io.StringIO((out / "tiny/table1/table.csv").read_text())))
    assert len(rows) == len(found["tiny/table1"]["cells"]) == 3
    first = rows[0]
    assert (first["row"], first["column"], first["paper_mean"]) == ("FedAvg", "iid", "50.0")
    assert first["paper"] == "50.00±100"
    assert float(first["mean"]) == found["tiny/table1"]["cells"][0]["mean"]


def test_latex_is_balanced_and_marks_what_is_apart(played: PlayedRuns) -> None:
    out, found = played
    text = (out / "tiny/table1/table.tex").read_text()
    assert text.count(r"\begin{") == text.count(r"\end{")
    assert r"Accuracy (\%) \& more" in text
    assert text.count("$^{\\dagger}$") == 1
    rows = [line for line in text.splitlines() if line.startswith(("FedAvg", "Ditto"))]
    assert all(line.count("&") - line.count(r"\&") == 4 for line in rows)
    cells = found["tiny/table1"]["cells"]
    assert latex(cell_text(cells[0])) in text
    assert "NOT AS IN THE PAPER" not in text
    marked = as_latex(found["tiny/table1"] | {"scale": "small scale"})
    assert "NOT AS IN THE PAPER: small scale" in marked


def test_pages_and_pictures_lie_there(played: PlayedRuns) -> None:
    out, found = played
    page = (out / "tiny/table1/index.html").read_text()
    for text in ("50.00±100", "the paper does not say", "report-iid.html", "▲"):
        assert text in page
    assert "Not as in the paper" not in page
    assert (out / "tiny/table1/report-iid.html").exists()
    assert found["tiny/fig1"]["pictures"] == ["curves.png"]
    assert all((out / f"tiny/fig1/curves.{kind}").exists() for kind in ("png", "svg", "pdf"))


@pytest.mark.parametrize("part", ["pre_val", "pre"])
def test_a_cell_says_whether_more_rounds_would_have_helped(
    experiments: Any, tmp_path: Path, part: str
) -> None:
    (table,) = plan_runs([experiments["table1"]], Scale(seeds=1), tmp_path).parts
    curves = {"rises": lambda r: r / 40, "ended": lambda r: 0.5, "short": lambda r: r / 40}
    for (_, (task,)), (name, curve) in zip(table.cells, curves.items(), strict=True):
        rounds = range(1, 5 if name == "short" else 31)
        other = {"pre": {"mean": 0.5}}  # validation rows go first
        lines = [other | {"round": r, "cohort": [], part: {"mean": curve(r)}} for r in rounds]
        task.folder.mkdir(parents=True)
        found = {"accuracy": {"mean": 0.5}, "device": "cpu", "version": "0", "seconds": 1}
        found |= {"per_client": {"a": 0.4, "b": 0.6}}
        found |= {"rounds": 40, "stopped_early": len(rounds), "metric": "accuracy"}
        (task.folder / "result.json").write_text(json.dumps(found))
        (task.folder / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    cells = outcome(table, {}, "")["cells"]
    assert [c["still_rising"] for c in cells] == [True, False, None]
    assert [c["seeds"][0]["rounds"] for c in cells] == [30, 30, 4]
    assert cells[0]["seeds"][0]["per_client"] == [0.4, 0.6]
