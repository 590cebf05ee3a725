"""What the coordinator keeps: a write that was cut off costs its own line and no other."""

import pytest

from fedtailor.federation.coordinator.store import EVENTS, HISTORY, CoordinatorStore, read_lines


@pytest.fixture
def store(tmp_path):
    return CoordinatorStore(tmp_path, "a", "p")


@pytest.mark.parametrize("torn", [b'{"time": 1, "rou', b"\0\0\0", b"\xff{"])
def test_what_comes_after_a_torn_line_is_kept(store, torn):
    store.event(1, "site-0", "joined")
    with (store.folder / EVENTS).open("ab") as file:
        file.write(torn)
    assert [e["event"] for e in read_lines(store.folder / EVENTS)] == ["joined"]
    store.event(2, "all", "began")
    store.ended("7", 2, "finished")
    assert [e["event"] for e in read_lines(store.folder / EVENTS)] == [
        "joined",
        "began",
        "finished",
    ]


def test_a_torn_history_goes_on(store):
    store.note({"round": 1})
    with (store.folder / HISTORY).open("a") as file:
        file.write('{"round": 2, "coh')
    store.note({"round": 3})
    assert [line["round"] for line in store.history()] == [1, 3]
    store.forget_after(3)
    assert (store.folder / HISTORY).read_text() == '{"round": 1}\n{"round": 3}\n'


def test_an_end_names_its_run(store):
    store.ended("7", 2, "stopped", "a stop file was found")
    (event,) = read_lines(store.folder / EVENTS)
    del event["time"]
    assert event == {
        "round": 2,
        "site": "all",
        "event": "stopped",
        "detail": "a stop file was found",
        "run": "7",
    }
