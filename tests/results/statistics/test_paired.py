"""Gains, client by client and row by row."""

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.statistics import HELD_OUT, PairedRows, measure_gains
from fedtailor.results.statistics.paired import swapped_gains
from fedtailor.results.statistics.scoring import scoring_of
from fedtailor.results.statistics.variance import variances
from tests.results.statistics.worlds import (
    ACCURACY,
    AUC,
    SQUARED_ERROR,
    WHOLE_ACCURACY,
    drawn,
    exchanged,
    is_right,
    rows_of,
    shuffled,
)


def test_a_gain_is_averaged_over_repeats_and_then_over_clients() -> None:
    paired = {
        "a": [rows_of([1, 1, 1, 0], [1, 0, 0, 0]), rows_of([1, 0], [0, 1], first=1)],
        "b": [rows_of([0, 1], [1, 1]), rows_of([1, 1], [1, 1])],
    }
    gains = measure_gains(paired, ACCURACY)
    np.testing.assert_allclose(gains.by_repeat, [[0.5, -0.5], [0.0, 0.0]])
    np.testing.assert_allclose(gains.by_client, [0.25, -0.25])
    assert gains.mean == 0
    # row 1 tests in both repeats: (1/4 + 1/2)/2; row 2 is better once, worse once
    np.testing.assert_allclose(gains.parts[0], [0, 3 / 8, 1 / 8 - 1 / 4, 0])
    np.testing.assert_allclose(gains.weights[0], [1 / 8, 3 / 8, 3 / 8, 1 / 8])


def test_nothing_is_gained_over_a_model_that_was_never_trained() -> None:
    better = [rows_of([1, 1, 1], [0, 0, 0])]
    gains = measure_gains({"a": [rows_of([1, 0], [0, 0])], "b": better}, ACCURACY, {"b": HELD_OUT})
    assert gains.clients == ("a",) and gains.mean == 0.5
    assert gains.left_out == {"b": "held out, so alone nothing was trained"}


def test_errors_gain_where_they_are_smaller() -> None:
    labels = np.array([1.0, 2.0])
    rows = PairedRows(np.arange(2), labels, np.array([[1.0], [3.0]]), np.array([[3.0], [3.0]]))
    assert measure_gains({"a": [rows]}, SQUARED_ERROR).mean == 2.0


def test_leaving_rows_out_once_finds_the_terms_of_a_mean() -> None:
    paired = drawn(2, 30, 1, seed=1, better=0.4)
    by_row, left_out = measure_gains(paired, ACCURACY), measure_gains(paired, WHOLE_ACCURACY)
    np.testing.assert_allclose(by_row.by_repeat, left_out.by_repeat)
    for a, b in zip(by_row.parts, left_out.parts, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_over_repeats_leaving_rows_out_finds_about_the_same_variance() -> None:
    paired = drawn(3, 60, 4, seed=1, better=0.4)
    a, b = (variances(measure_gains(paired, s))[0] for s in (ACCURACY, WHOLE_ACCURACY))
    assert a == pytest.approx(b, rel=0.1)


def test_a_repeats_variance_is_that_of_a_mean() -> None:
    paired = drawn(2, 40, 2, seed=2, better=0.4)
    by_row = measure_gains(paired, ACCURACY)
    rows = paired["site-1"][0]
    each = is_right(rows.ours, rows.labels) - is_right(rows.alone, rows.labels)
    assert by_row.row_variances[0, 1] == pytest.approx(each.var(ddof=1) / 20)
    left_out = measure_gains(paired, WHOLE_ACCURACY)
    np.testing.assert_allclose(left_out.row_variances, by_row.row_variances)


def test_many_rows_are_left_out_in_groups() -> None:
    paired = drawn(1, 2000, 1, seed=2, better=0.4)
    gains = measure_gains(paired, WHOLE_ACCURACY)
    assert len(gains.parts[0]) == 400
    assert gains.parts[0].sum() == pytest.approx(gains.mean)
    assert gains.weights[0].sum() == pytest.approx(1)


def test_a_client_where_the_metric_is_undefined_is_left_out_with_the_reason() -> None:
    one_class = PairedRows(np.arange(3), np.ones(3, int), np.zeros((3, 2)), np.zeros((3, 2)))
    both = drawn(1, 20, 1, seed=3)
    gains = measure_gains({**both, "lone": [one_class]}, AUC)
    assert gains.clients == ("site-0",)
    assert gains.left_out == {"lone": "the metric is undefined on its test rows"}


def test_a_repeat_where_the_metric_is_undefined_does_not_count() -> None:
    (known,) = drawn(1, 20, 1, seed=3)["site-0"]
    one_class = PairedRows(np.arange(3), np.ones(3, int), np.zeros((3, 2)), np.zeros((3, 2)))
    gains = measure_gains({"a": [known, one_class]}, AUC)
    assert gains.mean == measure_gains({"a": [known]}, AUC).mean
    assert np.isnan(gains.by_repeat[1, 0])


def test_a_model_that_diverged_is_left_out_with_the_reason() -> None:
    rows = rows_of([1, 1], [1, 0])
    broken = PairedRows(rows.rows, rows.labels, rows.ours * np.nan, rows.alone)
    gains = measure_gains({"a": [broken], "b": [rows]}, ACCURACY)
    assert gains.clients == ("b",)
    assert "diverged" in gains.left_out["a"]


def test_where_right_answers_are_counted_a_model_that_diverged_has_none() -> None:
    """It does not drop out of the mean: alone had both right, so it loses all."""
    rows = rows_of([1, 1], [1, 1])
    broken = PairedRows(rows.rows, rows.labels, rows.ours * np.nan, rows.alone)
    for name in ("accuracy", "balanced-accuracy"):
        gains = measure_gains({"a": [broken], "b": [rows]}, scoring_of(METRICS[name]))
        assert gains.left_out == {}
        assert gains.by_client.tolist() == [-1, 0], name
    losses = measure_gains({"a": [broken], "b": [rows]}, scoring_of(METRICS["log-loss"]))
    assert losses.clients == ("b",)


def test_a_model_that_diverged_in_one_of_several_repeats_is_left_out() -> None:
    """Where the metric cannot be had of it: the other repeats' mean would flatter."""
    (fine,) = drawn(1, 20, 1, seed=3)["site-0"]
    broken = PairedRows(fine.rows, fine.labels, fine.ours * np.nan, fine.alone)
    gains = measure_gains({"a": [fine, broken], "b": [fine, fine]}, scoring_of(METRICS["log-loss"]))
    assert gains.clients == ("b",)
    assert "diverged" in gains.left_out["a"]


def test_input_that_does_not_fit_is_refused() -> None:
    two, three = np.zeros((2, 2)), np.zeros((3, 2))
    with pytest.raises(BadInput, match="one line of outputs for each row"):
        PairedRows(np.arange(2), np.zeros(2), two, three)
    with pytest.raises(BadInput, match="3 labels for 2 rows"):
        PairedRows(np.arange(2), np.zeros(3), two, two)
    with pytest.raises(BadInput, match="named twice"):
        PairedRows(np.zeros(2), np.zeros(2), two, two)
    with pytest.raises(BadInput, match="same number of repeats"):
        measure_gains({"a": [rows_of([1], [1])], "b": []}, ACCURACY)


@pytest.mark.parametrize("scoring", [ACCURACY, WHOLE_ACCURACY, AUC], ids=["row", "whole", "auc"])
def test_order_of_rows_does_not_matter_and_exchange_turns_the_sign(scoring: object) -> None:
    paired = drawn(3, 24, 2, seed=4, better=0.3)
    gains = measure_gains(paired, scoring)
    for other, sign in ((shuffled(paired), 1), (exchanged(paired), -1)):
        found = measure_gains(other, scoring)
        np.testing.assert_allclose(found.by_repeat, sign * gains.by_repeat, atol=1e-12)
        for a, b in zip(found.parts, gains.parts, strict=True):
            np.testing.assert_allclose(a, sign * b, atol=1e-12)


def test_models_that_change_places_in_all_rows_or_none() -> None:
    paired = drawn(1, 24, 2, seed=5, better=0.5)["site-0"]
    rows = len(np.unique(np.concatenate([one.rows for one in paired])))
    swaps = np.stack([np.zeros(rows, bool), np.ones(rows, bool)])
    for scoring in (ACCURACY, WHOLE_ACCURACY, AUC):
        gain = measure_gains({"a": paired}, scoring).mean
        np.testing.assert_allclose(swapped_gains(paired, scoring, swaps), [gain, -gain])


def test_the_order_of_one_model_is_not_mixed_with_the_scale_of_another() -> None:
    """The same ranking on another scale: whatever changes places, nothing changes."""
    (one,) = drawn(1, 24, 1, seed=6)["site-0"]
    same = PairedRows(one.rows, one.labels, 100 + 7 * one.alone, one.alone)
    swaps = np.random.default_rng(0).random((20, len(one.rows))) < 0.5
    np.testing.assert_allclose(swapped_gains([same], AUC, swaps), 0, atol=1e-12)


def test_a_ranking_of_three_classes_is_the_mean_over_classes() -> None:
    rng = np.random.default_rng(7)
    labels = np.arange(18) % 3
    ours, alone = rng.normal(size=(2, 18, 3))
    one = PairedRows(np.arange(18), labels, ours, alone)
    each = []
    for c in range(3):
        scores = [
            np.exp(o[:, c]) / np.exp(o).sum(1) for o in (ours, alone)
        ]  # probability of the class
        a, b = (float(AUC.function(s[:, None], (labels == c) * 1, np.ones(18))) for s in scores)
        each.append(a - b)
    (found,) = swapped_gains([one], AUC, np.zeros((1, 18), bool))
    assert found == pytest.approx(np.mean(each))
