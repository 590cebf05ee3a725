"""Partitions of digits and what is asserted of them, for the tests beside it."""

import numpy as np
from sklearn.datasets import load_digits

from fedtailor.partition import (
    dirichlet,
    groups,
    iid,
    noniid1,
    noniid2,
    pathological,
    relatives,
    ring,
    shards,
    split_rows,
)

DIGITS = load_digits().target
CLUSTERS = DIGITS % 5

RECIPES = {
    "iid": lambda seed: iid(DIGITS, 20, seed=seed),
    "pathological": lambda seed: pathological(DIGITS, 20, 2, seed=seed),
    "shards": lambda seed: shards(DIGITS, 20, 5, seed=seed),
    "dirichlet": lambda seed: dirichlet(DIGITS, 20, 0.1, seed=seed),
    "noniid1": lambda seed: noniid1(DIGITS, 20, 4, seed=seed),
    "noniid2": lambda seed: noniid2(DIGITS, 20, 2, seed=seed),
    "ring": lambda seed: ring(DIGITS, 20, 4, seed=seed),
    "relatives": lambda seed: relatives(DIGITS, 20, 4, seed=seed),
    "groups": lambda seed: groups(CLUSTERS, 20, seed=seed),
}


def table(shares, labels):
    """Rows per client and class, by a way of counting of its own."""
    return np.array([[np.sum(labels[s] == c) for c in np.unique(labels)] for s in shares])


def same(one, other):
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def assert_sorted_and_disjoint(shares, rows):
    together = np.concatenate(shares)
    assert np.unique(together).size == together.size
    assert together.size == 0 or (together.min() >= 0 and together.max() < rows)
    for share in shares:
        assert share.dtype == np.int64
        assert (np.diff(share) > 0).all()


def assert_one_line(error, *words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def names(clients):
    return [f"client {i}" for i in range(clients)]


def digits_split(seed=0, **more):
    shares = RECIPES["dirichlet"](0)
    return split_rows(shares, DIGITS, names(20), seed=seed, scheme="dirichlet:0.1", **more)


def parts(partition, client):
    return [p[client] for p in (partition.train, partition.val, partition.test)]
