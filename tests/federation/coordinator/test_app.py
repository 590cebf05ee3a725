"""The coordinator's side of a Flower run: two of them do not get into each other's way."""

import threading

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator import app as module
from fedtailor.federation.coordinator import progress as follow_module
from fedtailor.federation.coordinator.app import run_coordinator
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import Ending, follow
from fedtailor.federation.coordinator.store import CoordinatorStore
from tests.federation.trial import Trial


class Running:
    def status(self, run):
        return "running"


def test_a_second_run_that_gives_up_does_not_end_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(follow_module, "LOOK", 0.01)
    trial = Trial(tmp_path, "fedavg")
    found = read_federation(trial.federation)
    store, told, endings = (
        CoordinatorStore(found.folder, found.id, found.plan.fingerprint(), found.plan.rounds),
        [],
        {},
    )

    def watch(run):
        endings[run] = follow(found.state_folder, Running().status, run, 0, told.append)

    watchers = [threading.Thread(target=watch, args=(run,)) for run in ("1", "2")]
    with store.played():  # the first is well
        for watcher in watchers:
            watcher.start()
        with pytest.raises(BadInput, match="another run plays federation 'trial'"):
            run_coordinator(None, trial.federation, "2")
        watchers[1].join(10)
        assert list(endings) == ["2"] and endings["2"].kind == "failed"
        store.ended("1", 2, "finished")
        watchers[0].join(10)
    assert endings["1"] == Ending("finished", "") and told == []
