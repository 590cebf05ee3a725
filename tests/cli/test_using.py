"""The commands that use what finished runs kept: metrics, predict."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import fedtailor
from fedtailor.cli import main
from fedtailor.cli.showing import metric_value, score_note, undefined_lines
from fedtailor.results.folder import read_result
from fedtailor.results.metrics.named import METRICS

OLD = Path(__file__).resolve().parent.parent / "runs" / "v0_1"


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == code, err
    return out, err


def clinics(path: Path) -> Path:
    """Three sites, of which one has nobody ill."""
    draw = np.random.default_rng(0)
    rows = ["site,age,sex,ill"]
    for site in ("north", "south", "west"):
        for i in range(60):
            ill = i % 3 == 0 and site != "west"
            sex = "mf"[i % 2]
            rows.append(f"{site},{draw.normal() + 3 * ill:.3f},{sex},{('no', 'yes')[ill]}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("using")
    given = {"data": str(clinics(place / "own.csv")), "label": "ill", "client_column": "site"}
    fedtailor.compare("fedavg", rounds=2, repeats=2, yardsticks=False, out=place / "both", **given)
    return place / "both"


def test_the_positive_class_is_named_where_it_matters(
    comparison: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the alphabet 'sick' comes before 'well': a sensitivity of 100 % would be of the well."""
    told = "Positive, for sensitivity, is 'yes', which comes after 'no'"
    out, _ = said(capsys, "metrics", comparison, "--metric", "sensitivity", "--metric", "brier")
    assert told in " ".join(out.split())
    out, _ = said(capsys, "metrics", comparison, "--metric", "roc-auc")
    assert "Positive" not in out
    given = "--data", clinics(tmp_path / "own.csv"), "--label", "ill", "--client-column", "site"
    run = "run", "local", *given, "--rounds", "1", "--out"
    _, err = said(capsys, *run, tmp_path / "one", "--metric", "sensitivity")
    assert told in err
    _, err = said(capsys, *run, tmp_path / "two", "--class-weights", "1,5")
    assert "Positive" not in err
    assert "Rows count in the loss by class: 'no' 1, 'yes' 5." in err


def test_epochs_beside_steps_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = "run", "local", "--data", "digits", "--model", "linear", "--clients", "2", "--rounds", "1"
    _, err = said(capsys, *run, "--steps", "2", "--epochs", "3", "--out", tmp_path / "both")
    assert "steps is 2: each training takes so many random batches, not 3 passes" in err
    _, err = said(capsys, *run, "--steps", "2", "--out", tmp_path / "steps")
    assert "random batches" not in err


def test_every_metric_of_every_client_and_over_clients(
    comparison: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, "metrics", comparison / "runs" / "fedavg-seed0", "--json")
    found = json.loads(out)
    kept = read_result(comparison / "runs" / "fedavg-seed0")["metrics"]
    of = found["methods"]["fedavg"]["metrics"]
    assert list(of) == list(kept), "all that the task has"
    for name, metric in kept.items():
        assert of[name]["mean"] == pytest.approx(metric["mean"], abs=1e-6), name
        assert of[name]["per_client"].keys() == metric["per_client"].keys()


def test_over_repeats_means_are_given(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "metrics", comparison, "--metric", "accuracy", "--json")
    found = json.loads(out)["methods"]
    assert list(found) == ["local", "fedavg"]
    each = [read_result(comparison / "runs" / f"fedavg-seed{i}") for i in (0, 1)]
    mean = np.mean([one["metrics"]["accuracy"]["mean"] for one in each])
    assert found["fedavg"]["runs"] == 2
    assert found["fedavg"]["metrics"]["accuracy"]["mean"] == pytest.approx(mean, abs=1e-6)


def test_what_a_client_cannot_have_is_a_dash_with_the_reason(
    comparison: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said(capsys, "metrics", comparison, "--metric", "roc-auc", "--part", "val")
    assert "–" in next(line for line in out.splitlines() if line.strip().startswith("west"))
    assert "– roc-auc of west: only one class among its 9 validation rows" in out


def test_as_a_table_in_a_file(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "metrics", comparison, "--metric", "brier", "--csv", tmp_path / "m.csv")
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [r["name"] for r in rows if r["method"] == "local" and r["of"] == "client"] == [
        "north",
        "south",
        "west",
    ]
    mean = next(r for r in rows if r["method"] == "local" and r["name"] == "mean")
    each = [float(r["brier"]) for r in rows if r["method"] == "local" and r["of"] == "client"]
    assert float(mean["brier"]) == pytest.approx(np.mean(each))


def test_metrics_of_ones_own_and_of_the_best_round(comparison: Path) -> None:
    def certain(outputs: object, labels: object) -> float:
        if not (labels == 1).any():  # type: ignore[attr-defined]
            raise ValueError("nobody is ill")
        return float(outputs.softmax(-1).amax(-1).mean())  # type: ignore[attr-defined]

    run = comparison / "runs" / "fedavg-seed0"
    found = fedtailor.metrics(run, ["accuracy"], own={"certain": certain}, part="val", best=True)
    table = found.table()
    assert list(table.columns) == ["method", "client", "accuracy", "certain"]
    assert found["methods"]["fedavg"]["metrics"]["certain"]["undefined"] == {
        "west": "ValueError: nobody is ill"
    }
    assert table["certain"].isna().tolist() == [False, False, True]
    assert found["methods"]["fedavg"]["rounds"] == [read_result(run)["best_round"]]
    summary = found.summary()
    assert summary["metric"].tolist() == ["accuracy", "certain"]
    assert np.isnan(summary["worst"][1]), "of one's own, only the mean is known"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--metric", "rmse"), "metric 'rmse' is for regression, not classification"),
        (("--metric", "acuracy"), "did you mean 'accuracy'"),
        (("--part", "train"), "unknown part 'train'"),
        (("--csv", "/nowhere/m.csv"), "'/nowhere/m.csv' cannot be written"),
    ],
)
def test_metrics_that_cannot_be_had(
    arguments: tuple[str, ...],
    told: str,
    comparison: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, err = said(capsys, "metrics", comparison, *arguments, code=2)
    assert told in err and err.count("\n") == 1


@pytest.mark.parametrize("folder", ["finished", "comparison"])
def test_older_versions_kept_no_outputs(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, "metrics", OLD / folder, code=2)
    assert "FedTailor 0.1" in err and "kept since 0.3" in err and err.count("\n") == 1


def test_a_metric_of_ones_own_has_a_name_of_its_own(comparison: Path) -> None:
    with pytest.raises(fedtailor.BadInput, match="'accuracy', as ours is"):
        fedtailor.metrics(comparison, own={"accuracy": lambda outputs, labels: 1.0})


# --- predict ---


def test_predictions_as_a_table_with_every_probability_and_notes(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("age,sex\n0.1,m\n0.1,x\n90,f\n,m\n")
    run, made = comparison / "runs" / "local-seed0", tmp_path / "out.csv"
    given = ("predict", run, "--client", "north", tmp_path / "new.csv")
    out, err = said(capsys, *given, "--csv", made)
    assert out == "" and "2 of 4 rows" in err
    rows = list(csv.DictReader(made.open()))
    assert list(rows[0]) == [
        "example", "prediction", "probability of no", "probability of yes", "note"
    ]  # fmt: skip
    for row in rows:
        chances = {c: float(row[f"probability of {c}"]) for c in ("no", "yes")}
        assert sum(chances.values()) == pytest.approx(1)
        assert row["prediction"] == max(chances, key=chances.__getitem__)
    assert [bool(row["note"]) for row in rows] == [False, True, True, False]
    assert "'x'" in rows[1]["note"] and "90" in rows[2]["note"]
    out, _ = said(capsys, *given)
    assert "'x'" in out and "yes %" in out
    found = json.loads(said(capsys, *given, "--json")[0])
    assert list(found[0]) == ["example", "label", "probability", "probabilities", "note"]


def test_predictions_never_replace_what_they_are_made_for(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("age,sex\n0.1,m\n")
    run, new = comparison / "runs" / "local-seed0", tmp_path / "new.csv"
    _, err = said(capsys, "predict", run, "--client", "north", new, "--csv", new, code=2)
    assert "choose another" in err and new.read_text() == "age,sex\n0.1,m\n"


def test_a_comparison_has_many_models(comparison: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, "predict", comparison, "--client", "north", "new.csv", code=2)
    assert "is a comparison" in err and str(comparison / "runs" / "fedavg-seed0") in err


# --- words ---


def test_reasons_are_told_once_for_all_who_share_them() -> None:
    why = {"roc-auc": {"a": "one class", "b": "one class"}, "brier": {"a": "no rows"}}
    assert undefined_lines(why) == ["– roc-auc of a, b: one class", "– brier of a: no rows"]
    many = {"roc-auc": {f"c{i}": f"reason {i}" for i in range(20)}}
    assert undefined_lines(many)[-1] == "– and 8 reasons more: see --json"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("accuracy", 0.5, "accuracy 50.00 %"), ("rmse", 12345.6, "rmse 12,346"),
     ("roc-auc", 0.0051, "roc-auc 0.005"), ("r2", None, "r2 –")],
)  # fmt: skip
def test_a_metric_with_its_value(name: str, value: float | None, text: str) -> None:
    assert score_note(name, value) == text
    assert metric_value(METRICS[name], value) in text
