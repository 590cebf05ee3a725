"""Metrics of the package, judged by the statistics."""

import numpy as np
import pytest
import torch

from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics import PairedRows, decide, measure_gains
from fedtailor.results.statistics.paired import swapped_gains
from fedtailor.results.statistics.scoring import IN_UNITS, NO_SHARES, RANKINGS, scoring_of


def outputs_and_labels(task: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    signal = rng.normal(size=rows)
    if task == "classification":
        labels = (signal > 0).astype(np.int64)
        ours, alone = (
            np.stack([-signal - noise, signal + noise], axis=1)
            for noise in (rng.normal(0, 0.3, rows), rng.normal(0, 1, rows))
        )
        return ours, alone, labels
    ours, alone = ((signal + rng.normal(0, sd, rows))[:, None] for sd in (0.3, 1.0))
    if task == "regression":
        return ours, alone, signal
    return ours, alone, np.stack([np.exp(-signal), rng.integers(0, 2, rows)], axis=1)


def test_names_that_are_told_apart_are_names_of_metrics() -> None:
    assert {*RANKINGS, *NO_SHARES, *IN_UNITS} <= set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_gives_an_answer(name: str) -> None:
    metric = METRICS[name]
    ours, alone, labels = outputs_and_labels(metric.tasks[0], 60)
    scoring = scoring_of(metric)
    rows = PairedRows(np.arange(60), labels, ours, alone)
    gains = measure_gains({"a": [rows]}, scoring)
    none, all_rows = swapped_gains([rows], scoring, np.stack([np.zeros(60), np.ones(60)]) > 0)
    assert (none, all_rows) == pytest.approx((gains.mean, -gains.mean))
    found = decide({"a": [rows]}, scoring, method="m", metric=name)
    if name not in ("specificity", "sensitivity", "calibration-error"):  # of half the rows, or bins
        assert found.answer == "helps" and found.gain > 0
    else:
        assert np.isfinite(found.gain) and 0 < found.p <= 1


def test_a_client_is_left_out_with_the_metrics_own_reason() -> None:
    metric = METRICS["roc-auc"]
    ours, alone, _ = outputs_and_labels("classification", 6)
    labels = np.ones(6, np.int64)
    gains = measure_gains(
        {"a": [PairedRows(np.arange(6), labels, ours, alone)]}, scoring_of(metric)
    )
    why = metric.why_undefined(torch.from_numpy(labels), torch.ones(6))
    assert why and gains.left_out == {"a": why}
