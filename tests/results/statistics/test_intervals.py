"""Intervals hold just what the tests would not reject."""

import numpy as np
import pytest

from fedtailor.results.statistics import (
    both_interval,
    clients_interval,
    measure_gains,
    rows_interval,
    sign_flip_p,
)
from fedtailor.results.statistics.intervals import flip_interval
from tests.results.statistics.worlds import ACCURACY, SQUARED_ERROR, drawn, exchanged, rows_of


@pytest.mark.parametrize("units", [7, 12])
def test_the_ends_are_where_the_test_begins_to_reject(units: int) -> None:
    values = np.random.default_rng(units).normal(1, 1, units)
    low, high = flip_interval(values, np.ones(units), 0.05)
    for end, inwards in ((low, 1e-6), (high, -1e-6)):
        assert sign_flip_p(values - end - inwards) > 0.05
        assert sign_flip_p(values - end + inwards) <= 0.05


def test_units_may_weigh_differently() -> None:
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.5, 2, 10)
    values = weights * rng.normal(1, 1, 10)
    low, high = flip_interval(values, weights, 0.1)
    assert (
        sign_flip_p(values - (low + 1e-6) * weights)
        > 0.1
        >= sign_flip_p(values - (low - 1e-6) * weights)
    )
    assert low < values.sum() / weights.sum() < high


def test_five_clients_bound_nothing_and_six_do() -> None:
    gains = measure_gains(drawn(6, 40, 1, seed=1), ACCURACY)
    assert np.isfinite(clients_interval(gains)).all()
    gains = measure_gains(drawn(5, 40, 1, seed=1), ACCURACY)
    assert clients_interval(gains) == (-np.inf, np.inf)
    assert np.isfinite(clients_interval(gains, 0.1)).all()


def test_rows_come_near_the_normal_approximation() -> None:
    gains = measure_gains(drawn(1, 4000, 1, seed=3, better=0.3), ACCURACY)
    low, high = rows_interval(gains)
    variance = sum(
        ((p - g * w) ** 2).sum()
        for p, w, g in zip(gains.parts, gains.weights, gains.by_client, strict=True)
    )
    half = 1.96 * np.sqrt(variance)
    assert (low, high) == pytest.approx((gains.mean - half, gains.mean + half), abs=0.002)


def test_trainings_that_differ_widen_the_interval() -> None:
    """Ten repeats on the same rows: one training gets all rows right, the next none."""
    right, wrong = [1] * 200, [0] * 200
    alike = [rows_of([1] * 110 + [0] * 90, [1] * 100 + [0] * 100)] * 10
    luck = [rows_of(right, [1] * 100 + [0] * 100), rows_of(wrong, [1] * 80 + [0] * 120)] * 5
    steady, shaky = (
        np.diff(rows_interval(measure_gains({"a": repeats}, ACCURACY)))[0]
        for repeats in (alike, luck)
    )
    assert steady < 0.15 and shaky > 0.6


def test_with_one_repeat_the_spread_between_clients_counts() -> None:
    apart = {f"s{k}": [rows_of([1] * 200, [0] * (40 * k) + [1] * (200 - 40 * k))] for k in range(4)}
    gains = measure_gains(apart, ACCURACY)
    np.testing.assert_allclose(gains.by_client, [0, 0.2, 0.4, 0.6])
    rows = sum(g * (1 - g) / 200 for g in gains.by_client) / 16
    beyond = np.var([0, 0.2, 0.4, 0.6], ddof=1) / 4 - rows
    half = np.sqrt(1.96**2 * rows + 3.182**2 * beyond)
    assert rows_interval(gains) == pytest.approx((0.3 - half, 0.3 + half), abs=1e-3)


def test_exchanged_models_turn_the_interval_round() -> None:
    paired = drawn(8, 60, 2, seed=4, better=0.3)
    for interval in (rows_interval, clients_interval, both_interval):
        low, high = interval(measure_gains(paired, ACCURACY))
        turned = interval(measure_gains(exchanged(paired), ACCURACY))
        assert turned == pytest.approx((-high, -low))


def test_both_hold_whatever_either_holds() -> None:
    gains = measure_gains(drawn(8, 60, 1, seed=5), ACCURACY)
    low, high = both_interval(gains)
    inner = clients_interval(gains)
    assert low <= inner[0] and inner[1] <= high


def test_rows_that_never_differ_bound_the_gain_by_how_many_they_are() -> None:
    few = measure_gains({"a": [rows_of([1] * 20, [1] * 20)]}, ACCURACY)
    many = measure_gains({"a": [rows_of([1] * 500, [1] * 500)]}, ACCURACY)
    assert rows_interval(few)[1] > 0.05
    assert 0 < rows_interval(many)[1] < 0.01


def test_equal_outputs_in_a_unit_are_no_difference_at_all() -> None:
    paired = {"a": [rows_of([1] * 20, [1] * 20)]}
    assert rows_interval(measure_gains(paired, SQUARED_ERROR)) == (0, 0)
