"""A worker by itself, without Ray: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Simulation
from fedtailor.engine.clients import ClientSettings
from fedtailor.engine.fold import Fold
from fedtailor.engine.ray.arrays import as_arrays, as_tensors, from_arrays, to_arrays
from fedtailor.engine.ray.shard import shard
from fedtailor.engine.ray.worker import RayWorker, WorkerSpec, fold_from_arrays
from fedtailor.methods import METHODS
from fedtailor.methods.check.world import CLIENTS, NETWORKS, toy_federation

RECIPE = Recipe(batch=8, lr=0.1)
HALVES = torch.tensor([0, 2, 5, 7]), torch.tensor([1, 3, 4, 6])
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.fixture(scope="module", autouse=True)
def float64() -> Iterator[None]:
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
    torch.set_num_threads(threads)


def build(device: str) -> list[Any]:
    task = classification(NETWORKS["batch-norm"], device=device)
    return [(METHODS["ditto"](task, recipe=RECIPE), task, torch.arange(CLIENTS))]


def acquire(ids: torch.Tensor, driver: Simulation, device: str = "cpu") -> RayWorker:
    worker = RayWorker()
    spec = WorkerSpec(
        build=build,
        members=[ids],
        seed=0,
        settings=ClientSettings(RECIPE, place="host", chunk=3),
        device=device,
        dtype=torch.float64,
        threads=1,
    )
    worker.look_in([])
    turn = driver._turn(rng.TURN)
    ready = worker.load(spec, shard(driver.client_data, ids), to_arrays(driver.server), turn)
    assert ready.chunk == 3 and ready.place == "host" and list(ready.like) == [0]
    return worker


def driver() -> Simulation:
    method, task, _ = build("cpu")[0]
    return Simulation(method, toy_federation(), task, rounds=4)


@pytest.mark.parametrize("device", DEVICES)
def test_workers_play_what_one_machine_does(device: str) -> None:
    whole = driver()
    workers = [acquire(ids, whole, device) for ids in HALVES]
    for cohort in ([0, 1, 2, 3, 4, 5], [1, 2, 6], list(range(CLIENTS))):
        sent, turn = to_arrays(whole.server), whole._turn(rng.TURN)
        fold, said = Fold(), {}
        for worker, ids in zip(workers, HALVES, strict=True):
            mine = torch.tensor([i for i in cohort if i in ids])
            report, folded, each = worker.play(sent, as_arrays(mine), as_arrays(turn), True)
            answered = as_tensors(report)
            fold.merge(fold_from_arrays(folded))
            assert not answered.has_each and each == {} and answered.taken.tolist() == mine.tolist()
            said |= dict(zip(mine.tolist(), answered.measured.post.test, strict=True))
            done, states = worker.keep()
            assert done and states[0][0].tolist() == mine.tolist()
        report = whole.step(torch.tensor(cohort), post=True)
        assert report.post is not None
        for i, own in zip(cohort, report.post.test, strict=True):
            assert torch.allclose(said[i], own[: len(said[i])], rtol=1e-5, atol=1e-6)
        for name, leaf in tree.flatten(fold.mean()).items():
            here = tree.flatten(whole.server)[name]
            torch.testing.assert_close(leaf, here, rtol=1e-9, atol=1e-9)
    kept = whole.client_states()[0]
    for worker, ids in zip(workers, HALVES, strict=True):
        _, states = worker.client_states()
        assert states[0][0].tolist() == ids.tolist()
        rows = tree.flatten(from_arrays(states[0][1]))
        for name, leaf in tree.flatten(tree.index(kept.rows, ids)).items():
            torch.testing.assert_close(rows[name], leaf, rtol=1e-9, atol=1e-9)
        worker.clear()


def test_states_that_are_put_back_are_played_on() -> None:
    whole = driver()
    first, second = acquire(HALVES[0], whole), acquire(HALVES[0], whole)
    sent, turn = to_arrays(whole.server), whole._turn(rng.TURN)
    first.play(sent, HALVES[0], turn, False)
    _, states = first.keep()
    second.restore_states(states)
    one, two = (w.play(sent, HALVES[0], turn, False)[1] for w in (first, second))
    assert one.keys() == two.keys() and all((one[k] == two[k]).all() for k in one)
    assert not bool(second.play(sent, HALVES[0], turn, False)[0].measured.fresh.any())


def test_what_is_played_and_not_kept_changes_nothing() -> None:
    whole = driver()
    worker = acquire(HALVES[0], whole)
    sent, turn = to_arrays(whole.server), whole._turn(rng.TURN)
    one = worker.play(sent, HALVES[0], turn, False)
    two = worker.play(sent, HALVES[0], turn, False)
    assert bool(two[0].measured.fresh.all())
    assert all((one[1][k] == two[1][k]).all() for k in one[1])
    assert len(worker.client_states()[1][0][0]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_worker_without_a_gpu_says_so() -> None:
    with pytest.raises(BadInput, match="device 'cuda' cannot be used by a worker"):
        acquire(HALVES[0], driver(), "cuda")
