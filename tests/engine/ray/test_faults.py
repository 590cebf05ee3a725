"""Workers that are lost, or run out of memory: the result is as if nothing had happened."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.core.tree import Tree
from fedtailor.engine import Simulation
from fedtailor.engine.ray.cluster import BuildGroups, Cluster
from fedtailor.methods import METHODS
from fedtailor.methods.check.world import CLIENTS, NETWORKS, toy_federation
from tests.engine.ray.raylab import (
    COHORTS,
    RECIPE,
    agree,
    builder,
    kill,
    mostly_slow,
    outcome,
    play,
    ray_clients,
    start,
)

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(["ditto", "fedfomo", "fedavg"], ("ditto",)))
def test_a_worker_lost_between_rounds(name: str, caplog: pytest.LogCaptureFixture) -> None:
    simulation = start(name, workers=2)
    losses = {1: (0,), 4: (1,)}  # the last one before evaluation
    with caplog.at_level(logging.WARNING, "fedtailor"):
        found = play(simulation, lambda number: kill(simulation, *losses.get(number, ())))
    agree(found, play(start(name)))
    answered = [record.getMessage() for record in caplog.records]
    assert answered == [f"worker {number} was lost: it is started again" for number in (0, 1)]


@pytest.mark.parametrize("name", mostly_slow(["ditto", "fedfomo"], ("fedfomo",)))
def test_a_worker_lost_before_its_states_are_kept(name: str) -> None:
    """The round is played again by the lost worker alone; the server's new state is not lost."""
    simulation = start(name, workers=2)
    receive = simulation.method.receive
    rounds = []

    def receive_and_kill(*given: Any) -> Tree:
        rounds.append(simulation.round)
        if len(rounds) == 2:
            kill(simulation, 1)
        return receive(*given)

    simulation.method = simulation.method._replace(receive=receive_and_kill)
    agree(play(simulation), play(start(name)))
    assert rounds == [0, 1, 2, 3]


def test_a_worker_lost_while_it_keeps_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round is asked for before they are known to be kept; both are played again."""
    simulation = start("ditto", workers=2)
    clients = ray_clients(simulation)
    settle, lost = clients._settle, []

    def kill_and_settle() -> None:
        if clients._unsettled is not None and simulation.round == 2 and not lost:
            lost.append(1)
            kill(simulation, *lost)
        settle()

    monkeypatch.setattr(clients, "_settle", kill_and_settle)
    agree(play(simulation), play(start("ditto")))
    assert lost


def dying(path: Path, *, forever: bool = False) -> BuildGroups:
    """Ditto, whose worker dies in the second round, in the middle of a client's training."""
    folder = str(path)

    def build(device: str) -> list[Any]:
        import os
        import pathlib

        task = classification(NETWORKS["dense"])
        method = METHODS["ditto"](task, recipe=RECIPE)

        def client(message: Any, state: Any, data: Any, turn: Any) -> Any:
            done = method.client(message, state, data, turn)
            mark = pathlib.Path(folder) / "died"
            if int(turn.round) == 1 and (forever or not mark.exists()):
                mark.touch()
                os._exit(1)
            return done

        return [(method._replace(client=client), task, torch.arange(CLIENTS))]

    return build


def test_a_worker_lost_in_the_middle_of_a_round(tmp_path: Path) -> None:
    found = play(start("", build=dying(tmp_path), workers=2))
    assert (tmp_path / "died").exists()
    agree(found, play(start("ditto")))


@pytest.mark.slow
def test_a_worker_that_is_lost_again_and_again_is_bad_input(tmp_path: Path) -> None:
    simulation = start("", build=dying(tmp_path, forever=True), workers=1)
    simulation.step(torch.arange(CLIENTS))
    before = tree.map(torch.clone, simulation.server)
    with pytest.raises(BadInput, match=r"worker 0 was lost 4 times in a row.*lower --chunk"):
        simulation.step(torch.arange(CLIENTS))
    assert simulation.round == 1
    agree(tree.flatten(before), tree.flatten(simulation.server), 0)
    simulation.close()


def test_copies_of_states_do_not_pile_up() -> None:
    simulation = start("ditto", workers=2)
    most = 0
    for number in range(12):
        simulation.step(torch.tensor([number % CLIENTS, (number + 3) % CLIENTS]))
        for slot in ray_clients(simulation)._slots:
            held = sum(count for count, _ in slot.replicas._copies.values())
            most = max(most, held)
            assert held <= 2 * len(slot.ids)
    assert most > 2
    kill(simulation, 0)
    wanted = start("ditto")
    for number in range(12):
        wanted.step(torch.tensor([number % CLIENTS, (number + 3) % CLIENTS]))
    agree(outcome(simulation, []), outcome(wanted, []))
    simulation.close()


@pytest.mark.slow
def test_a_worker_without_memory_takes_smaller_chunks(caplog: pytest.LogCaptureFixture) -> None:
    def build(device: str) -> list[Any]:
        from fedtailor.engine import mapper
        from fedtailor.engine.mapper import vectorised

        def cramped(fn: Any) -> Any:
            def run(client: Any) -> Any:
                if len(client.cid) > 2:
                    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
                return vectorised(fn)(client)

            return run

        mapper.MAPPERS["vectorised"] = cramped
        return builder_of_ditto(device)

    builder_of_ditto = builder("ditto", {})
    wanted = start("ditto")
    simulation = Simulation(
        wanted.method, toy_federation(), wanted.task, rounds=4, chunk=4, cluster=Cluster(build, 2)
    )
    with caplog.at_level(logging.WARNING, "fedtailor"):
        for cohort in COHORTS:
            simulation.step(torch.tensor(cohort))
            wanted.step(torch.tensor(cohort))
    assert simulation.chunk == 1  # half of three
    assert any(
        record.getMessage().startswith("worker 0: out of memory on cpu with ")
        for record in caplog.records
    ), caplog.text
    kill(simulation, 0)  # a worker that is started again knows it already
    agree(outcome(simulation, []), outcome(wanted, []))
    kill(simulation, 0, 1)  # not for the next test: their mapper is not what it was
