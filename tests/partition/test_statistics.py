"""Numbers about a partition."""

import json

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    split_rows,
    statistics,
)
from tests.partition.partitions import DIGITS, RECIPES, assert_one_line, digits_split, table


def test_statistics_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 0])
    shares = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7, 8, 9])]
    partition = split_rows(shares, labels, ["a", "b"], seed=0, scheme="x")
    found = statistics(partition, labels, 4)
    assert found["clients"] == 2
    assert sum(found["rows"].values()) == 10
    assert found["samples"] == {"min": 4, "median": 5.0, "max": 6}
    assert found["classes_per_client"] == {"min": 2, "median": 2.5, "max": 3, "each": [2, 3]}
    assert found["class_counts"] == [[3, 1, 0, 0], [1, 1, 4, 0]]
    # 3/4 - 1/6, 1/4 - 1/6 and 4/6; the first two classes are with both and count twice
    assert found["label_distance"] == pytest.approx(7 / 12 + 1 / 12 + 8 / 12)
    assert found["label_distance_doubled"] == pytest.approx(14 / 12 + 2 / 12 + 8 / 12)
    json.dumps(found)


def test_statistics_of_disjoint_equal_and_lone_clients():
    labels = np.repeat([0, 1], 8)
    apart = split_rows([np.arange(8), np.arange(8, 16)], labels, "ab", seed=0, scheme="x")
    assert statistics(apart, labels, 2)["label_distance"] == 2
    assert statistics(apart, labels, 2)["label_distance_doubled"] == 2
    alike = split_rows([np.arange(4, 12), np.r_[:4, 12:16]], labels, "ab", seed=0, scheme="x")
    assert statistics(alike, labels, 2)["label_distance"] == 0
    alone = split_rows([np.arange(16)], labels, "a", seed=0, scheme="x")
    assert statistics(alone, labels, 2)["label_distance"] == 0


def test_label_distance_agrees_with_a_plain_double_loop():
    found = statistics(digits_split(), DIGITS, 10)
    counts = np.array(found["class_counts"])
    share = counts / counts.sum(axis=1, keepdims=True)
    pairs = [np.abs(share[i] - share[j]).sum() for i in range(20) for j in range(i)]
    assert found["label_distance"] == pytest.approx(np.mean(pairs))
    assert np.array_equal(counts, table(RECIPES["dirichlet"](0), DIGITS))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_statistics_of_labels_out_of_range(wrong):
    labels = DIGITS.copy()
    labels[0] = wrong
    with pytest.raises(BadInput) as error:
        statistics(digits_split(), labels, 10)
    assert_one_line(error, f"label {wrong}", "10 classes")
