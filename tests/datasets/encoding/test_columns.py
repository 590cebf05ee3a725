"""Columns and labels scaled by hand, and what a federation's sums give."""

from __future__ import annotations

import numpy as np
import pytest

from fedtailor.datasets.encoding.columns import (
    Categorical,
    ColumnSums,
    fit_numeric,
    fit_target,
    numeric_of_sums,
    pooled_numbers,
)
from tests.datasets.datafiles import refusal


def test_a_column_keeps_what_training_said_of_it():
    found = fit_numeric("age", np.array([1.0, np.nan, 3.0]), scaled=True)
    assert (found.fill, found.shift, found.scale, found.low, found.high) == (2, 2, 1, 1, 3)
    bare = fit_numeric("age", np.array([1.0, np.nan, 3.0]), scaled=False)
    assert (bare.fill, bare.shift, bare.scale) == (2, 0, 1)


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_sums_of_clients_give_what_pooled_rows_give(offset):
    """Far from 0, sums of plain squares would leave nothing of a deviation of 1."""
    draw = np.random.default_rng(0)
    parts = [offset + draw.normal(i, 1 + i, 20 + i) for i in range(4)]
    parts += [np.array([np.nan, np.nan]), np.array([offset, np.nan])]
    want = fit_numeric("t", np.concatenate(parts), scaled=True)
    found = numeric_of_sums("t", [ColumnSums.of(part) for part in parts])
    assert found.shift == pytest.approx(want.shift, rel=1e-12)
    assert found.fill == found.shift
    assert found.scale == pytest.approx(want.scale, rel=1e-6)
    assert found.low is None, "a sum does not tell the least value"


def test_sums_of_a_constant_or_empty_column():
    constant = [ColumnSums.of(np.full(7, 0.1)), ColumnSums.of(np.full(3, 0.1))]
    assert pooled_numbers(constant, "c") == (pytest.approx(0.1), 1.0)
    assert pooled_numbers([ColumnSums.of(np.array([np.nan]))], "c") == (0.0, 1.0)
    huge = [ColumnSums.of(np.array([1e308, -1e308]))]
    refusal(lambda: pooled_numbers(huge, "column 'c'"), "'c'", "scale them down")


def test_a_label_is_scaled_by_training_rows():
    found = fit_target("price", np.array([10.0, 30.0]), scaled=True)
    assert (found.shift, found.scale) == (20, 10)
    assert found.apply(np.array([50.0])).tolist() == [3] and found.apply(np.zeros(1)).dtype == "f4"
    assert fit_target("price", np.full(3, 7.0), scaled=True).scale == 1
    assert fit_target("price", np.array([10.0, 30.0]), scaled=False).shift == 0


def test_categories_that_a_client_never_had_give_zeros():
    column = np.array(["a", "b", "c", "d"])
    assert Categorical("k", ("a", "b", "c")).apply(column).sum() == 3
    own = Categorical("k", ("a", "b", "c"), seen=("b",)).apply(column)
    assert own.shape == (4, 3) and np.argwhere(own).tolist() == [[1, 1]]
