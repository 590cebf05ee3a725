"""Curves behind the metrics, pooled over clients and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results import diagnostics
from fedtailor.results.collect import CollectedRuns, collect
from fedtailor.results.diagnostics import PooledRows, diagnostics_of, risk_groups, rows_of_all
from fedtailor.results.metrics.curves import kaplan_meier, risk_thirds, rows_at_risk
from fedtailor.results.outputs import read_outputs, save_outputs
from tests.report import synthetic

OFF = {"local": 2.0, "fedavg": 0.5}


def made(folder: Path, task: str, **settings: int) -> CollectedRuns:
    return collect([synthetic.make_tested(folder, task, OFF, clients=3, **settings)])


def test_kaplan_meier_with_ties_and_rows_lost_from_sight() -> None:
    """Six rows. At 2: two events of 6 at risk, 4/6. The one lost at 2 still counts there, not after
    it. At 5: one event of 3 at risk, 4/6 · 2/3 = 4/9. At 8 the last one is lost from sight."""
    time = np.array([2.0, 2, 2, 5, 6, 8])
    event = np.array([1, 1, 0, 1, 0, 0])
    wanted = [[0, 1], [2, 4 / 6], [5, 4 / 9], [8, 4 / 9]]
    np.testing.assert_allclose(kaplan_meier(time, event), wanted)
    assert rows_at_risk(time, np.array([0, 2, 2.1, 5, 8, 9])).tolist() == [6, 6, 3, 3, 1, 0]


def test_kaplan_meier_at_its_limits() -> None:
    nobody = kaplan_meier(np.array([3.0, 4]), np.zeros(2))
    assert nobody.tolist() == [[0, 1], [4, 1]]
    everybody = kaplan_meier(np.array([3.0, 4]), np.ones(2))
    assert everybody.tolist() == [[0, 1], [3, 0.5], [4, 0]]
    assert kaplan_meier(np.zeros(0), np.zeros(0)).tolist() == [[0, 1]]


def test_thirds_keep_equal_risks_together() -> None:
    assert risk_thirds(np.array([3.0, 1, 2])).tolist() == [2, 0, 1]
    assert risk_thirds(np.zeros(5)).tolist() == [1] * 5
    assert risk_thirds(np.array([7.0])).tolist() == [1]


def test_risk_is_compared_within_a_client_only() -> None:
    """The second client's numbers are all higher, but its lowest third is still a lowest third."""
    labels = np.array([[9.0, 1], [5, 1], [1, 1], [8, 1], [4, 1], [2, 1]])
    risk = np.array([0.0, 1, 2, 100, 101, 102])[:, None]
    _, groups = risk_groups(PooledRows(risk, labels, np.array([0, 0, 0, 1, 1, 1])))
    assert [group.name for group in groups] == ["low risk", "middle", "high risk"]
    assert groups[0].steps.tolist() == [[0, 1], [8, 0.5], [9, 0]]
    assert groups[2].steps.tolist() == [[0, 1], [1, 0.5], [2, 0]]
    assert [int(group.at_risk[0]) for group in groups] == [2, 2, 2]


def test_moments_are_round_and_few() -> None:
    for end in (0.3, 1.0, 58.8, 3650.0):
        labels = np.array([[end, 1.0]])
        moments, _ = risk_groups(PooledRows(np.zeros((1, 1)), labels, np.zeros(1, int)))
        assert moments[0] == 0 and moments[-1] <= end * 1.001
        assert 3 <= len(moments) <= diagnostics.MOMENTS


def test_rows_of_all_runs_are_taken_together(tmp_path: Path) -> None:
    collection = made(tmp_path / "c", "regression", seeds=2)
    one, two = (rows_of_all(collection, runs=runs)[0] for runs in (1, None))
    assert len(two.labels) == 2 * len(one.labels)
    assert set(one.client.tolist()) == {0, 1, 2}


def test_the_page_has_the_area_below_the_curve(tmp_path: Path) -> None:
    collection = made(tmp_path / "c", "classification")
    found = diagnostics_of(collection)
    assert found is not None
    for number, contender in enumerate(collection.contenders):
        over_all_rows = contender.first.result["metrics"]["roc-auc"]["weighted"]
        (curve,) = found["roc"][number]
        assert curve["area"] == pytest.approx(over_all_rows, abs=1e-5)
        assert len(curve["clients"]) == 3
    assert found["classes"] == ["ill"]
    assert sum(rows for *_, rows in found["calibration"][0]) == sum(
        int(row["test"]) for row in collection.contenders[0].first.clients.values()
    )


def test_residuals_are_predicted_less_true(tmp_path: Path) -> None:
    rows = PooledRows(np.array([[3.0], [5.0]]), np.array([1.0, 5.0]), np.zeros(2, int))
    low, *_, high = diagnostics.residual_quantiles(rows)
    assert 0 <= low < high <= 2
    found = diagnostics_of(made(tmp_path / "c", "regression"))
    assert found is not None
    assert [one["client"] for one in found["residuals"][1]["spread"]] == [0, 1, 2]


def test_runs_without_outputs_have_none(tmp_path: Path) -> None:
    collection = collect([synthetic.make_run(tmp_path / "r", "fedavg")])
    assert diagnostics_of(collection) is None
    with pytest.raises(BadInput, match="a run of fedavg has no outputs on test rows"):
        rows_of_all(collection)


def test_rows_of_which_a_model_says_no_number_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collection = made(tmp_path / "c", "classification")
    folder = collection.contenders[0].first.folder
    found = read_outputs(folder)
    assert found is not None and found.last is not None
    rows = len(found.last.test)
    found.last.test[0] = np.nan
    save_outputs(folder, found)
    told = rows_of_all(collection)[0]
    assert (told.lost, len(told.labels)) == (1, rows - 1)
    assert f"1 of the {rows} test rows of local" in caplog.text
    found.last.test[:] = np.inf
    save_outputs(folder, found)
    with pytest.raises(BadInput, match=f"local diverged: their outputs on all {rows} test rows"):
        rows_of_all(collection)
