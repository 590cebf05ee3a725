"""Copies between host and GPU; where there is no GPU, what happens without pinned memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.tree import Tree
from fedtailor.engine import transfer
from fedtailor.engine.state_store import StateStore

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROWS, WIDTH = 64, 1 << 16


def states(n: int, seed: int = 0) -> Tree:
    values = rng.normal(rng.key(seed), n, WIDTH)
    return {"w": values, "deep": {"n": values[:, 0].long(), "flag": values[:, 1] > 0}, "none": {}}


def test_no_pinned_memory_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.empty
    asked = []

    def refuse(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            asked.append(shape)
            raise RuntimeError("CUDA error: out of memory")
        return plain(*shape, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    made = transfer._pinned((2, 3), torch.float64)
    assert asked and made.shape == (2, 3) and made.dtype == torch.float64


NUMBERS = torch.arange(6).reshape(2, 3), torch.tensor([7]), torch.zeros(0, 4, dtype=torch.int64)


def test_what_is_on_its_device_is_not_copied() -> None:
    there = transfer.upload(torch.device("cpu"), *NUMBERS)
    assert all(a is b for a, b in zip(there, NUMBERS, strict=True))


@needs_gpu
def test_numbers_reach_a_gpu_without_waiting_for_it() -> None:
    device = torch.device("cuda", 0)
    transfer.upload(device, *NUMBERS)  # libraries set themselves up
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = transfer.upload(device, *NUMBERS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(there, NUMBERS, strict=True):
        assert a.device == device and torch.equal(a.cpu(), b)


@needs_gpu
@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.parametrize("pinned", [True, False])
def test_rows_go_there_and_back(
    place: Any, pinned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if not pinned:
        monkeypatch.setattr(
            transfer, "_pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype)
        )
    device = torch.device("cuda", 0)
    store = StateStore(ROWS, tree.index(states(1), 0), device, place, tmp_path)
    assert not any(leaf.is_pinned() for leaf in tree.leaves(store.rows))
    new = tree.map(lambda p: p.to(device), states(ROWS))
    landings = []
    for ids in torch.arange(ROWS).split(8):
        landings.append((ids, transfer.land(tree.index(new, ids.to(device)), store._copying)))
        # the device is busy, and memory that was just read is used again
        tree.map(torch.zeros_like, tree.index(new, ids.to(device)))
    for ids, landing in landings:
        rows = landing()
        assert all(not leaf.is_pinned() and not leaf.is_cuda for leaf in tree.leaves(rows))
        store.put(ids, rows)
    for step in (8, 16):
        for ids in torch.arange(ROWS).split(step):
            store.expect((ids + step) % ROWS)
            got = store.get(ids if step == 8 else (ids + step) % ROWS)
            wanted = tree.index(new, (ids if step == 8 else (ids + step) % ROWS).to(device))
            assert all(
                torch.equal(a, b)
                for a, b in zip(tree.leaves(got), tree.leaves(wanted), strict=True)
            )
    store.close()


@needs_gpu
def test_what_was_expected_is_not_given_when_it_changed() -> None:
    device = torch.device("cuda", 0)
    store = StateStore(4, tree.index(states(1), 0), device, "host")
    ids = torch.tensor([1, 3])
    store.expect(ids)
    store.put(torch.tensor([3]), states(1, seed=5))
    assert torch.equal(store.get(ids)["w"][1].cpu(), states(1, seed=5)["w"][0])
    store.expect(ids)
    store.put(torch.tensor([0]), states(1, seed=6))  # somebody else's
    assert torch.equal(store.get(ids)["w"][1].cpu(), states(1, seed=5)["w"][0])


@needs_gpu
def test_a_gpu_that_is_too_small_gets_smaller_chunks() -> None:
    from fedtailor.core.task import classification
    from fedtailor.core.training import Recipe
    from fedtailor.engine import ClientData, Simulation
    from fedtailor.methods import ditto

    device = torch.device("cuda", 0)
    x = rng.normal(rng.key(0), 640, 256).to(device)
    rows = torch.arange(640).reshape(64, 10).numpy()
    fed = ClientData.of(x, (x[:, 0] > 0).long(), list(rows), list(rows), list(rows))
    task = classification(
        lambda: nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2)), device=device
    )
    recipe = Recipe(batch=10)
    total = torch.cuda.get_device_properties(device).total_memory
    ends = []
    for chunk, share in ((8, 1.0), (64, 0.0)):
        simulation = Simulation(
            ditto(task, recipe=recipe), fed, task, chunk=chunk, place="host", recipe=recipe
        )
        torch.cuda.empty_cache()
        if share == 0.0:  # room for what is there and for some of the 64
            share = (torch.cuda.memory_allocated() + 64 * 2.2e6 * 3) / total
        torch.cuda.set_per_process_memory_fraction(share)
        try:
            for _ in range(2):
                simulation.step(torch.arange(64))
            ends.append((simulation.chunk, simulation.states.rows["own"]))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert ends[1][0] < 64
    for name, leaf in ends[0][1].items():
        torch.testing.assert_close(leaf, ends[1][1][name], rtol=1e-3, atol=1e-4)
