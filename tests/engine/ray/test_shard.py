"""Parts of a federation for workers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedtailor.core import rng
from fedtailor.engine import ClientData
from fedtailor.engine.ray.shard import assign_clients, shard
from fedtailor.methods.check import toy_federation


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_everybody_is_dealt_once_and_work_is_about_equal(workers: int) -> None:
    sizes = rng.bits(rng.key(1), 50) % 90 + 10
    dealt = assign_clients([torch.arange(50)], sizes, workers)
    assert torch.cat(dealt).sort().values.tolist() == list(range(50))
    assert all(ids.tolist() == sorted(ids.tolist()) for ids in dealt)
    counts, rows = [len(ids) for ids in dealt], [int(sizes[ids].sum()) for ids in dealt]
    assert max(counts) - min(counts) <= 1
    assert max(rows) - min(rows) <= int(sizes.max())


def test_each_network_is_dealt_evenly() -> None:
    groups = [torch.arange(0, 10), torch.arange(10, 16)]
    dealt = assign_clients(groups, torch.ones(16, dtype=torch.int64), 2)
    for ids in groups:
        assert [int(torch.isin(mine, ids).sum()) for mine in dealt] == [len(ids) // 2] * 2


def test_nobody_is_left_without_clients() -> None:
    assert [len(ids) for ids in assign_clients([torch.arange(3)], torch.tensor([5, 0, 9]), 3)] == [
        1,
        1,
        1,
    ]


@pytest.mark.parametrize("ids", [[0, 3, 4], [7], list(range(8))])
def test_a_shard_shows_its_clients_what_the_whole_does(ids: list[int]) -> None:
    whole = toy_federation()
    part = shard(whole, torch.tensor(ids)).client_data("cpu")
    assert part.names == whole.names and part.clients == whole.clients
    some = torch.tensor(ids)
    for name in ("train", "val", "test"):
        one, two = (f.part(some, name) for f in (part, whole))
        assert torch.equal(one.n, two.n)
        assert torch.equal(one.x[one.rows], two.x[two.rows])
        assert torch.equal(one.y[one.rows], two.y[two.rows])
    for kind in ("rows", "val_rows"):
        one, two = part.data(some), whole.data(some)
        assert torch.equal(one.x[getattr(one, kind)], two.x[getattr(two, kind)])
    rows = sum(int(f.n[some].sum()) for f in (whole.train, whole.val, whole.test))
    assert len(part.x) == rows, "rows of others stay where they are"
    others = [i for i in range(8) if i not in ids]
    assert int(part.train.n[others].sum()) == 0


def test_rows_that_several_clients_have_are_kept_once() -> None:
    x = torch.arange(6.0)
    shared = [np.array([0, 1, 2]), np.array([2, 1]), np.array([5])]
    none = [np.empty(0, dtype=np.int64)] * 3
    whole = ClientData.of(x, x.long(), shared, none, none)
    part = shard(whole, torch.tensor([0, 1])).client_data("cpu")
    assert part.x.tolist() == [0.0, 1.0, 2.0]
    data = part.data(torch.tensor([0, 1]))
    assert data.x[data.rows].tolist() == [[0.0, 1.0, 2.0], [2.0, 1.0, 2.0]]
