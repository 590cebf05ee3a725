"""Metrics by name, and the default."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results.metrics.named import METRICS, default_metric, metric_named, metrics_of


def test_each_is_found_by_its_name() -> None:
    assert all(name == metric.name for name, metric in METRICS.items())
    assert metric_named("sensitivity", "classification", 2) is METRICS["sensitivity"]


def test_a_slip_gets_a_hint() -> None:
    with pytest.raises(BadInput, match="unknown metric 'roc-auk': did you mean 'roc-auc'"):
        metric_named("roc-auk", "classification", 2)


def test_metrics_of_other_tasks_are_refused_in_one_line() -> None:
    with pytest.raises(BadInput) as error:
        metric_named("roc-auc", "regression")
    assert str(error.value) == (
        "metric 'roc-auc' is for classification, not regression: try rmse, mae, r2"
    )


def test_metrics_of_two_classes_are_refused_for_three() -> None:
    with pytest.raises(BadInput, match="'specificity' needs two classes, not 3: try accuracy, "):
        metric_named("specificity", "classification", 3)
    assert set(metrics_of("classification", 2)) - set(metrics_of("classification", 3)) == {
        "sensitivity",
        "specificity",
    }


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.5, 0.5], "accuracy"),
        ([0.4, 0.6], "accuracy"),
        ([0.3, 0.7], "roc-auc"),
        ([0.03, 0.97], "roc-auc"),
        ([0.97, 0.03], "roc-auc"),
        ([100, 110, 90], "accuracy"),
        ([100, 110, 10], "balanced-accuracy"),
        ([0.5, 0.25, 0.25], "accuracy"),
        ([0.6, 0.2, 0.2], "balanced-accuracy"),
        ([0.1] * 10, "accuracy"),
    ],
)
def test_the_default_fits_the_balance_of_classes(shares: list[float], expected: str) -> None:
    name, why = default_metric("classification", shares)
    assert name == expected
    assert why.startswith(f"The metric is {expected}: ")
    assert "--metric" in why


def test_the_share_of_the_commonest_class_is_said() -> None:
    assert "right for 60 % of the rows" in default_metric("classification", [6, 2, 2])[1]


def test_the_default_of_other_tasks() -> None:
    assert default_metric("regression")[0] == "rmse"
    name, why = default_metric("survival")
    assert name == "concordance"
    assert why.endswith("It is the only one for this task.")


def test_classes_need_their_shares() -> None:
    with pytest.raises(ValueError, match="shares"):
        default_metric("classification")
