"""Clients on Ray workers: the same results as on one machine, and no more travels than must."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Diverged, Simulation
from fedtailor.engine.ray.cluster import BuildGroups, Cluster
from fedtailor.methods import METHODS
from fedtailor.methods.check.world import CLIENTS, NETWORKS, toy_federation
from fedtailor.results import storage
from tests.engine.ray.raylab import (
    COHORTS,
    RECIPE,
    agree,
    builder,
    kill,
    mostly_slow,
    outcome,
    play,
    ray,
    ray_clients,
    start,
)

pytestmark = pytest.mark.usefixtures("float64")

# one of each kind of upload and state; the others are for --slow
FAST = (
    "local", "fedavg", "ditto", "scaffold", "fedala", "fedfomo", "pfedhn", "fedavg-data",
    "fedavg+median",
)  # fmt: skip


# the clients of centralised do not train
PLAYED = [*sorted(METHODS.keys() - {"centralised"}), "fedavg+median", "scaffold+geometric"]


@pytest.mark.parametrize("name", mostly_slow(PLAYED, FAST))
def test_same_results_as_one_machine(name: str) -> None:
    agree(play(start(name, workers=2)), play(start(name)))


def test_networks_with_running_statistics_and_dropout() -> None:
    build = builder("fedbn", {}, network="batch-norm")
    agree(play(start("", build=build, workers=2)), play(start("", build=build)))


@pytest.mark.parametrize("place", ["host", "disk"])
@pytest.mark.slow
def test_states_may_lie_elsewhere(place: Any) -> None:
    simulation = start("ditto", workers=2, place=place)
    assert simulation.place == place
    agree(play(simulation), play(start("ditto")))


def test_noisy_gradients_are_counted() -> None:
    recipe = Recipe(epochs=1, batch=8, lr=0.1, dp_clip=1.0, dp_noise=0.5)
    agree(play(start("fedavg", workers=2, recipe=recipe)), play(start("fedavg", recipe=recipe)))


# --- what travels ---


class Spy:
    """Ray, with a list of what the driver got and put."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.puts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def get(self, reference: Any, **options: Any) -> Any:
        found = ray.get(reference, **options)
        self.got.extend(found if isinstance(reference, list) else [found])
        return found

    def put(self, value: Any) -> Any:
        self.puts += 1
        return ray.put(value)


@pytest.mark.parametrize(("name", "one_by_one"), [("ditto", False), ("fedfomo", True)])
@pytest.mark.slow
def test_only_what_is_needed_travels(name: str, one_by_one: bool) -> None:
    simulation = start(name, workers=2)
    simulation.step(torch.arange(CLIENTS))
    spy = ray_clients(simulation)._ray = Spy()
    simulation.step(torch.arange(CLIENTS))
    kinds = sorted(type(value).__name__ for value in spy.got)
    # of each worker a word, a mean, and that states are kept; `each` only where it is used
    assert kinds == sorted(["RoundAnswer", "dict", "bool"] * 2 + ["dict"] * (2 * one_by_one))
    assert spy.puts == 1  # the server's state
    folds = [value for value in spy.got if isinstance(value, dict) and "total" in value]
    assert len(folds) == 2
    model = tree.flatten(simulation.initial)
    for fold in folds if name == "ditto" else []:
        shapes = sorted(array.shape for k, array in fold.items() if k.startswith("mean/"))
        assert shapes == sorted(p.shape for p in model.values()), "one model, whatever the cohort"
    simulation.close()


@pytest.mark.slow
def test_the_servers_state_is_sent_once_per_round() -> None:
    simulation = start("fedavg", workers=2)
    simulation.step(torch.arange(CLIENTS))
    spy = ray_clients(simulation)._ray = Spy()
    simulation.score()
    simulation.score(part="train")
    list(simulation.models())
    simulation.step(torch.arange(CLIENTS))
    assert spy.puts == 1
    simulation.score()
    assert spy.puts == 2
    simulation.close()


# --- divergence, checkpoints, methods of one's own ---


def poisoned(bad: tuple[int, ...]) -> BuildGroups:
    """FedAvg in which some clients send what is not a number."""

    def build(device: str) -> list[Any]:
        task = classification(NETWORKS["dense"])
        method = METHODS["fedavg"](task, recipe=RECIPE)
        victims = torch.tensor(bad)

        def send(server: Any, cid: Any, turn: Any) -> Any:
            return method.send(server, cid, turn) | {"cid": cid + 0}

        def client(message: Any, state: Any, data: Any, turn: Any) -> Any:
            done = method.client(message, state, data, turn)
            ill = (victims == message["cid"]).any()
            spoilt = tree.map(lambda p: torch.where(ill, torch.nan, p), done.upload.mean)
            return done._replace(upload=done.upload._replace(mean=spoilt))

        return [(method._replace(send=send, client=client), task, torch.arange(CLIENTS))]

    return build


@pytest.mark.slow
def test_diverged_clients_stop_the_round_or_are_left_out() -> None:
    pair = [start("", build=poisoned((1, 3, 4, 6)), workers=w) for w in (2, 0)]
    for simulation in pair:
        with pytest.raises(Diverged, match="client-1, client-3, client-4 diverged"):
            simulation.step(torch.tensor([0, 1, 2, 3, 4]))
        assert simulation.round == 0 and not len(simulation.client_states()[0].ids)
        report = simulation.step(torch.tensor([0, 1, 2, 3, 4, 6]), on_nan="skip")
        assert report.skipped.tolist() == [1, 3, 4, 6] and report.taken.tolist() == [0, 2]
        assert simulation.client_states()[0].ids.tolist() == [0, 2]
    agree(*(tree.flatten(simulation.server) for simulation in pair))
    pair[0].close()


def test_what_is_wrong_in_a_worker_is_said_here() -> None:
    def build(device: str) -> list[Any]:
        raise BadInput("colour is 'green': use another")

    method, task, _ = builder("fedavg", {})("cpu")[0]
    with pytest.raises(BadInput, match=r"^colour is 'green': use another$"):
        Simulation(method, toy_federation(), task, cluster=Cluster(build, 2))


def test_what_a_method_of_ones_own_raises_in_a_worker_is_one_line() -> None:
    def build(device: str) -> list[Any]:
        def lost(*given: Any) -> Any:
            raise KeyError("b")

        return [(m._replace(client=lost), *rest) for m, *rest in builder("fedavg", {})(device)]

    method, task, _ = builder("fedavg", {})("cpu")[0]
    simulation = Simulation(method, toy_federation(), task, cluster=Cluster(build, 2))
    told = r"^lost of your own \(test_clients.py, line \d+: .*\) raises KeyError: 'b': mend it"
    try:
        with pytest.raises(BadInput, match=told):
            simulation.step(torch.tensor([0, 1]))
    finally:
        simulation.close()


@pytest.mark.parametrize("name", mostly_slow(["fedala", "pfedhn"], ("fedala",)))
@pytest.mark.slow
def test_checkpoints_there_and_back(name: str, tmp_path: Path) -> None:
    """Also from one engine to the other: a checkpoint does not say where clients were."""
    first = start(name, workers=2)
    for cohort in COHORTS[:2]:
        first.step(torch.tensor(cohort))
    storage.save_checkpoint(tmp_path / "c", storage.Snapshot.of(first), {})
    first.close()
    found = []
    for workers in (2, 0, 1):
        second = start(name, workers=workers)
        storage.restore_checkpoint(tmp_path / "c", second)
        assert second.round == 2 and second.chunk == 3
        if workers == 2 and name == "pfedhn":
            kill(second, 1)  # what was restored outlives a worker, too
        for cohort in COHORTS[2:]:
            second.step(torch.tensor(cohort))
        found.append(outcome(second, []))
        second.close()
    whole = play(start(name))
    for one in found:
        assert one.keys() <= whole.keys()
        agree(one, {k: v for k, v in whole.items() if k in one})


@pytest.mark.slow
def test_methods_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by workers that were started before anybody knew of the module."""
    (tmp_path / "methods_of_my_own.py").write_text(
        "import torch\n"
        "from fedtailor.methods.check.world import NETWORKS\n"
        "from fedtailor.methods import METHODS\n"
        "from fedtailor.core.task import classification\n"
        "def build(device):\n"
        "    task = classification(NETWORKS['dense'], device=device)\n"
        "    return [(METHODS['fedavg'](task), task, torch.arange(8))]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    build = importlib.import_module("methods_of_my_own").build
    agree(play(start("", build=build, workers=2)), play(start("", build=build)))


@pytest.mark.slow
def test_workers_serve_the_next_run() -> None:
    first = start("fedavg", workers=2)
    before = {slot.actor._actor_id for slot in ray_clients(first)._slots}
    first.close()
    second = start("local", workers=2)
    assert {slot.actor._actor_id for slot in ray_clients(second)._slots} == before
    second.close()
