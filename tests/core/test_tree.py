"""Trees: nested dicts of tensors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.core import tree

names = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1)
shapes = st.lists(st.integers(0, 3), max_size=3)
leaves = st.builds(lambda shape: torch.arange(torch.Size(shape).numel()).view(shape), shapes)
trees = st.recursive(
    st.dictionaries(names, leaves, max_size=3),
    lambda inner: st.dictionaries(names, leaves | inner, max_size=3),
    max_leaves=8,
)


def equal(a: tree.Tree, b: tree.Tree) -> bool:
    """The same names in the same order, and the same tensors."""
    if list(a) != list(b):
        return False
    for one, other in zip(a.values(), b.values(), strict=True):
        if isinstance(one, dict) != isinstance(other, dict):
            return False
        if isinstance(one, dict):
            if not equal(one, other):
                return False
        elif one.dtype != other.dtype or not torch.equal(one, other):
            return False
    return True


def example() -> tree.Tree:
    return {"a": torch.tensor([1.0, -2.0]), "b": {"c": torch.tensor([[3.0]]), "none": {}}}


def test_map_goes_by_name_and_not_by_order() -> None:
    one = {"a": torch.tensor(1), "b": {"c": torch.tensor(2)}}
    other = {"b": {"c": torch.tensor(20)}, "a": torch.tensor(10)}
    assert equal(tree.map(torch.add, one, other), tree.map(lambda p: p * 11, one))


def test_map_of_three_trees() -> None:
    a, b, c = ({"a": torch.tensor(n)} for n in (1, 20, 300))
    assert int(tree.map(lambda x, y, z: x + y + z, a, b, c)["a"]) == 321


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2), "b": {}},
        {"a": torch.zeros(2), "d": {"c": torch.zeros(1, 1), "none": {}}},
        {"a": torch.zeros(2), "b": {"c": torch.zeros(1, 1), "none": {}, "more": torch.zeros(1)}},
        {"a": torch.zeros(2), "b": {"c": torch.zeros(1, 1), "none": {}}, "more": torch.zeros(1)},
        {"a": torch.zeros(2), "b": {"c": torch.zeros(1, 1), "none": {"x": torch.zeros(1)}}},
    ],
)
def test_map_refuses_trees_that_differ(other: tree.Tree) -> None:
    for trees in ((example(), other), (other, example())):
        with pytest.raises((KeyError, TypeError)):
            tree.map(torch.add, *trees)


@pytest.mark.parametrize("flipped", [False, True])
def test_map_refuses_a_leaf_against_a_subtree(flipped: bool) -> None:
    pair = [{"a": torch.zeros(3)}, {"a": {"b": torch.zeros(3)}}]
    with pytest.raises((KeyError, TypeError, IndexError)):
        tree.map(torch.add, *(pair[::-1] if flipped else pair))


@settings(max_examples=150, deadline=None)
@given(trees)
def test_flatten_and_back(given_tree: tree.Tree) -> None:
    flat = tree.flatten(given_tree)
    assert all(isinstance(leaf, Tensor) for leaf in flat.values())
    assert equal(tree.unflatten(flat), given_tree)


def test_flatten_names_and_empty_markers() -> None:
    flat = tree.flatten(example())
    assert list(flat) == ["a", "b/c", "b/none/"]
    assert flat["b/none/"].numel() == 0
    assert tree.flatten({}) == {}
    assert tree.unflatten({}) == {}


def test_flatten_refuses_a_slash_in_a_name() -> None:
    with pytest.raises(ValueError, match="'/'"):
        tree.flatten({"a": {"b/c": torch.zeros(1)}})


@pytest.mark.parametrize(
    "odd", [{"": torch.ones(1)}, {"a": {"": torch.ones(1)}}, {"": {"a": torch.ones(1)}}]
)
def test_flatten_refuses_an_empty_name(odd: tree.Tree) -> None:
    # unflatten would lose it: 'a/' stands for an empty dict
    with pytest.raises(ValueError, match="empty"):
        tree.flatten(odd)


def test_leaves_come_in_order() -> None:
    assert [tuple(p.shape) for p in tree.leaves(example())] == [(2,), (1, 1)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=5), st.integers(0, 2**20))
def test_lerp_is_exact_at_both_ends(values: list[float], seed: int) -> None:
    for dtype in (torch.float32, torch.float64):
        p = torch.tensor(values, dtype=dtype)
        q = p.flip(0) * 1e-7 + seed / 7
        a, b = {"x": p, "y": {"z": q}}, {"x": q, "y": {"z": p}}
        ones = tree.map(torch.ones_like, a)
        for one in (1.0, torch.ones((), dtype=dtype), ones):
            assert equal(tree.lerp(a, b, one), b)
        for zero in (0.0, torch.zeros((), dtype=dtype), tree.scale(ones, 0.0)):
            assert equal(tree.lerp(a, b, zero), a)


def test_lerp_by_hand() -> None:
    a, b = {"x": torch.tensor([0.0, 4.0])}, {"x": torch.tensor([8.0, 0.0])}
    assert tree.lerp(a, b, 0.25)["x"].tolist() == [2.0, 3.0]
    assert tree.lerp(a, b, {"x": torch.tensor([0.5, 0.75])})["x"].tolist() == [4.0, 1.0]


def test_arithmetic() -> None:
    a = example()
    assert equal(tree.add(a, a), tree.scale(a, 2.0))
    assert equal(tree.sub(tree.scale(a, 3.0), a), tree.scale(a, 2.0))
    assert float(tree.sq_norm(a)) == 1 + 4 + 9
    assert float(tree.sq_norm({"none": {}})) == 0


def test_where_takes_whole_trees() -> None:
    a, b = example(), tree.scale(example(), 2.0)
    assert equal(tree.where(torch.tensor(True), a, b), a)
    assert equal(tree.where(torch.tensor(False), a, b), b)


def test_pick_and_drop_divide_the_names() -> None:
    params = {k: torch.tensor(i) for i, k in enumerate("abcd")}
    assert list(tree.pick(params, ["c", "a", "absent"])) == ["c", "a"]
    assert list(tree.drop(params, ["c", "a", "absent"])) == ["b", "d"]
    assert list(tree.drop(params, iter(["b"]))) == ["a", "c", "d"]


def test_stack_index_and_cat() -> None:
    a, b = example(), tree.scale(example(), -1.0)
    both = tree.stack([a, b])
    assert both["b"]["c"].shape == (2, 1, 1)
    assert equal(tree.index(both, 0), a)
    assert equal(tree.index(both, 1), b)
    joined = tree.cat([both, tree.index(both, torch.tensor([1]))])
    assert equal(tree.index(joined, torch.tensor([2, 0])), tree.stack([b, a]))


def test_put_replaces_rows_and_leaves_its_argument_alone() -> None:
    rows = tree.tile(example(), 4)
    new = tree.stack([tree.scale(example(), 5.0), tree.scale(example(), 6.0)])
    after = tree.put(rows, torch.tensor([3, 1]), new)
    assert equal(rows, tree.tile(example(), 4))
    for row, factor in enumerate([1.0, 6.0, 1.0, 5.0]):
        assert equal(tree.index(after, row), tree.scale(example(), factor))


def test_tile_makes_copies_that_share_no_memory() -> None:
    original = example()
    tiled = tree.tile(original, 3)
    assert tiled["a"].shape == (3, 2)
    tiled["a"][0] += 1
    assert equal(tree.index(tiled, 1), original)
    assert original["a"].tolist() == [1.0, -2.0]


def test_finite_looks_at_every_number_that_can_be_otherwise() -> None:
    fine = {"a": torch.ones(2, 2), "b": {"n": torch.tensor(3), "none": torch.zeros(0)}}
    assert bool(tree.finite(fine)) and bool(tree.finite({}))
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not bool(tree.finite(fine | {"c": {"d": torch.tensor([0.0, bad, 1.0])}}))


def test_finite_rows_knows_which_row_is_not() -> None:
    large = torch.full((4, 3), torch.finfo(torch.float32).max)  # finite, but its sum is not
    fine = {
        "a": large,
        "one": torch.zeros(4),
        "n": torch.zeros(4, dtype=torch.int64),
        "e": torch.zeros(4, 0),
    }
    assert tree.finite_rows(fine).tolist() == [True] * 4
    for bad in (math.inf, -math.inf, math.nan):
        other = torch.zeros(4, 2, 2)
        other[2, 1, 0] = bad
        found = tree.finite_rows(fine | {"c": {"d": other}})
        assert found.tolist() == [True, True, False, True]
    assert tree.finite_rows({}).all()
