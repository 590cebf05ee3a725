"""What training adds to the variance."""

import numpy as np
import pytest
from scipy import stats

from fedtailor.results.statistics import Gains
from fedtailor.results.statistics.variance import training_variance


def repeated(by_repeat: list[list[float]], of_rows: float) -> Gains:
    """Clients whose two rows make no variance of the mean over repeats."""
    table = np.array(by_repeat)
    names = tuple("abc"[: table.shape[1]])
    parts = tuple(np.full(2, gain / 2) for gain in np.nanmean(table, axis=0))
    weights = (np.full(2, 0.5),) * len(names)
    return Gains(names, {}, table, np.full(table.shape, of_rows), parts, weights, share=True)


def test_what_rows_do_not_explain_is_training() -> None:
    gains = repeated([[0.1, 0.2], [0.3, 0.6]], of_rows=0.01)
    # variances over repeats 0.02 and 0.08, less 0.01 each; two clients, two repeats, two degrees
    by_hand = ((0.02 + 0.08) / 2 - 0.01) / 4
    student = (stats.t.ppf(0.975, 2) / stats.norm.ppf(0.975)) ** 2
    assert training_variance(gains) == pytest.approx(by_hand * student)


def test_repeats_that_differ_less_than_rows_do_add_nothing() -> None:
    assert training_variance(repeated([[0.1, 0.2], [0.3, 0.6]], of_rows=0.1)) == 0


def test_repeats_of_one_table_add_a_share_of_what_rows_make() -> None:
    gains = repeated([[0.1], [0.3]], of_rows=0.02)  # just what rows explain
    parts = (np.array([0.3, -0.1]),)  # 0.1 ± 0.2: a variance of 0.08
    found = training_variance(gains._replace(parts=parts))
    assert found == pytest.approx(0.3 * (1 - 1 / 2) * 0.08)


def test_one_repeat_goes_by_what_clients_differ_by_beyond_their_rows() -> None:
    # 0.005 over two clients' mean, Student's factor with one degree of freedom
    few = (12.706 / 1.96) ** 2
    found = training_variance(repeated([[0.1, 0.2]], of_rows=0.0))
    assert found == pytest.approx(few * 0.005 / 2, rel=1e-3)
    assert training_variance(repeated([[0.1]], of_rows=0.0)) == 0  # one client cannot tell
    assert training_variance(repeated([[0.1], [np.nan]], of_rows=0.0)) == 0
