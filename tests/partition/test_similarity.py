"""Designed likeness: who shares classes with whom, and equal amounts."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedtailor.core.errors import BadInput
from fedtailor.partition import divide, noniid1, noniid2, parse_partition, relatives, ring

DIGITS = load_digits().target


def table(shares):
    return np.array([np.bincount(DIGITS[s], minlength=10) for s in shares])


def assert_equal_amounts(counts):
    held = counts[counts > 0]
    assert (held == held[0]).all()


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_in_the_ring_share_all_classes_but_one(seed):
    counts = table(ring(DIGITS, 8, 4, seed=seed))
    holds = counts > 0
    assert (holds.sum(axis=1) == 4).all()
    shared = holds.astype(int) @ holds.astype(int).T
    for i in range(8):
        for j in range(8):
            apart = min((i - j) % 10, (j - i) % 10)  # the classes lie in a circle of ten
            assert shared[i, j] == max(0, 4 - apart)
    assert_equal_amounts(counts)


def test_the_circle_is_drawn_anew_with_another_seed():
    firsts = {tuple(np.flatnonzero(table(ring(DIGITS, 8, 4, seed=s))[0])) for s in range(10)}
    assert len(firsts) > 5


@pytest.mark.parametrize("seed", range(3))
def test_client_0_has_a_twin_a_cousin_and_strangers(seed):
    counts = table(relatives(DIGITS, 8, 4, seed=seed))
    holds = (counts > 0).astype(int)
    shared = holds @ holds[0]
    assert shared.tolist() == [4, 4, 3, 0, 0, 0, 0, 0]
    assert (holds.sum(axis=1) == 4).all()
    assert_equal_amounts(counts)


@pytest.mark.parametrize("text", ["ring:4,40", "relatives:4,40", "noniid1:4,40"])
def test_rows_per_client_are_limited_where_wanted(text):
    shares = divide(parse_partition(text), DIGITS, 8, seed=0)
    assert {len(s) for s in shares} == {40}


def test_a_scheme_knows_its_limit():
    assert parse_partition("noniid2:2,0.8,300").limit == 300
    assert parse_partition("ring:4,40").limit == 40
    assert parse_partition("noniid1:4").limit is None
    assert parse_partition("dirichlet:0.1").limit is None


def test_a_limit_makes_few_clients_as_large_as_many():
    few, many = noniid1(DIGITS, 5, 4, 40, seed=0), noniid1(DIGITS, 20, 4, 40, seed=0)
    assert {len(s) for s in few} == {len(s) for s in many} == {40}
    assert {len(s) for s in noniid1(DIGITS, 5, 4, seed=0)} != {40}
    assert {len(s) for s in noniid2(DIGITS, 5, 2, 0.8, 50, seed=0)} == {40}  # 2 · 16 + 8 · 1
    assert len(noniid2(DIGITS, 5, 2, seed=0)[0]) > 50


def test_a_limit_beyond_the_data_changes_nothing():
    for one, other in zip(
        noniid1(DIGITS, 5, 4, seed=0), noniid1(DIGITS, 5, 4, 10_000, seed=0), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ring(DIGITS, 8, 10, seed=0), ("10 classes", "1 to 9")),
        (lambda: ring(DIGITS, 8, 4, 3, seed=0), ("8 clients", "more than 3 rows")),
        (lambda: relatives(DIGITS, 3, 4, seed=0), ("3 clients", "4")),
        (lambda: relatives(DIGITS, 8, 6, seed=0), ("6 classes", "2 to 5")),
        (lambda: relatives(DIGITS, 8, 1, seed=0), ("1 classes",)),
        (lambda: noniid2(DIGITS, 5, 2, 0.8, 30, seed=0), ("5 clients", "more than 30 rows")),
    ],
)
def test_what_cannot_be_divided_is_said(make, named):
    with pytest.raises(BadInput) as error:
        make()
    assert all(part in str(error.value) for part in named)
    assert "\n" not in str(error.value)
