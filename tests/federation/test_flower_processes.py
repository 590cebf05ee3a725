"""Real processes on loopback, with TLS and node authentication. Minutes long: run with --slow."""

import json

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.federation.deploy.keys import make_node_key
from fedtailor.federation.deploy.processes import free_port
from tests.federation.crew import Crew
from tests.federation.real import RULES, equals_simulation, finished, history, kill_site, until
from tests.federation.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

METHODS = ("fedavg", "fedala", "fedrep", "fedfomo", "pfedhn", "pfedla", "pmixfed")


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    root = tmp_path_factory.mktemp("crew")
    trial = Trial(root, "fedavg", federations=METHODS)
    with Crew(root / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path)
        yield crew


@pytest.mark.parametrize("method", METHODS)
def test_same_numbers_as_the_simulation(crew, method):
    root = crew.folder.parent
    trial = Trial(
        root, method, table=RULES | {"id": method}, federations=METHODS, participation=0.7
    )
    own = trial.federation.rename(root / f"{method}.toml")  # the next test writes another
    run = crew.submit(own)
    folder = root / "coordinator" / method
    until(lambda: finished(folder), 240, f"{method} is done")
    until(lambda: crew.status(run) == "finished:completed", 30, "the run ends well")
    assert all(not line.get("failed") for line in history(folder))
    equals_simulation(trial, folder)


def test_an_unknown_key_is_turned_away(crew):
    key = crew.folder / "keys" / "stranger"
    make_node_key(key)
    stranger = crew._start(
        "stranger",
        "stranger",
        [
            "flower-supernode", "--root-certificates", str(crew.certificates.authority),
            "--auth-supernode-private-key", str(key), "--superlink", crew.address,
            "--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1",
        ],
    )  # fmt: skip
    assert stranger.wait(60) != 0
    crew.end("stranger")


def test_site_killed_and_back(tmp_path):
    table = RULES | {"deadline": 15, "min_sites": 2}
    trial = Trial(tmp_path, "fedala", table=table, rounds=16)
    folder = tmp_path / "coordinator" / "trial"
    with Crew(tmp_path / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path)
        crew.submit(trial.federation)
        until(lambda: len(history(folder)) >= 2, 240, "two rounds")
        kill_site(crew, "site-1", trial.sites[1])
        killed = len(history(folder))
        until(lambda: len(history(folder)) > killed + 1, 120, "rounds go on without it")
        crew.start_site("site-1", trial.sites[1])
        until(lambda: finished(folder), 500, "the federation is done")
    lines = [line for line in history(folder) if "taken" in line]
    assert len(lines) == 16
    missed = [line for line in lines if 1 not in line["taken"]]
    assert missed and all("site-1" in line["failed"] for line in missed)
    assert max(line["seconds"] for line in lines) < 30  # the deadline held
    assert 1 in lines[-1]["taken"]  # it got back in by itself
    equals_simulation(trial, folder)


def test_coordinator_killed_and_back(tmp_path):
    trial = Trial(tmp_path, "fedala", table=RULES, rounds=5)
    folder = tmp_path / "coordinator" / "trial"
    with Crew(tmp_path / "crew") as crew:
        crew.start_coordinator()
        for i, path in enumerate(trial.sites):
            crew.start_site(f"site-{i}", path)
        crew.submit(trial.federation)
        until(lambda: len(history(folder)) >= 2, 240, "two rounds")
        crew.end("coordinator", kill=True)
        killed = json.loads((folder / "latest.json").read_text())["round"]
        crew.start_coordinator()
        crew.submit(trial.federation)
        until(lambda: finished(folder), 400, "the federation is done")
    lines = [line for line in history(folder) if "taken" in line]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5] and killed >= 2
    equals_simulation(trial, folder)
