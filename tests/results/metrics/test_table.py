"""The table of metrics: each client as if alone, and all rows as if one client's."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.core.form import TaskKind
from fedtailor.results.metrics import table
from fedtailor.results.metrics.named import METRICS, Metric, metrics_of
from fedtailor.results.metrics.table import table_of_metrics, table_of_own

N = {"a": 30, "b": 0, "c": 12, "d": 1, "e": 25}
ROWS = sum(N.values())


def flat(task: TaskKind, classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if task == "classification":
        return rng.normal(size=(ROWS, classes)), rng.integers(0, classes, ROWS)
    outputs = rng.normal(size=(ROWS, 1))
    if task == "regression":
        return outputs, rng.normal(size=ROWS)
    return outputs, np.stack([rng.integers(1, 20, ROWS), rng.integers(0, 2, ROWS)], 1) * 1.0


@pytest.mark.parametrize("block", [1, 200, 2**22])
@pytest.mark.parametrize(
    ("task", "classes"),
    [("classification", 2), ("classification", 4), ("regression", 0), ("survival", 0)],
)
def test_each_client_and_all_rows(
    task: TaskKind, classes: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "BLOCK", block)
    outputs, labels = flat(task, classes)
    found = table_of_metrics(outputs, labels, N, task)
    assert list(found) == metrics_of(task, classes)
    starts = dict(zip(N, np.cumsum([0, *N.values()]), strict=False))
    for name, row in found.items():

        def alone(some: slice, name: str = name) -> float:
            said, truth = torch.from_numpy(outputs[some]), torch.from_numpy(labels[some])
            return float(METRICS[name].function(said, truth, torch.ones(len(said))))

        assert row["weighted"] == pytest.approx(alone(slice(None)), abs=1e-12)
        assert list(row["per_client"]) == list(N)
        for client, value in row["per_client"].items():
            expected = alone(slice(starts[client], starts[client] + N[client]))
            assert value == (None if np.isnan(expected) else pytest.approx(expected, abs=1e-12))
            assert (client in row["undefined"]) == (value is None)
        values = [v for v in row["per_client"].values() if v is not None]
        assert row["mean"] == pytest.approx(np.mean(values))
        assert row["clients"] == len(values) < len(N)
        assert row["undefined"]["b"] == "no test rows"
        assert row["worst"] == (max, min)[METRICS[name].higher_is_better](values)
    json.dumps(found, allow_nan=False)


def test_only_what_is_asked_for() -> None:
    outputs, labels = flat("classification", 2)
    assert list(table_of_metrics(outputs, labels, N, "classification", ["brier"])) == ["brier"]
    with pytest.raises(BadInput, match="not classification"):
        table_of_metrics(outputs, labels, N, "classification", ["rmse"])


def test_a_metric_of_ones_own() -> None:
    def errors(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return ((outputs.argmax(-1) != labels) * weight).sum(-1).double()

    own = Metric("errors", errors, ("classification",), higher_is_better=False, title="Errors")
    outputs, labels = flat("classification", 3)
    found = table_of_metrics(outputs, labels, N, "classification", [own, "accuracy"])
    assert found["errors"]["weighted"] == (outputs.argmax(1) != labels).sum()
    assert list(found) == ["errors", "accuracy"]


def test_a_diverged_model_is_named_and_not_counted() -> None:
    outputs, labels = flat("regression")
    outputs[30:32] = np.inf  # rows of client c
    found = table_of_metrics(outputs, labels, N, "regression", ["mae"], part="val")["mae"]
    assert found["undefined"] == {
        "b": "no val rows",
        "c": "its model's outputs are not finite numbers",
    }
    assert found["clients"] == 3
    assert "weighted" not in found


def test_no_rows_at_all() -> None:
    found = table_of_metrics(np.ones((0, 2)), np.ones(0, int), {"a": 0}, "classification")
    assert found["accuracy"] == {"per_client": {"a": None}, "undefined": {"a": "no test rows"}}


@pytest.mark.parametrize(
    ("outputs", "labels", "task", "message"),
    [
        (np.ones((3, 2)), np.ones(2, int), "classification", "outputs have the shape"),
        (np.ones((2, 2)), np.ones(3, int), "classification", "labels have the shape"),
        (np.ones((2, 2)), np.array([0, 2]), "classification", "class numbers from 0 to 1"),
        (np.ones((2, 2)), np.array([0, -1]), "classification", "class numbers from 0 to 1"),
        (np.ones((2, 2)), np.array([0.0, 1]), "classification", "class numbers from 0 to 1"),
        (np.ones((2, 2)), np.ones(2), "regression", "2 outputs per row: regression needs one"),
        (np.ones((2, 1)), np.array([1, np.nan]), "regression", "labels are not finite"),
        (np.ones((2, 1)), np.ones(2), "survival", r"\[2, 2\] is needed"),
        (np.ones((2, 1)), np.full((2, 2), 2.0), "survival", "neither 0 nor 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    outputs: Any, labels: Any, task: TaskKind, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        table_of_metrics(outputs, labels, {"a": 2}, task)


def test_a_client_has_no_fewer_than_no_rows() -> None:
    with pytest.raises(BadInput, match="fewer than no rows: -1"):
        table_of_metrics(np.ones((2, 1)), np.ones(2), {"a": 3, "b": -1}, "regression")


def test_a_metric_that_writes_into_what_it_is_given_changes_nothing_for_the_next() -> None:
    outputs, labels = torch.eye(3), torch.arange(3)

    def spoils(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.zero_().sum() + labels.fill_(0).sum()

    assert table_of_own(spoils, outputs, labels, {"a": 1, "b": 2})["mean"] == 0
    assert torch.equal(outputs, torch.eye(3))
    assert torch.equal(labels, torch.arange(3))


@pytest.mark.parametrize("given", [None, "0.5", 1j, torch.zeros(2), float("inf")])
def test_a_metric_of_ones_own_says_what_it_gave_that_is_no_number(given: object) -> None:
    found = table_of_own(lambda outputs, labels: given, torch.eye(2), torch.arange(2), {"a": 2})
    assert found["per_client"] == {"a": None} and found["mean"] is None
    assert found["undefined"]["a"].startswith("it gives ")


def test_a_metric_of_ones_own_that_raises_says_where() -> None:
    def broken(outputs: Tensor, labels: Tensor) -> float:
        raise ValueError("no way")

    found = table_of_own(broken, torch.eye(2), torch.arange(2), {"a": 2})
    assert found["undefined"]["a"].startswith("ValueError: no way (test_table.py, line ")
