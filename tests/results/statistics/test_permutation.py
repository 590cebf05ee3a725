"""p-values that can be worked out by hand, and their spread where there is nothing."""

import numpy as np
import pytest
from scipy import stats

from fedtailor.results.statistics import (
    Gains,
    clients_test,
    measure_gains,
    rows_test,
    sign_flip_p,
)
from tests.results.statistics.worlds import (
    ACCURACY,
    AUC,
    WHOLE_ACCURACY,
    drawn,
    exchanged,
    rows_of,
    shuffled,
)


def of_clients(*each: float) -> Gains:
    n = len(each)
    parts = tuple(np.array([g]) for g in each)
    return Gains(
        tuple("abcdefghij"[:n]),
        {},
        np.array([each]),
        np.zeros((1, n)),
        parts,
        (np.ones(1),) * n,
        share=True,
    )


@pytest.mark.parametrize(
    ("gains", "p"),
    [
        ((1, 2, 3), 2 / 8),  # only +++ and −−−
        ((1, 2, -3), 1.0),  # the sum is 0: every vector is as extreme
        ((1, 2, 4, -3), 10 / 16),  # |sum| = 4: sums of ±1±2±3±4 of at least 4
        ((5, 1, 1, 1), 2 / 16),
        ((0, 2, 3), 2 / 4),  # a client without a gain says nothing
        ((0, 0, 0), 1.0),
    ],
)
def test_exact_p_of_few_clients(gains: tuple[float, ...], p: float) -> None:
    assert clients_test(of_clients(*gains)) == pytest.approx(p)


def test_equal_sums_count_as_equal_whatever_the_rounding() -> None:
    # 0.1 + 0.2 is not 0.3 to a machine
    assert sign_flip_p(np.array([0.1, 0.2, -0.3])) == 1.0
    assert sign_flip_p(np.array([0.1, 0.2, 0.3]) / 3) == 0.25


def test_many_terms_are_drawn_and_come_near_what_is_exact() -> None:
    rng = np.random.default_rng(1)
    values = np.append(rng.normal(0.3, 1, 14), np.zeros(5))
    exact = sign_flip_p(values)
    all_sums = ((np.arange(2**14)[:, None] >> np.arange(14)) & 1) * 2 - 1
    by_hand = (np.abs(all_sums @ values[:14]) >= abs(values.sum()) - 1e-12).mean()
    assert exact == pytest.approx(by_hand)
    # two terms that cancel widen the sum by so little that p stays, but are too many to be exact
    many = np.append(values, [1e-9, -1e-9, 2e-9])
    assert sign_flip_p(many) == pytest.approx(exact, abs=0.015)


def test_rows_that_are_alike_are_drawn_together_from_the_same_distribution() -> None:
    values = np.repeat([1.0, 2.0, -1.0, -2.0], [60, 30, 45, 20])
    deviation = np.sqrt((values**2).sum())
    assert sign_flip_p(values) == pytest.approx(
        2 * stats.norm.sf((abs(values.sum()) - 0.5) / deviation), abs=0.01
    )


def test_one_repeat_of_accuracy_is_mcnemars_test() -> None:
    ours, alone = [1] * 30 + [0] * 10, [1] * 20 + [0] * 15 + [1] * 5  # 10 against 5
    paired = {"a": [rows_of(ours, alone)]}
    p = rows_test(measure_gains(paired, ACCURACY), paired, ACCURACY)
    assert p == pytest.approx(stats.binomtest(10, 15).pvalue)


def test_one_row_more_never_helps() -> None:
    paired = {"a": [rows_of([1] * 40, [1] * 39 + [0])]}
    assert rows_test(measure_gains(paired, ACCURACY), paired, ACCURACY) == 1.0


def test_a_row_keeps_its_sign_in_all_repeats() -> None:
    """Three rows, each better in five repeats, are three units: p = 2/8, not 2/2^15."""
    paired = {"a": [rows_of([1, 1, 1], [0, 0, 0])] * 5}
    assert rows_test(measure_gains(paired, ACCURACY), paired, ACCURACY) == 0.25
    found = rows_test(measure_gains(paired, WHOLE_ACCURACY), paired, WHOLE_ACCURACY)
    assert found == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("scoring", [ACCURACY, WHOLE_ACCURACY, AUC], ids=["row", "whole", "auc"])
def test_p_stays_when_models_are_exchanged_or_rows_reordered(scoring: object) -> None:
    paired = drawn(4, 24, 2, seed=8, better=0.6)
    p = [
        rows_test(measure_gains(one, scoring), one, scoring)
        for one in (paired, exchanged(paired), shuffled(paired))
    ]
    assert p[0] == p[1] == p[2]
    assert p[0] < 0.5


def test_the_metric_computed_anew_agrees_with_the_turning_of_rows() -> None:
    paired = drawn(4, 40, 1, seed=9, better=0.3)
    a, b = (rows_test(measure_gains(paired, s), paired, s) for s in (ACCURACY, WHOLE_ACCURACY))
    assert a == pytest.approx(b, abs=0.05)


@pytest.mark.parametrize(("scoring", "times"), [(ACCURACY, 200), (AUC, 40)], ids=["row", "auc"])
def test_where_there_is_nothing_p_is_spread_evenly(scoring: object, times: int) -> None:
    p = []
    for seed in range(times):
        paired = drawn(6, 20, 1, seed=seed)
        gains = measure_gains(paired, scoring)
        p.append((rows_test(gains, paired, scoring), clients_test(gains)))
    for each in np.array(p).T:
        # discrete p-values are never too small too often, and not much too large
        for share in (0.1, 0.3, 0.5):
            error = 3.5 * np.sqrt(share * (1 - share) / times)
            assert share - error - 0.12 <= (each <= share).mean() <= share + error
