"""Flower as carrier: our deadline holds whatever it does."""

import threading
import time
from itertools import count

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

import httpx
import numpy as np
from flwr.app import Error, Message

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator import carrier
from fedtailor.federation.coordinator.carrier import FlowerTransport
from fedtailor.federation.protocol.packet import Limits, Packet, from_records
from fedtailor.federation.site.app import make_client_app
from tests.federation.local_grid import LocalGrid

REQUEST = Packet({"kind": "train", "round": 0}, {"a": np.ones(3)})


class Odd(LocalGrid):
    """A grid whose nodes answer with their message; some calls misbehave."""

    def __init__(self, nodes=3):
        app = make_client_app(lambda path, packet: packet)
        super().__init__(app, {i: {"site": "there.toml"} for i in range(1, nodes + 1)})
        self.on_push, self.on_pull, self.whose = {}, {}, {}
        self.free = threading.Event()

    def push_messages(self, messages):
        node = messages[0].metadata.dst_node_id
        ids = self.on_push[node]() if node in self.on_push else super().push_messages(messages)
        self.whose |= dict.fromkeys(ids, node)
        return ids

    def pull_messages(self, message_ids):
        (one,) = message_ids
        odd = self.on_pull.get(self.whose[one])
        return odd(one) if odd else super().pull_messages([one])


def ask(grid, seconds=3.0, **more):
    begun = time.monotonic()
    found = {
        a.place: a
        for a in FlowerTransport(grid, **more).ask(dict.fromkeys(grid.nodes, REQUEST), seconds)
    }
    return found, time.monotonic() - begun


def test_answers_with_their_envelope():
    found, seconds = ask(Odd())
    assert set(found) == {1, 2, 3} and seconds < 2.5
    assert all(a.packet.arrays["a"].sum() == 3 and a.up > 0 < a.down for a in found.values())


def status_error(code):
    response = httpx.Response(code, request=httpx.Request("POST", "http://superlink"))
    return httpx.HTTPStatusError("said no", request=response.request, response=response)


def fails_first(error, then):
    """Raises once, and is itself again after that."""
    left = [error]

    def call(*arguments):
        if left:
            raise left.pop()
        return then(*arguments)

    return call


@pytest.mark.parametrize(("code", "answered"), [(500, True), (503, True), (403, False)])
@pytest.mark.parametrize("at", ["push_messages", "pull_messages"])
def test_a_busy_superlink_is_asked_again(code, answered, at, monkeypatch):
    grid = Odd(1)
    monkeypatch.setattr(grid, at, fails_first(status_error(code), getattr(grid, at)))
    found, _ = ask(grid)
    assert (found[1].packet is not None) is answered


def test_nodes_are_asked_for_again_while_it_is_busy(monkeypatch):
    grid = Odd(2)
    monkeypatch.setattr(carrier, "BUSY", (0.01,))
    busy = fails_first(status_error(500), grid.get_node_ids)
    monkeypatch.setattr(grid, "get_node_ids", busy)
    assert FlowerTransport(grid).places() == [1, 2]
    monkeypatch.setattr(grid, "get_node_ids", fails_first(status_error(401), list))
    with pytest.raises(httpx.HTTPStatusError):
        FlowerTransport(grid).places()


@pytest.mark.parametrize("stuck", [1, 5])
def test_a_stuck_upload_holds_nobody_up(stuck, monkeypatch):
    monkeypatch.setattr(carrier, "STUCK", 0.3)
    grid = Odd(stuck + 2)
    for node in range(1, stuck + 1):
        grid.on_pull[node] = lambda one: grid.free.wait(60)  # as Flower does for minutes
    found, seconds = ask(grid, 1.8)
    grid.free.set()
    assert set(found) == {stuck + 1, stuck + 2} and 1.3 < seconds < 3.8


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (5, "Node Unavailable (code 5)"),
        # a site of another version does not have what the app names
        (1, f"install FedTailor {__version__} there"),
    ],
)
def test_an_error_is_told_by_what_it_replies_to(code, said):
    grid = Odd()

    def gone(one):
        reply = grid._replies[one]
        error = Message(Error(code=code, reason="Node Unavailable"), reply_to=reply)
        error.metadata.__dict__["_reply_to_message_id"] = one
        error.metadata.__dict__["_src_node_id"] = 1
        return [error]

    grid.on_pull[2] = gone
    found, _ = ask(grid)
    assert found[2].packet is None and said in found[2].failure
    assert found[1].packet and found[3].packet


def test_a_message_that_cannot_be_sent_is_named():
    grid = Odd()
    grid.on_push[1] = lambda: [None]

    def broken():
        raise ConnectionError("no route")

    grid.on_push[3] = broken
    found, _ = ask(grid)
    assert "could not be sent" in found[1].failure and "no route" in found[3].failure
    assert found[2].packet


def test_a_huge_answer_is_named():
    found, _ = ask(Odd(), limits=Limits(8))
    assert all("at most 8 are allowed" in a.failure for a in found.values())


def test_an_answer_that_cannot_be_read_is_named(monkeypatch, caplog):
    def read(records, limits):
        if next(answers) == 1:
            raise MemoryError("too deep")
        return from_records(records, limits)

    answers = count()
    monkeypatch.setattr(carrier, "from_records", read)
    found, _ = ask(Odd())
    (failed,) = [a for a in found.values() if a.packet is None]
    assert failed.failure == "its answer cannot be read (MemoryError: too deep)"
    assert failed.down > 0 and len(found) == 3
    assert f"place {failed.place}" in caplog.text and "Traceback" in caplog.text


def test_a_node_without_a_site_file_says_so():
    grid = LocalGrid(make_client_app(), {1: {}})
    found, _ = ask(grid)
    assert found[1].packet.header["code"] == "site"
    assert "give the path of its TOML file" in found[1].packet.header["detail"]


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ('client = 2\nname = "north"\n', (2, "north")),
        ("client = 2\n", (2, "site-2")),
        ("client = 2.5\n", (None, None)),
        ("client =", (None, None)),
    ],
)
def test_a_site_whose_process_does_not_start_has_a_name(tmp_path, text, who):
    def fails(path, packet):
        raise BadInput("the process of 'site.toml' did not start")

    file = tmp_path / "site.toml"
    file.write_text(text)
    found, _ = ask(LocalGrid(make_client_app(fails), {1: {"site": str(file)}}))
    header = found[1].packet.header
    assert header["code"] == "site" and "did not start" in header["detail"]
    assert (header.get("client"), header.get("name")) == who
