"""What training adds to the variance."""

import numpy as np
import pytest
from scipy import stats

from fedtailor.results.statistics import Gains
from fedtailor.results.statistics.variance import training_variance


def repeated(by_repeat: list[list[float]], of_rows: float) -> Gains:
    table = np.array(by_repeat)
    names = tuple("abc"[: table.shape[1]])
    return Gains(
        names, {}, table, np.full(table.shape, of_rows), (np.ones(1),) * 3, (np.ones(1),) * 3, True
    )


def test_what_rows_do_not_explain_is_training() -> None:
    gains = repeated([[0.1, 0.2], [0.3, 0.6]], of_rows=0.01)
    # variances over repeats 0.02 and 0.08, less 0.01 each; two clients, two repeats, two degrees
    by_hand = ((0.02 + 0.08) / 2 - 0.01) / 4
    student = (stats.t.ppf(0.975, 2) / stats.norm.ppf(0.975)) ** 2
    assert training_variance(gains) == pytest.approx(by_hand * student)


def test_repeats_that_differ_as_rows_do_add_nothing() -> None:
    assert training_variance(repeated([[0.1, 0.2], [0.3, 0.6]], of_rows=0.1)) == 0


def test_one_repeat_cannot_tell() -> None:
    assert training_variance(repeated([[0.1, 0.2]], of_rows=0.0)) == 0
    assert training_variance(repeated([[0.1], [np.nan]], of_rows=0.0)) == 0
