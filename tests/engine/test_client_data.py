"""The store and whose the rows are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.engine import ClientData
from fedtailor.engine.client_data import LaidRows

X = torch.arange(60.0)
counts = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=4)


def client_data(sizes: list[tuple[int, int, int]]) -> ClientData:
    """Clients with so many training, validation and test rows, dealt from a shuffled store."""
    deck = iter(np.random.default_rng(0).permutation(60))
    parts = [[np.array([next(deck) for _ in range(k)], dtype=int) for k in c] for c in sizes]
    return ClientData.of(X, X.long(), *zip(*parts, strict=True))


def own(which: str, world: ClientData, client: int) -> set[int]:
    rows = getattr(world, which)
    begin, n = int(rows.offset[client]), int(rows.n[client])
    return set(rows.flat[begin : begin + n].tolist())


@settings(max_examples=60, deadline=None)
@given(counts, st.integers(0, 100))
def test_methods_see_their_own_rows_and_never_test_rows(
    sizes: list[tuple[int, int, int]], seed: int
) -> None:
    world = client_data(sizes)
    ids = rng.permutation(rng.key(seed), len(sizes))
    data = world.data(ids)
    tests = set(world.test.flat.tolist())
    assert data.counts is not None
    assert data.counts.n.tolist() == data.n.tolist()
    for row, client in enumerate(ids.tolist()):
        for rows, n, which in (
            (data.rows[row], data.n[row], "train"),
            (data.val_rows[row], data.val_n[row], "val"),
        ):
            mine = own(which, world, client)
            assert int(n) == len(mine)
            assert set(rows[: int(n)].tolist()) == mine
            if mine:  # padding repeats own rows
                assert set(rows.tolist()) == mine
            assert not set(rows[: int(n)].tolist()) & tests
        assert not own("train", world, client) & own("val", world, client)


@settings(max_examples=30, deadline=None)
@given(counts)
def test_batches_hold_no_row_of_another_part(sizes: list[tuple[int, int, int]]) -> None:
    world = client_data(sizes)
    for client in range(len(sizes)):
        data = world.data(torch.tensor([client]))
        one = data._replace(
            rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
        )
        for part, which in ((one, "train"), (one.val, "val")):
            batches = [b for b in part.batches(2, rng.key(0)) if bool(b.active)]
            seen = {int(v) for batch in batches for v in batch.x}
            assert seen == own(which, world, client)


@pytest.mark.parametrize("which", ["train", "val", "test"])
def test_parts_for_evaluation(which: str) -> None:
    world = client_data([(3, 2, 4), (1, 0, 2)])
    data = world.part(torch.tensor([1, 0]), which)
    for row, client in enumerate((1, 0)):
        assert set(data.rows[row, : int(data.n[row])].tolist()) == own(which, world, client)
    # no validation rows, but one of padding, so that shapes do not vanish
    assert data.val_rows.shape == (2, 1) and data.val_n.tolist() == [0, 0]


def test_the_width_is_that_of_the_clients_asked_for() -> None:
    world = client_data([(9, 0, 1), (2, 0, 1), (3, 0, 1)])
    assert world.data(torch.tensor([1, 2])).rows.shape == (2, 3)
    assert world.data(torch.tensor([0, 2])).rows.shape == (2, 9)


def test_a_part_that_nobody_has() -> None:
    world = client_data([(2, 0, 1), (1, 0, 1)])
    data = world.data(torch.arange(2))
    assert data.val_n.tolist() == [0, 0]
    assert data.val_rows.shape == (2, 1)


def test_names() -> None:
    assert client_data([(1, 0, 0), (1, 0, 0)]).names == ("client-0", "client-1")
    rows = [np.array([0])]
    named = ClientData.of(X, X.long(), rows, rows, rows, ["anna"])
    assert named.names == ("anna",) and named.clients == 1


def test_padding_of_a_client_without_rows_weighs_nothing() -> None:
    world = client_data([(2, 0, 0), (0, 0, 0), (2, 0, 0)])
    data = world.data(torch.tensor([1]))
    one = data._replace(rows=data.rows[0], n=data.n[0])
    for batch in one.batches(2, torch.tensor(0)):
        assert not batch.active and batch.weight.sum() == 0


def test_rows_are_laid_once_until_somebody_changes_them() -> None:
    world, laid, ids = client_data([(3, 1, 2), (2, 2, 1)]), LaidRows(), torch.tensor([1, 0])
    first, test = laid.of(world, ids), laid.of(world, ids, "test")
    assert laid.of(world, ids) is first and laid.of(world, ids, "test") is test
    assert laid.of(world, torch.tensor([0, 1])) is not first
    again = laid.of(world, ids)
    assert torch.equal(again.rows, first.rows)
    vmap(lambda rows: rows.mul_(0))(again.rows)
    assert torch.equal(laid.of(world, ids).rows, first.rows)
    other = client_data([(1, 1, 2), (4, 2, 1)])
    assert torch.equal(laid.of(other, ids).rows, other.data(ids).rows)
