"""A client's rows, and the batches they make."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.data import Counts, Data
from fedtailor.core.task import Batch

pytestmark = pytest.mark.usefixtures("float64")

sizes = st.integers(1, 12)
paddings = st.integers(0, 6)


def client(n: int, padding: int = 0, val: int = 2) -> Data:
    """A client whose rows are 100, 101, ...; padding is a stranger's, to be found out."""
    x = torch.arange(200.0)
    rows = torch.cat([torch.arange(100, 100 + n), torch.arange(padding)])
    val_rows = torch.arange(150, 150 + val)
    counts = Counts(torch.tensor([n]), torch.tensor([val]))
    return Data(x, x.long(), rows, torch.tensor(n), val_rows, torch.tensor(val), counts)


def sample(data: Data, size: int, seed: int) -> Batch:
    """One batch drawn at random."""
    return next(data.filled(data.draws(size, rng.key(seed)[None])))


def real(batch: Batch) -> list[int]:
    """The rows of a batch that count."""
    return batch.x[batch.weight > 0].long().tolist() if bool(batch.active) else []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), paddings, st.integers(0, 1000))
def test_a_shuffle_permutes_the_own_rows_and_keeps_padding_last(
    n: int, padding: int, seed: int
) -> None:
    data = client(n, padding)
    shuffled = data.shuffle(rng.key(seed))
    assert sorted(shuffled.rows[:n].tolist()) == data.rows[:n].tolist()
    assert shuffled.rows[n:].tolist() == data.rows[n:].tolist()
    # the width is a matter of the other clients in the chunk: it must not show
    assert torch.equal(shuffled.rows[:n], client(n).shuffle(rng.key(seed)).rows)


def test_a_shuffle_depends_on_its_key() -> None:
    orders = {tuple(client(8).shuffle(rng.key(k)).rows.tolist()) for k in range(20)}
    assert len(orders) == 20


def test_a_shuffle_of_many_clients_is_that_of_each() -> None:
    ns = torch.tensor([5, 3, 1, 0])
    rows = torch.arange(20).view(4, 5)
    keys = rng.fold(rng.key(0), torch.arange(4))
    x = torch.arange(20.0)

    def order(own: Tensor, n: Tensor, key: Tensor) -> Tensor:
        return Data(x, x.long(), own, n, own[:0], n * 0).shuffle(key).rows

    together = vmap(order)(rows, ns, keys)
    for i in range(4):
        assert torch.equal(together[i], order(rows[i], ns[i], keys[i]))


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.integers(0, 15))
def test_batches_cover_every_row_once_in_order(n: int, padding: int, size: int) -> None:
    data = client(n, padding)
    batches = list(data.batches(size, rng.key(0)))
    assert [row for batch in batches for row in real(batch)] == data.rows[:n].tolist()
    for batch in batches:
        assert len(batch.x) == (size or n + padding)
        # filled up with rows of its own, never with a stranger's
        assert int(batch.x.min()) >= 100
        assert torch.equal(batch.y, batch.x.long())


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.integers(1, 15))
def test_drop_leaves_the_unfinished_batch_out(n: int, padding: int, size: int) -> None:
    batches = list(client(n, padding).batches(size, rng.key(0), "drop"))
    rows = [row for batch in batches for row in real(batch)]
    assert rows == list(range(100, 100 + n // size * size))
    assert all(bool((batch.weight == 1).all()) for batch in batches if bool(batch.active))


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.integers(1, 15))
def test_wrap_fills_the_unfinished_batch_with_rows_from_the_start(
    n: int, padding: int, size: int
) -> None:
    batches = list(client(n, padding).batches(size, rng.key(0), "wrap"))
    rows = [row for batch in batches for row in real(batch)]
    steps = -(-n // size)
    assert rows == [100 + i % n for i in range(steps * size)]


@pytest.mark.parametrize("last", ["pad", "wrap", "drop"])
def test_batch_zero_takes_all_rows_at_once_whatever_the_chunk(last: str) -> None:
    for padding in (0, 3):
        batches = list(client(5, padding).batches(0, rng.key(0), last))
        assert [real(batch) for batch in batches] == [[100, 101, 102, 103, 104]]


def test_every_batch_has_a_key_of_its_own() -> None:
    keys = [int(b.key) for b in client(10).batches(2, rng.key(0))]
    assert len(set(keys)) == 5
    assert keys == [int(b.key) for b in client(10, 4).batches(2, rng.key(0))][:5]


@pytest.mark.parametrize("last", ["pad", "wrap", "drop"])
def test_what_the_host_knows_is_what_the_device_does(last: str) -> None:
    for n in range(13):
        for size in (0, 1, 2, 3, 5, 20):
            data = client(n, padding=max(1 - n, 2))
            parts = [data, data.first(0.6), data.rest(0.6), data.window(0.3, rng.key(1)), data.val]
            for part in parts:
                steps = part.steps(size, rng.key(0), last)
                assert steps.known is not None
                assert steps.known.rows.tolist() == [steps.active.tolist()]
            drawn = data.draws(size, torch.arange(3))
            assert drawn.known is not None
            assert drawn.known.rows.tolist() == [drawn.active.tolist()]


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.floats(0, 1))
def test_the_first_part(n: int, padding: int, share: float) -> None:
    part = client(n, padding).first(share)
    count = int(part.n)
    assert 1 <= count <= n
    assert abs(count - share * n) < 1 + 1e-3 or count == 1
    assert part.rows[:count].tolist() == list(range(100, 100 + count))


def test_a_share_that_floats_cannot_hold_is_not_rounded_down() -> None:
    for n, share, expected in ((100, 0.29, 29), (10, 0.7, 7), (5, 1.0, 5), (10, 0.35, 3)):
        assert int(client(n).first(share).n) == expected
        assert int(client(n).window(share, rng.key(0)).n) == expected


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.floats(0, 1), st.integers(0, 1000))
def test_a_window_is_contiguous_and_of_own_rows(
    n: int, padding: int, share: float, seed: int
) -> None:
    part = client(n, padding).window(share, rng.key(seed))
    count = int(part.n)
    rows = part.rows[:count].tolist()
    assert 1 <= count <= n
    assert count == int(client(n, padding).first(share).n)
    assert rows == list(range(rows[0], rows[0] + count))
    assert rows[0] >= 100 and rows[-1] < 100 + n
    assert rows == client(n).window(share, rng.key(seed)).rows[:count].tolist()


def test_windows_begin_everywhere() -> None:
    begins = {int(client(6, 2).window(0.5, rng.key(k)).rows[0]) for k in range(100)}
    assert begins == {100, 101, 102, 103}


@pytest.mark.parametrize("how", ["first", "window"])
def test_a_part_of_no_rows_is_no_rows(how: str) -> None:
    empty = client(0, padding=3)
    part = empty.first(0.5) if how == "first" else empty.window(0.5, rng.key(0))
    assert int(part.n) == 0
    for size in (0, 2):
        assert not any(bool(batch.active) for batch in part.batches(size, rng.key(0)))


@settings(max_examples=60, deadline=None)
@given(sizes, paddings, st.integers(0, 15), st.integers(0, 1000))
def test_a_sample_is_drawn_without_replacement(n: int, padding: int, size: int, seed: int) -> None:
    batch = sample(client(n, padding), size, seed)
    rows = real(batch)
    assert len(rows) == len(set(rows)) == min(size or n, n)
    assert set(rows) <= set(range(100, 100 + n))
    assert rows == real(sample(client(n), size, seed))


def test_validation_rows_are_never_among_the_training_batches() -> None:
    data = client(9, 2, val=4)
    val = {row for batch in data.val.batches(3, rng.key(0)) for row in real(batch)}
    trained = {row for batch in data.batches(4, rng.key(0)) for row in real(batch)}
    assert val == {150, 151, 152, 153}
    assert not val & trained
    assert int(data.val.n) == 4 and data.val.counts is not None
    assert data.val.counts.n.tolist() == [4]


def test_a_client_without_rows_has_no_active_batch() -> None:
    for last in ("pad", "drop", "wrap"):
        batches = list(client(0, padding=4).batches(2, rng.key(0), last))
        assert len(batches) == 2
        assert not any(bool(batch.active) for batch in batches)


@pytest.mark.parametrize("size", [3, 0])
def test_no_rows_at_all_make_no_batches(size: int) -> None:
    assert list(client(0).batches(size, rng.key(0))) == []
