"""What it would take to tell."""

import numpy as np
import pytest
from scipy.stats import norm

from fedtailor.results.statistics import Gains, decide, measure_gains, rows_interval
from fedtailor.results.statistics.needed import Needed, what_is_needed
from fedtailor.results.statistics.variance import variances
from tests.results.statistics.worlds import ACCURACY, drawn


def made(each: list[float], *, rows: int, size: float) -> Gains:
    """Clients whose rows differ from their client's gain by ± `size`."""
    signs = np.where(np.arange(rows) % 2, 1.0, -1.0)
    parts = tuple((g + size * signs) / rows for g in each)
    names = tuple(f"c{i}" for i in range(len(each)))
    weights = (np.full(rows, 1 / rows),) * len(each)
    return Gains(names, {}, np.array([each]), np.zeros((1, len(each))), parts, weights, share=True)


def test_variances_of_rows_and_of_clients_are_told_apart() -> None:
    gains = made([0.0, 0.1, 0.2, 0.3], rows=100, size=0.5)
    of_rows, of_clients = variances(gains)
    assert of_rows == pytest.approx(0.25 / 100 / 4)
    assert of_rows + of_clients == pytest.approx(np.var([0, 0.1, 0.2, 0.3], ddof=1) / 4)


def asked(gains: Gains, target: float, half: float) -> Needed:
    return what_is_needed(gains, (-half, half), target, level=0.05, tested_share=0.25)


def test_four_times_the_rows_or_sites_tell_half_the_gain() -> None:
    gains = made([0.05] * 10, rows=100, size=0.5)
    half = 1.96 * np.sqrt(0.25 / 1000)  # just what rows make
    one, half_of_it = (asked(gains, target, half) for target in (0.02, 0.01))
    # (1.96 + 0.84)² · 0.25 / 0.02² = 4906 rows at all 10 sites
    assert one.rows == pytest.approx(491, abs=2)
    assert one.sites == pytest.approx(50, abs=1)
    assert half_of_it.rows == pytest.approx(4 * 491, abs=8)


def test_repeats_alone_cannot_do_what_all_rows_together_cannot() -> None:
    gains = made([0.05] * 10, rows=100, size=0.5)
    half = 1.96 * np.sqrt(0.25 / 1000)
    # with all rows tested a quarter of the variance is left, which tells half the gain of now
    assert asked(gains, 0.9 * 2.8 / 1.96 * half, half).repeats == 2
    assert asked(gains, 0.45 * 2.8 / 1.96 * half, half).repeats is None


def test_rows_alone_cannot_do_where_sites_differ() -> None:
    found = asked(made([-0.2, 0.3] * 5, rows=1000, size=0.5), 0.05, half=0.18)
    assert found.rows is None and found.repeats is None
    assert found.sites == pytest.approx(10 * (0.18 / 1.96 * 2.8 / 0.05) ** 2, abs=1)


def test_what_is_there_is_never_said_to_be_enough() -> None:
    found = asked(made([0.05] * 10, rows=100, size=0.5), 1.0, half=0.01)
    assert (found.rows, found.sites, found.repeats) == (101, 11, 2)


def test_without_an_interval_nothing_can_be_said() -> None:
    assert asked(made([0.05], rows=9, size=0.5), 0.1, half=np.inf)[1:] == (None, None, None)


def test_with_as_many_rows_as_are_needed_it_can_mostly_be_told() -> None:
    true = norm.cdf(0.8) - norm.cdf(0.5)
    few = measure_gains(drawn(4, 100, 3, 0, better=0.3), ACCURACY)
    rows = what_is_needed(few, rows_interval(few), true, level=0.05, tested_share=0.5).rows
    assert rows is not None
    told = [
        decide(
            drawn(4, round(rows / 0.875), 3, seed, better=0.3), ACCURACY, method="m", metric="a"
        ).answer
        for seed in range(1, 51)
    ]
    assert np.mean([answer == "helps" for answer in told]) >= 0.6
