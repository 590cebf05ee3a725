"""Following a federation, and keeping two runs of it apart."""

import json
import multiprocessing
import threading

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator import progress as module
from fedtailor.federation.coordinator.progress import (
    Ending,
    follow,
    is_over,
    last_end,
    round_now,
    sites_of,
    wait_for_end,
    without_model,
)
from fedtailor.federation.coordinator.store import CoordinatorStore, is_played


class FakeLink:
    def __init__(self, status="running"):
        self.said = status

    def status(self, run):
        return self.said


def line(round):
    return {"round": round, "taken": [0], "cohort": [0], "failed": {}, "sites": {}}


def test_one_run_at_a_time(tmp_path):
    one, two = CoordinatorStore(tmp_path, "a", "p"), CoordinatorStore(tmp_path, "a", "p")
    assert not is_played(one.folder)
    with one.played():
        assert is_played(one.folder)
        with pytest.raises(BadInput, match="another run plays federation 'a'"), two.played():
            pass
    assert not is_played(one.folder)
    with two.played():
        pass


def _play_and_die(folder, ready):
    with CoordinatorStore(folder, "a", "p").played():
        ready.set()
        threading.Event().wait()


def test_a_killed_coordinator_leaves_no_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_play_and_die, args=(tmp_path, ready))
    process.start()
    assert ready.wait(20) and is_played(tmp_path / "a")
    process.kill()
    process.join()
    assert wait_for_end(tmp_path / "a", 5)


def test_tells_what_is_new_and_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.01)
    store, told = CoordinatorStore(tmp_path, "a", "p"), []
    store.note(line(1))
    store.ended("5", 1, "stopped", "of an earlier run")

    def play():
        with store.played():
            store.event(2, "site-1", "joined")
            store.note(line(2))
            store.note(line(3))
            store.ended("6", 3, "failed", "it gave up: this one plays")
            store.ended("7", 3, "finished")

    timer = threading.Timer(0.1, play)
    timer.start()
    ending = follow(store.folder, FakeLink().status, "7", 1, told.append)
    timer.join()
    assert ending == Ending("finished", "")
    assert [t.get("event", t["round"]) for t in told][:1] == ["joined"]
    assert {t["round"] for t in told} >= {2}


def test_an_app_that_never_starts_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "ASK_FLOWER", 0.05)
    store = CoordinatorStore(tmp_path, "a", "p")
    ending = follow(store.folder, FakeLink("finished:failed").status, "7", 0, print)
    assert ending.kind == "failed" and "finished:failed" in ending.detail


def test_a_coordinator_that_is_gone_is_an_end_with_a_reason(tmp_path, monkeypatch):
    """Not Flower's own words about its connection, with which `run` would end at once."""
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "ASK_FLOWER", 0.05)
    monkeypatch.setattr(module, "START_SECONDS", 0.3)
    store, asked = CoordinatorStore(tmp_path, "a", "p"), []

    def gone(run):
        asked.append(run)
        raise BadInput('flwr list --run-id failed: { "success": false }')

    ending = follow(store.folder, gone, "7", 0, print)
    assert len(asked) > 1, "it may be busy while a run starts"
    assert ending.kind == "failed" and "does not answer" in ending.detail
    assert "success" not in ending.detail


def test_a_run_that_was_killed_has_not_finished(tmp_path):
    """More rounds were played after all had been, and killed: the old end is not theirs."""
    store = CoordinatorStore(tmp_path, "a", "p")
    store.ended("6", 2, "finished")
    store.event(3, "north", "joined", "20 training rows")
    (store.folder / "latest.json").write_text(json.dumps({"round": 4}))
    assert last_end(store.folder) == {"event": "ended without a word"}
    assert not is_over(store.folder, 4)
    with store.played():
        assert last_end(store.folder) == {}
    store.ended("7", 4, "stopped", "why")
    assert last_end(store.folder)["detail"] == "why"


def test_where_it_stands(tmp_path):
    store = CoordinatorStore(tmp_path, "a", "p")
    assert round_now(store.folder) == 0 and not is_over(store.folder, 2)
    (store.folder / "latest.json").write_text(json.dumps({"round": 2}))
    assert round_now(store.folder) == 2 and not is_over(store.folder, 2)
    store.ended("7", 2, "finished")
    assert is_over(store.folder, 2)


def test_failures_that_no_round_has_count_too(tmp_path):
    """Where all failed there is no round to tell it, and after the last one none follows."""
    store = CoordinatorStore(tmp_path, "a", "p")
    why = "diverged: lower lr"
    for _ in range(3):  # attempts of one round
        store.event(1, "north", "failed in train", why)
        store.event(1, "south", "failed in train", why)
    for site in sites_of(store.folder, {}):
        assert (site.failures, site.why) == (1, f"round 1: {why}")
    more = {"uploads": {}, "sites": {"south": {}}}
    store.note(line(1) | more | {"failed": {"north": "no answer"}})
    store.event(2, "south", "failed in finish", "disk full")
    north, south = sites_of(store.folder, {})
    assert (north.failures, north.why) == (1, "round 1: no answer")
    # in the attempt that counted, south was there
    assert (south.failures, south.why) == (1, "after round 1: disk full")


def test_who_has_no_model_and_why(tmp_path):
    store = CoordinatorStore(tmp_path, "a", "p")
    store.note(line(1))
    missing = {"client 1": "not connected", "east": "disk full"}
    store.note({"round": 1, "finished": {"north": {}}, "missing": missing})
    assert without_model(store.folder, 3) == ["client 1 (not connected)", "east (disk full)"]
    # run again: one got its model, and has said its name; one that has its model was away
    store.note({"round": 1, "finished": {"south": {}}, "missing": {"north": "x", "east": "y"}})
    assert without_model(store.folder, 3) == ["east (y)"]
    # as before 0.3
    store.note({"round": 1, "finished": {}})
    assert without_model(store.folder, 3) == ["1 site"]
