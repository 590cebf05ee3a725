"""The verdict, from outputs made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fedtailor.results.metrics.named import METRICS
from fedtailor.results.outputs import PartRows, RunOutputs, SaidInRound
from fedtailor.results.verdict import (
    JudgedRun,
    beside_yardsticks,
    constant_outputs,
    judge,
    shown,
    without_federation,
    wording_of,
)

CLIENTS = tuple(f"c{i}" for i in range(10))
ROWS = 40  # of each client


def run(right: Sequence[int], val: float | None = 0.5, first: int = 0) -> JudgedRun:
    """A run in which each client's model is right in its first so many rows of class 0."""
    labels = torch.zeros(len(right) * ROWS, dtype=torch.int64)
    place = torch.arange(ROWS).repeat(len(right))
    good = place < torch.tensor(right).repeat_interleave(ROWS)
    outputs = torch.stack([good.float(), 1 - good.float()], dim=1)
    n = torch.full((len(right),), ROWS)
    rows = PartRows(labels, torch.arange(len(labels)) + first, n)
    said = SaidInRound(3, outputs, outputs)
    return JudgedRun(RunOutputs(rows, rows, said, None), val, ((1, 0.4), (2, 0.5)))


def test_a_gain_at_every_client_helps() -> None:
    found = judge({"local": [run([20] * 10)], "ditto": [run([32] * 10)]}, CLIENTS, "accuracy")
    assert found.decision is not None
    assert found.decision["answer"] == "helps"
    assert found.decision["gain"] == pytest.approx(0.3)
    assert found.decision["speaks_for"] == "sites like these"
    assert found.sentences[0].startswith("Federation helps here: with ditto, accuracy is 30.0")
    assert {d["answer"] for d in found.clients.values()} == {"helps"}


def test_one_row_more_is_no_help() -> None:
    more = [21, *[20] * 9]
    found = judge({"local": [run([20] * 10)], "ditto": [run(more)]}, CLIENTS, "accuracy")
    assert found.decision is not None
    assert found.decision["answer"] in ("no difference", "cannot tell")


def test_the_recommended_method_is_chosen_on_validation_rows() -> None:
    """Not the one that is best on test rows."""
    runs = {
        "local": [run([20] * 10)],
        "lucky": [run([36] * 10, val=0.4)],
        "chosen": [run([30] * 10, val=0.6)],
    }
    found = judge(runs, CLIENTS, "accuracy")
    assert found.decision is not None
    assert found.decision["method"] == "chosen"
    assert list(found.others) == ["lucky"]
    assert any("lucky (by 40.0 points)" in line for line in found.sentences)


def test_a_mean_that_lacks_a_client_recommends_nothing() -> None:
    runs = {
        "local": [run([20] * 10)],
        "whole": [run([30] * 10, val=0.6)._replace(valued=10)],
        "lacks": [run([36] * 10, val=0.9)._replace(valued=9)],
    }
    found = judge(runs, CLIENTS, "accuracy")
    assert found.decision is not None
    assert found.decision["method"] == "whole"


def test_yardsticks_are_not_recommended() -> None:
    runs = {
        "local": [run([20] * 10)],
        "centralised": [run([39] * 10, val=0.9)],
        "linear": [run([39] * 10, val=0.9)],
        "ditto": [run([30] * 10, val=0.1)],
    }
    found = judge(runs, CLIENTS, "accuracy")
    assert found.decision is not None
    assert (found.decision["method"], found.others) == ("ditto", {})


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ({"local": [run([20])]}, "Only training alone was run"),
        ({"ditto": [run([20])]}, "training alone (local) is not among"),
        ({"local": [JudgedRun(None, 0.5)], "ditto": [run([20])]}, "kept no outputs"),
        ({"local": [run([20])] * 2, "ditto": [run([20])]}, "not all methods were run equally"),
    ],
)
def test_what_cannot_be_judged_is_said(runs: dict[str, list[JudgedRun]], said: str) -> None:
    found = judge(runs, ["c0"], "accuracy")
    assert found.decision is None
    assert said in found.sentences[0]


def test_a_constant_answer_is_the_commonest_class_the_mean_or_nothing() -> None:
    labels = [np.array([1, 1, 0]), np.array([0, 0, 0])]
    said = constant_outputs(labels, [2, 1], "classification", 2)
    assert said.argmax(-1).tolist() == [1, 1, 0]
    assert said[0].softmax(-1).tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-6)
    numbers = constant_outputs([np.array([10.0, 30.0])], [2], "regression", 0)
    assert numbers.tolist() == [[20.0], [20.0]]
    assert constant_outputs([np.zeros((2, 2))], [1], "survival", 0).tolist() == [[0.0]]


def test_all_yardsticks_stand_side_by_side() -> None:
    table = {
        m: {"score": {"mean": {"mean": v}, "bottom5": {"mean": v / 2}}}
        for m, v in (("local", 0.5), ("centralised", 0.9), ("ditto", 0.7))
    }
    lines = beside_yardsticks(
        table, {"accuracy": {"mean": 0.25}}, METRICS["accuracy"], {"method": "ditto"}
    )
    assert lines == [
        "Mean accuracy over clients: ditto 70.0 %; alone 50.0 %; one model on all rows in one "
        "place 90.0 %; always the same answer 25.0 %.",
        "The worst-off 5 % of clients have 35.0 % with ditto and 25.0 % alone.",
    ]


@pytest.mark.parametrize(
    ("linear", "fixed", "share", "said"),
    [
        (0.82, 1.0, "Some", "a linear model alone is 0.200 better"),
        (0.72, 1.0, "All", "a linear model alone is 0.300 better"),
        (1.1, 0.72, "All", "always the same answer is 0.300 better"),
        (1.005, 1.1, "", ""),  # within the margin of the network alone: a gain of the federation
    ],
)
def test_a_gain_that_may_need_no_federation_is_said(
    linear: float, fixed: float, share: str, said: str
) -> None:
    values = {"local": 1.02, "linear": linear, "fedavg": 0.72, "centralised": 0.7}
    table = {m: {"score": {"mean": {"mean": v}}} for m, v in values.items()}
    decision = {"method": "fedavg", "answer": "helps", "margin": 0.02}
    given = table, {"rmse": {"mean": fixed}}, METRICS["rmse"]
    lines = without_federation(*given, decision, "days")
    assert len(lines) == bool(said)
    if said:
        assert lines[0].startswith(f"{share} of this gain may need no federation: on average")
        assert f"which is not tested, {said}" in lines[0]
    assert without_federation(*given, {**decision, "answer": "cannot tell"}) == []


def test_errors_are_spoken_of_in_the_labels_unit() -> None:
    assert wording_of(METRICS["rmse"], "price").metric == "RMSE of price"
    assert wording_of(METRICS["rmse"]).amount(0.25) == "0.250"
    assert shown(METRICS["roc-auc"], 0.891) == "0.891"
