"""What it would take to tell."""

import numpy as np
import pytest
from scipy.stats import norm

from fedtailor.results.statistics import Gains, decide, measure_gains
from fedtailor.results.statistics.needed import variances, what_is_needed
from tests.results.statistics.worlds import ACCURACY, drawn


def made(each: list[float], *, rows: int, size: float) -> Gains:
    """Clients whose rows differ from their client's gain by ± `size`."""
    signs = np.where(np.arange(rows) % 2, 1.0, -1.0)
    parts = tuple((g + size * signs) / rows for g in each)
    names = tuple(f"c{i}" for i in range(len(each)))
    weights = (np.full(rows, 1 / rows),) * len(each)
    return Gains(names, {}, np.array([each]), parts, weights, share=True)


def test_variances_of_rows_and_of_clients_are_told_apart() -> None:
    gains = made([0.0, 0.1, 0.2, 0.3], rows=100, size=0.5)
    of_rows, of_clients = variances(gains)
    assert of_rows == pytest.approx(0.25 / 100 / 4)
    assert of_rows + of_clients == pytest.approx(np.var([0, 0.1, 0.2, 0.3], ddof=1) / 4)


def test_four_times_the_rows_or_sites_tell_half_the_gain() -> None:
    gains = made([0.05] * 10, rows=100, size=0.5)
    one, half = (
        what_is_needed(gains, target, level=0.05, beyond=False, tested_share=0.25)
        for target in (0.02, 0.01)
    )
    # (1.96 + 0.84)² · 0.25 / 0.02² = 4906 rows at all 10 sites
    assert one.rows == pytest.approx(491, abs=1)
    assert one.sites == pytest.approx(50, abs=1)
    assert half.rows == pytest.approx(4 * 491, abs=4)


def test_repeats_alone_cannot_do_what_all_rows_together_cannot() -> None:
    gains = made([0.05] * 10, rows=100, size=0.5)  # one repeat's deviation is 1.58 points
    enough = what_is_needed(gains, 0.04, level=0.05, beyond=False, tested_share=0.25)
    never = what_is_needed(gains, 0.02, level=0.05, beyond=False, tested_share=0.25)
    assert enough.repeats == 2 and never.repeats is None


def test_rows_alone_cannot_do_where_sites_differ() -> None:
    gains = made([-0.2, 0.3] * 5, rows=1000, size=0.5)
    found = what_is_needed(gains, 0.05, level=0.05, beyond=True, tested_share=0.25)
    assert found.rows is None and found.repeats is None and found.sites is not None


def test_with_as_many_rows_as_are_needed_it_can_mostly_be_told() -> None:
    true = norm.cdf(0.8) - norm.cdf(0.5)
    large = measure_gains(drawn(4, 4000, 1, 0, better=0.3), ACCURACY)
    rows = what_is_needed(large, true, level=0.05, beyond=False, tested_share=0.5).rows
    assert rows is not None
    told = [
        decide(drawn(4, 2 * rows, 1, seed, better=0.3), ACCURACY, method="m", metric="a").answer
        for seed in range(1, 51)
    ]
    assert 0.6 <= np.mean([answer == "helps" for answer in told]) <= 0.95
