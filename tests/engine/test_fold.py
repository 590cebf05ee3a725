"""Weighted means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core import rng, tree
from fedtailor.core.tree import Tree
from fedtailor.engine.fold import Fold

pytestmark = pytest.mark.usefixtures("float64")


def values(n: int, seed: int = 0) -> Tree:
    one, two = rng.split(rng.key(seed))
    return {"a": rng.normal(one, n, 3, 2), "b": {"c": rng.normal(two, n), "none": {}}}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20), st.integers(1, 7))
def test_the_mean_is_numpys_whatever_the_chunks(weights: list[int], chunk: int) -> None:
    n = len(weights)
    stacked, weight = values(n), torch.tensor(weights, dtype=torch.float64)
    fold = Fold()
    for ids in torch.arange(n).split(chunk):
        fold.add(tree.index(stacked, ids), weight[ids])
    found = fold.mean()
    for name, leaf in tree.flatten(stacked).items():
        if not name.endswith("/"):
            expected = np.average(leaf.numpy(), axis=0, weights=weights)
            np.testing.assert_allclose(tree.flatten(found)[name], expected, rtol=1e-12, atol=1e-12)
    assert found["b"]["none"] == {}


def test_rows_may_be_counted_in_whole_numbers() -> None:
    stacked, rows = values(3), torch.tensor([1, 4, 5])
    counted, weighed = Fold(), Fold()
    counted.add(stacked, rows)
    weighed.add(stacked, rows.double())
    for name, leaf in tree.flatten(weighed.mean()).items():
        assert torch.equal(tree.flatten(counted.mean())[name], leaf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [1.0, 3.0, 0.1, 1e-20, 12_345.678])
def test_the_mean_of_one_client_is_its_value_to_the_last_bit(
    dtype: torch.dtype, weight: float
) -> None:
    one = {"a": rng.normal(rng.key(0), 1, 100, dtype=dtype)}
    fold = Fold()
    fold.add(one, torch.tensor([weight], dtype=torch.float32))
    assert fold.mean()["a"].dtype == dtype
    assert torch.equal(fold.mean()["a"], one["a"][0])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (3, 0), (5, 3, 2), (1, 1)])
def test_the_mean_is_one_product_to_the_last_bit(shape: tuple[int, ...]) -> None:
    stacked, weight = rng.normal(rng.key(1), 9, *shape), torch.arange(1.0, 10.0)
    fold = Fold()
    fold.add({"a": stacked}, weight)
    assert fold.mean()["a"].shape == shape
    assert torch.equal(fold.mean()["a"], torch.tensordot(weight / weight.sum(), stacked, 1))


def test_equal_values_stay_equal() -> None:
    same = {"a": torch.full((4, 3), 0.1)}
    fold = Fold()
    for _ in range(5):
        fold.add(same, torch.tensor([1.0, 1.0, 1.0, 1.0]))
    assert torch.equal(fold.mean()["a"], torch.full((3,), 0.1))


def test_a_name_counts_over_those_who_sent_it() -> None:
    fold = Fold()
    fold.add({"a": torch.tensor([1.0]), "b": torch.tensor([10.0])}, torch.tensor([1.0]))
    fold.add({"a": torch.tensor([4.0])}, torch.tensor([2.0]))
    fold.add({"b": torch.tensor([40.0]), "c": torch.tensor([7.0])}, torch.tensor([3.0]))
    found = {k: float(v) for k, v in fold.mean().items()}
    assert found == pytest.approx({"a": 3.0, "b": 32.5, "c": 7.0}, rel=1e-12)


def test_shares_of_the_weight_that_sent_a_name() -> None:
    fold = Fold()
    fold.add({"a": torch.ones(2), "b": {"c": torch.ones(2)}}, torch.tensor([1.0, 2.0]))
    fold.add({"a": torch.ones(1), "none": {}}, torch.tensor([5.0]))
    share = fold.share()
    assert float(share["a"]) == 1.0
    assert float(share["b"]["c"]) == 3 / 8


def test_nothing_has_no_mean() -> None:
    fold = Fold()
    assert fold.mean() == {}
    fold.add({}, torch.tensor([1.0]))
    assert fold.mean() == {}


def test_a_weight_of_zero_has_no_part_in_a_chunk_with_others() -> None:
    fold = Fold()
    fold.add({"a": torch.tensor([1.0, 50.0])}, torch.tensor([2.0, 0.0]))
    assert float(fold.mean()["a"]) == 1.0


@pytest.mark.parametrize("order", [[2.0, 0.0], [0.0, 2.0]])
def test_a_chunk_of_weight_zero_has_no_part(order: list[float]) -> None:
    fold = Fold()
    for weight in order:
        fold.add({"a": torch.tensor([weight])}, torch.tensor([weight]))
    mean = float(fold.mean()["a"])
    assert mean == 2.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=20), st.data())
def test_merging_folds_is_folding_all(weights: list[int], data: st.DataObject) -> None:
    n = len(weights)
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    stacked, weight = values(n), torch.tensor(weights, dtype=torch.float64)
    whole, merged = Fold(), Fold()
    whole.add(stacked, weight)
    for worker in range(3):
        ids = (owner == worker).nonzero()[:, 0]
        part = Fold()
        for some in ids.split(2):
            if len(some):
                part.add(tree.index(stacked, some), weight[some])
        merged.merge(part.folded())  # also one of nobody
    for one, other in ((whole.mean(), merged.mean()), (whole.share(), merged.share())):
        assert list(tree.flatten(one)) == list(tree.flatten(other))
        for name, leaf in tree.flatten(one).items():
            torch.testing.assert_close(leaf, tree.flatten(other)[name], rtol=1e-12, atol=1e-12)


def test_merged_names_count_over_those_who_sent_them() -> None:
    one, other = Fold(), Fold()
    one.add({"a": torch.tensor([1.0]), "b": torch.tensor([10.0])}, torch.tensor([1.0]))
    other.add({"a": torch.tensor([4.0]), "c": torch.tensor([7.0])}, torch.tensor([2.0]))
    one.merge(other.folded())
    assert {k: float(v) for k, v in one.mean().items()} == {"a": 3.0, "b": 10.0, "c": 7.0}
    share = {k: float(v) for k, v in one.share().items()}
    assert share == pytest.approx({"a": 1.0, "b": 1 / 3, "c": 2 / 3})


def test_merging_into_nothing_changes_no_bit() -> None:
    one, other = Fold(), Fold()
    one.add({"a": rng.normal(rng.key(1), 3, 5)}, torch.tensor([0.1, 0.2, 0.3]))
    other.merge(one.folded())
    assert torch.equal(other.mean()["a"], one.mean()["a"])
