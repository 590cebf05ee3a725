"""How many clients share the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor.core import rng
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, chunk
from fedtailor.engine.chunk import clients_that_fit


def world(clients: int = 50, rows: int = 4) -> ClientData:
    x = torch.zeros(clients * rows, 4)
    deal = np.array_split(np.arange(clients * rows), clients)
    return ClientData.of(x, torch.zeros(len(x), dtype=torch.int64), deal, deal, deal)


def task(width: int = 8) -> Task:
    return classification(
        lambda: nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))
    )


def choose(memory: int, monkeypatch: pytest.MonkeyPatch, batch: int = 4, width: int = 8) -> int:
    monkeypatch.setattr(chunk, "free_memory", lambda device: memory)
    made = task(width)
    params = made.init(rng.key(0))
    return clients_that_fit(made, params, world(), {"p": params}, {}, Recipe(batch=batch))


def test_at_least_one_client_fits_and_maybe_more_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [choose(memory, monkeypatch) for memory in (0, 1, 10**5, 10**6, 10**12)]
    assert found[0] == 1 and found[-1] > 50
    assert found == sorted(found)
    assert all(isinstance(n, int) for n in found)


def test_it_is_smaller_for_less_memory_larger_models_and_larger_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    middle = choose(400_000, monkeypatch)
    assert 1 < middle < 50
    assert choose(200_000, monkeypatch) < middle
    assert choose(400_000, monkeypatch, width=32) < middle
    assert choose(400_000, monkeypatch, batch=64) < middle


def test_workers_have_caches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "CACHE", 10_000)
    made = task()
    params = made.init(rng.key(0))
    few, many = (
        clients_that_fit(made, params, world(), {}, {}, Recipe(), mapped=mapped)
        for mapped in (True, False)
    )
    assert few < 50 < many


def test_the_estimate_covers_at_least_what_training_must_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = task().init(rng.key(0))
    model = sum(p.numel() * p.element_size() for p in params.values())
    # parameters, gradients and results of every client of the chunk
    assert choose(300_000, monkeypatch) * 3 * model < 300_000


def test_what_all_clients_are_sent_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "free_memory", lambda device: 10**6)
    made = task()
    params = made.init(rng.key(0))
    everybody = {k: torch.zeros(50, *v.shape) for k, v in params.items()}
    message = {"all": everybody, "flag": torch.ones(50)}
    server = {"models": everybody}
    fits = lambda sent, **how: clients_that_fit(made, params, world(), sent, {}, Recipe(), **how)
    of_one = {"all": {k: v[0].clone() for k, v in everybody.items()}, "flag": message["flag"]}
    few, many, alone = fits(message), fits(message, server=server), fits(of_one)
    assert few < alone / 5 and many >= 0.9 * alone  # each makes a model of it at most
    copied = {"all": {k: v.clone() for k, v in everybody.items()}, "flag": message["flag"]}
    assert fits(copied, server=server) == few


def test_measuring_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "free_memory", lambda device: 10**6)
    made = task()
    params = made.init(rng.key(0))
    before = {k: v.clone() for k, v in params.items()}
    state = torch.get_rng_state()
    clients_that_fit(made, params, world(), {}, {}, Recipe(batch=0))
    assert all(torch.equal(params[k], before[k]) and not params[k].requires_grad for k in params)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_rows_at_once_are_measured_on_the_largest_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunk, "free_memory", lambda device: 10**6)
    made = task()
    params = made.init(rng.key(0))
    found = []
    for first, second in ((2, 3000), (3000, 2)):
        rows = [np.arange(first), np.arange(second), *[np.arange(2)] * 48]
        x = torch.zeros(3000, 4)
        client_data = ClientData.of(x, torch.zeros(3000, dtype=torch.int64), rows, rows, rows)
        found.append(clients_that_fit(made, params, client_data, {}, {}, Recipe(batch=0)))
    assert found[0] == found[1]
