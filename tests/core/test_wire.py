"""Sizes of messages, and their form as bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from fedtailor.core import tree, wire
from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Tree


def message() -> Tree:
    return {
        "params": {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(3, dtype=torch.float64)},
        "none": {},
        "flag": torch.tensor(True),
        "count": torch.tensor(7),
    }


def models(flags: list[bool]) -> Tree:
    rows = len(flags)
    value = {"w": torch.arange(rows * 6.0).view(rows, 2, 3) + 1, "b": torch.ones(rows)}
    here = torch.tensor(flags, dtype=torch.bool)
    gone = ~here
    value = tree.map(lambda p: p.masked_fill(gone.view(-1, *[1] * (p.ndim - 1)), 0), value)
    return {"models": wire.maybe(here, value), "round": torch.tensor(3)}


def one(flag: bool) -> Tree:
    value = {"w": torch.full((2, 2), 4.0 * flag)}
    return {"model": wire.maybe(torch.tensor(flag), value)}


def assert_equal(a: Tree, b: Tree) -> None:
    flat, other = tree.flatten(a), tree.flatten(b)
    assert set(flat) == set(other)
    for name in flat:
        assert flat[name].dtype == other[name].dtype
        assert torch.equal(flat[name], other[name]), name


def test_every_number_counts_at_its_own_width() -> None:
    assert wire.size(message()) == 6 * 4 + 3 * 8 + 1 + 8
    assert wire.size({}) == 0
    assert wire.size({"half": torch.zeros(5, dtype=torch.float16)}) == 10


@pytest.mark.parametrize("flags", [[True, False, True], [False, False], [True], []])
def test_rows_that_are_missing_do_not_count(flags: list[bool]) -> None:
    assert int(wire.size(models(flags))) == sum(flags) * (6 + 1) * 4 + 8


@pytest.mark.parametrize("flag", [True, False])
def test_a_part_that_is_missing_does_not_count(flag: bool) -> None:
    assert int(wire.size(one(flag))) == (16 if flag else 0)


def test_sizes_of_many_clients_at_once() -> None:
    flags = torch.tensor([[True, False], [True, True], [False, False]])

    def size(own: Tensor) -> Tensor:
        parts = {
            "models": wire.maybe(own, {"w": torch.zeros(2, 5)}),
            "one": wire.maybe(own[0], {"w": torch.zeros(3)}),
            "count": torch.tensor(1),
        }
        return own.sum() * 0 + wire.size(parts)

    expected = [1 * 20 + 12 + 8, 2 * 20 + 12 + 8, 8]
    assert vmap(size)(flags).tolist() == expected == [int(size(own)) for own in flags]


def test_a_client_axis_does_not_count() -> None:
    size = lambda w: w.sum() * 0 + wire.size({"w": w})
    assert vmap(size)(torch.zeros(3, 5)).tolist() == [20, 20, 20]


def test_value_and_here_take_a_part_apart() -> None:
    here, value = torch.tensor([True]), {"w": torch.zeros(1)}
    part = wire.maybe(here, value)
    assert wire.here(part) is here
    assert wire.value(part) is value


@pytest.mark.parametrize(
    "whole",
    [
        message(),
        {},
        {"a": {}, "b": {"c": {}}},
        models([True, False, True]),
        models([False, False]),
        models([True, True]),
        one(True),
        one(False),
        {"deep": {"down": one(True) | {"x": torch.zeros(2)}}},
    ],
    ids=["plain", "nothing", "empty", "some", "none", "all", "one", "not one", "deep"],
)
def test_there_and_back(whole: Tree) -> None:
    assert_equal(wire.unpack(wire.pack(whole), whole), whole)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_there_and_back_with_any_rows(flags: list[bool]) -> None:
    other = models([not f for f in flags])  # what is expected has other rows than what comes
    assert_equal(wire.unpack(wire.pack(models(flags)), other), models(flags))


@pytest.mark.parametrize("wrapped", [False, True])
def test_names_come_back_in_their_order(wrapped: bool) -> None:
    names = ["network", "of", "many", "names", *"wbazcqy"]
    part = {name: torch.zeros(1) for name in names}
    whole = wire.maybe(torch.tensor([True]), part) if wrapped else part
    back = wire.unpack(wire.pack({"m": whole}), {"m": whole})["m"]
    assert list(wire.value(back) if wrapped else back) == names


def test_missing_rows_do_not_travel() -> None:
    assert len(wire.pack(models([False] * 50))) < len(wire.pack(models([True] * 50))) - 45 * 28


def test_leftovers_in_missing_rows_do_not_travel() -> None:
    whole = models([True, False])
    stale = wire.maybe(
        torch.tensor([True, False]), tree.map(torch.ones_like, wire.value(whole["models"]))
    )
    back = wire.unpack(wire.pack({"models": stale}), {"models": stale})
    for leaf in tree.leaves(wire.value(back["models"])):
        assert bool((leaf[0] == 1).all()) and bool((leaf[1] == 0).all())


def test_views_and_gradients_pack_as_plain_numbers() -> None:
    wide = torch.ones(1, 3).expand(4, 3)
    turned = torch.arange(6.0).view(2, 3).T.clone().requires_grad_().T
    whole = {"wide": wide, "turned": turned, "again": wide}
    back = wire.unpack(wire.pack(whole), whole)
    assert torch.equal(back["turned"], turned.detach())
    assert torch.equal(back["wide"], wide)
    assert not back["turned"].requires_grad


def refused(sent: Tree, expected: Tree) -> str:
    with pytest.raises(BadInput) as caught:
        wire.unpack(wire.pack(sent), expected)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_wrong_shape_is_refused() -> None:
    text = refused({"a": {"w": torch.zeros(2, 3)}}, {"a": {"w": torch.zeros(3, 2)}})
    assert "a/w" in text and "(2, 3)" in text and "(3, 2)" in text


def test_a_wrong_type_is_refused() -> None:
    text = refused({"w": torch.zeros(2)}, {"w": torch.zeros(2, dtype=torch.int64)})
    assert "'w'" in text and "float32" in text and "int64" in text


@pytest.mark.parametrize(
    "sent", [{}, {"v": torch.zeros(2)}, {"w": torch.zeros(2), "v": torch.zeros(2)}]
)
def test_wrong_names_are_refused(sent: Tree) -> None:
    text = refused({"part": sent}, {"part": {"w": torch.zeros(2)}})
    assert "part" in text and "'w'" in text


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param({"a": {"w": torch.zeros(2)}}, {"a": torch.zeros(2)}, id="tree for a leaf"),
        pytest.param({"a": torch.zeros(2)}, {"a": {"w": torch.zeros(2)}}, id="leaf for a tree"),
        pytest.param({"model": {"w": torch.zeros(2, 2)}}, one(True), id="no flag"),
        pytest.param(
            {"model": wire.maybe(torch.tensor(True), {"w": torch.zeros(3, 3)})},
            one(True),
            id="shape of one",
        ),
        pytest.param(
            {"model": wire.maybe(torch.tensor(True), {"v": torch.zeros(2, 2)})},
            one(True),
            id="name of one",
        ),
        pytest.param(
            {"model": wire.maybe(torch.tensor(1.0), {"w": torch.zeros(2, 2)})},
            one(True),
            id="type of flag",
        ),
        pytest.param(
            {"m": wire.maybe(torch.tensor([True, True]), {"w": torch.zeros(2, 5)})},
            {"m": wire.maybe(torch.tensor([True, True]), {"w": torch.zeros(2, 3)})},
            id="shape of rows",
        ),
        pytest.param(
            {"m": wire.maybe(torch.tensor([True, True]), {"w": torch.zeros(2, 3).double()})},
            {"m": wire.maybe(torch.tensor([True, True]), {"w": torch.zeros(2, 3)})},
            id="type of rows",
        ),
        pytest.param(
            {"m": wire.maybe(torch.tensor([True]), {"w": torch.zeros(1, 3)})},
            {"m": wire.maybe(torch.tensor([True, True]), {"w": torch.zeros(2, 3)})},
            id="number of rows",
        ),
    ],
)
def test_a_wrong_form_is_refused(sent: Tree, expected: Tree) -> None:
    refused(sent, expected)


@pytest.mark.parametrize("raw", [b"", b"nonsense", wire.pack(message())[:-3]])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(BadInput):
        wire.unpack(raw, message())
