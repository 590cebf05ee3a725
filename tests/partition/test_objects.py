"""A partition as an object."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.partition import Partition, partition_of

DATA = SimpleNamespace(strata=np.arange(40) % 4)


def halves(source, clients, seed):
    return np.split(np.arange(len(source.strata)), 2)


def test_a_function_says_who_has_which_rows():
    seen = []

    def thirds(source, clients, seed):
        seen.append((source, clients, seed))
        return [range(12), np.arange(12, 24), list(range(24, 36))]

    found = partition_of(thirds, DATA, 3, seed=5, test=0.25, val=0)
    assert seen == [(DATA, 3, 5)]
    assert found.names == ("client-0", "client-1", "client-2") and found.scheme == "thirds"
    assert [found.rows(i).tolist() for i in range(3)] == [
        list(range(12)), list(range(12, 24)), list(range(24, 36))
    ]  # fmt: skip
    assert [len(rows) for rows in found.test] == [3, 3, 3]
    assert [len(rows) for rows in found.val] == [0, 0, 0]


def test_a_mapping_names_the_clients_and_an_official_test_split_counts():
    official = np.arange(40) % 2 == 1
    found = partition_of(
        lambda source, clients, seed: {"north": range(20), "south": range(20, 40)},
        DATA,
        official_test=official,
    )
    assert found.names == ("north", "south")
    assert official[np.concatenate(found.test)].all()


def test_a_partition_is_taken_as_it_is():
    made = partition_of(halves, DATA)
    assert partition_of(made, DATA) is made and partition_of(made, DATA, 2) is made


PARTITION = partition_of(halves, DATA)


@pytest.mark.parametrize(
    ("partition", "clients", "named"),
    [
        (halves, 3, ("clients is 3", "'halves' has 2", "leave it out")),
        (PARTITION, 3, ("clients is 3", "partition has 2")),
        (lambda *_: [[0, 1, 2], [2, 3, 4]], 0, ("row 2", "client-0, client-1", "one client")),
        (lambda *_: [[0, 0, 1]], 0, ("row 0", "2 times")),
        (lambda *_: [[0, 40]], 0, ("'client-0'", "row 40", "0..39")),
        (lambda *_: [[0, -1]], 0, ("'client-0'", "row -1")),
        (lambda *_: [[0, 1, 2], []], 0, ("'client-1'", "at least one row")),
        (lambda *_: [[0.5]], 0, ("'client-0'", "float64")),
        (lambda *_: None, 0, ("NoneType", "row numbers of each client")),
        (lambda *_: [], 0, ("list", "row numbers of each client")),
        ("dirichlet", 0, ("of type str", "function")),
        (
            Partition(("a",), (np.arange(50),), (np.arange(0),), (np.arange(50, 51),), "own", 0),
            0,
            ("client 'a'", "row 50", "40 rows"),
        ),
    ],
)
def test_wrong_partitions(partition, clients, named):
    with pytest.raises(BadInput) as caught:
        partition_of(partition, DATA, clients)
    for word in named:
        assert word in str(caught.value), str(caught.value)
