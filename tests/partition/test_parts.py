"""Each client's rows in train, val and test."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    hold_out,
    permute_targets,
    split_rows,
)
from tests.partition.partitions import (
    DIGITS,
    RECIPES,
    assert_one_line,
    assert_sorted_and_disjoint,
    digits_split,
    names,
    parts,
    same,
)


def test_split_cuts_all_rows_by_the_shares():
    shares = RECIPES["dirichlet"](0)
    partition = digits_split(test=0.25, val=0.2)
    assert partition.names == tuple(names(20))
    assert (partition.scheme, partition.seed, len(partition)) == ("dirichlet:0.1", 0, 20)
    for client, share in enumerate(shares):
        train, val, test = parts(partition, client)
        assert_sorted_and_disjoint([train, val, test], DIGITS.size)
        assert np.array_equal(np.sort(np.concatenate([train, val, test])), share)
        assert np.array_equal(partition.rows(client), share)
        assert test.size == round(0.25 * share.size)
        assert val.size == round(0.2 * (share.size - test.size))


def test_split_of_a_client_is_its_own_affair():
    shares = RECIPES["dirichlet"](0)
    whole = digits_split(seed=9)
    others = [np.arange(10), *shares[1:5]]  # fewer clients, and another first one
    few = split_rows(others, DIGITS, names(5), seed=9, scheme="x")
    backwards = split_rows([s[::-1] for s in shares], DIGITS, names(20), seed=9, scheme="x")
    for client in range(1, 5):
        assert same(parts(whole, client), parts(few, client))
        assert same(parts(whole, client), parts(backwards, client))
    assert not same(whole.test, digits_split(seed=8).test)
    twins = split_rows([shares[0], shares[0]], DIGITS, names(2), seed=9, scheme="x")
    assert not same(parts(twins, 0), parts(twins, 1))


@given(st.integers(0, 12), st.floats(0.01, 0.99), st.just(0.0) | st.floats(0.01, 0.99))
def test_split_has_rows_in_every_part_or_refuses(rows, test, val):
    make = lambda: split_rows(
        [np.arange(rows)], np.zeros(12, int), ["Ann"], test=test, val=val, seed=0, scheme="x"
    )
    if rows < (3 if val else 2):
        with pytest.raises(BadInput) as error:
            make()
        assert_one_line(error, "'Ann'", f"{rows} rows")
        return
    got = parts(make(), 0)
    assert [p.size > 0 for p in got] == [True, val > 0, True]
    assert sum(p.size for p in got) == rows


def test_official_test_rows_are_the_test_rows():
    official = np.arange(DIGITS.size) % 4 == 1
    partition = digits_split(official_test=official, test=0.0)
    for client, share in enumerate(RECIPES["dirichlet"](0)):
        train, val, test = parts(partition, client)
        assert np.array_equal(test, share[official[share]])
        assert val.size == max(1, round(0.2 * (share.size - test.size)))
        assert train.size + val.size + test.size == share.size


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": 0.0}, ("test share", "0.0")),
        ({"test": 1.0}, ("test share", "1.0")),
        ({"val": -0.1}, ("val share", "-0.1")),
        ({"val": float("nan")}, ("val share", "nan")),
        ({"names": ["a", "a"]}, ("1 distinct", "2 clients")),
        ({"names": ["a"]}, ("1 distinct", "2 clients")),
        ({"rows_per_client": [], "names": []}, ("0 clients",)),
        ({"rows_per_client": [np.arange(5), np.array([5, 99, 7])]}, ("'b'", "0..9")),
        ({"official_test": np.zeros(10, bool)}, ("'a'", "5 rows", "0 of them")),
        ({"official_test": np.ones(10, bool)}, ("'a'", "5 rows", "5 of them")),
        ({"official_test": np.ones(9, bool)}, ("9", "10")),
        ({"rows_per_client": [[0, 1]] * 2}, ("'a'", "2 rows", "fewer clients", "--min-samples")),
        ({"rows_per_client": [[0, 1]] * 2, "scheme": "natural"}, ("2 rows", "--val 0")),
        ({"rows_per_client": [[0]] * 2, "scheme": "natural"}, ("1 rows", "remove", "merge")),
        (
            {"rows_per_client": [[0]] * 2, "scheme": "natural", "val": 0.0},
            ("1 rows", "train and test", "remove"),
        ),
        ({"scheme": "natural", "official_test": np.ones(10, bool)}, ("5 of them", "remove")),
        ({"scheme": "natural", "official_test": np.arange(10) != 4}, ("4 of them", "--val 0")),
    ],
)
def test_bad_splits(change, words):
    arguments = {
        "rows_per_client": [np.arange(5), np.arange(5, 10)],
        "labels": np.zeros(10, int),
        "names": ["a", "b"],
        "seed": 0,
        "scheme": "x",
        **change,
    }
    with pytest.raises(BadInput) as error:
        split_rows(**arguments)
    assert_one_line(error, *words)


@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(deadline=None)
def test_permuted_targets_belong_to_somebody_else(clients, seed):
    shares = np.array_split(np.arange(4 * clients), clients)
    own = split_rows(shares, np.zeros(4 * clients), names(clients), seed=0, scheme="x")
    permuted = permute_targets(own, seed=seed)
    assert same(permuted.train, own.train)
    target = [
        next(j for j in range(clients) if np.array_equal(t, own.test[j])) for t in permuted.test
    ]
    assert sorted(target) == list(range(clients))
    assert same(permuted.val, [own.val[j] for j in target])
    assert clients == 1 or all(i != j for i, j in enumerate(target))
    assert same(permuted.test, permute_targets(own, seed=seed).test)


def test_other_seeds_permute_otherwise():
    own = digits_split()
    assert not same(permute_targets(own, seed=0).test, permute_targets(own, seed=1).test)


@pytest.mark.parametrize(
    ("clients", "asked", "count"),
    [
        (20, 5, 5),
        (20, 0.2, 4),
        (20, 0, 0),
        (20, 0.0, 0),
        (20, 0.001, 1),
        (2, 0.99, 1),
        (20, 19, 19),
    ],
)
def test_held_out_clients(clients, asked, count):
    chosen = hold_out(clients, asked, seed=3)
    assert chosen.size == np.unique(chosen).size == count
    assert (np.diff(chosen) > 0).all()
    assert ((chosen >= 0) & (chosen < clients)).all()
    assert np.array_equal(chosen, hold_out(clients, asked, seed=3))


def test_other_seeds_hold_out_others():
    assert len({tuple(hold_out(20, 5, seed=s)) for s in range(10)}) > 5


@pytest.mark.parametrize("asked", [-1, 20, 1.0, 2.5, -0.5, float("nan"), float("inf"), 99])
def test_somebody_must_train(asked):
    with pytest.raises(BadInput) as error:
        hold_out(20, asked, seed=0)
    assert_one_line(error, str(asked), "20")
