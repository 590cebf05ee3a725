"""What the coordinator keeps: a write that was cut off costs its own line and no other."""

import pytest

from fedtailor.federation.coordinator.store import EVENTS, HISTORY, Book


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path, "a", "p")


@pytest.mark.parametrize("torn", [b'{"time": 1, "rou', b"\0\0\0", b"\xff{"])
def test_what_comes_after_a_torn_line_is_kept(book, torn):
    book.event(1, "site-0", "joined")
    with (book.folder / EVENTS).open("ab") as file:
        file.write(torn)
    assert [e["event"] for e in book.events()] == ["joined"]
    book.event(2, "all", "began")
    book.ended("7", 2, "finished")
    assert [e["event"] for e in book.events()] == ["joined", "began", "finished"]


def test_a_torn_history_goes_on(book):
    book.note({"round": 1})
    with (book.folder / HISTORY).open("a") as file:
        file.write('{"round": 2, "coh')
    book.note({"round": 3})
    assert [line["round"] for line in book.history()] == [1, 3]
    book.forget_after(3)
    assert (book.folder / HISTORY).read_text() == '{"round": 1}\n{"round": 3}\n'


def test_an_end_names_its_run(book):
    book.ended("7", 2, "stopped", "a stop file was found")
    (event,) = book.events()
    del event["time"]
    assert event == {
        "round": 2,
        "site": "all",
        "event": "stopped",
        "detail": "a stop file was found",
        "run": "7",
    }
