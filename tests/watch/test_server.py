"""The server: it serves the page and its state, to this machine alone, and lets nobody write."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli import main
from fedtailor.core.errors import BadInput
from fedtailor.results.lock import LOCK, lock_folder
from fedtailor.results.status import RunStatus
from fedtailor.watch import Watching
from fedtailor.watch.server import host_names
from fedtailor.watch.snapshot import PageCache, planned, progress_line
from tests.report import synthetic


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return synthetic.unfinish(synthetic.make_run(tmp_path / "run", "fedala", rounds=9), 4)


@pytest.fixture
def served(half: Path) -> Iterator[Watching]:
    with Watching(half, 0) as watching:
        yield watching


class Answer:
    """What the server says."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers = found.status, found.headers
        self.text = found.read().decode()


def ask(watching: Watching, path: str, method: str = "GET", **headers: str) -> Answer:
    port = int(watching.url.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def state(watching: Watching) -> dict[str, Any]:
    return dict(json.loads(ask(watching, "/state.json").text))


def test_a_half_run_is_served_and_its_end_is_told(served: Watching, half: Path) -> None:
    assert ask(served, "/page").status == 404, "nothing was asked for yet"
    found = state(served)
    assert found["words"] == "round 4 of 9, running"
    assert not found["finished"]
    assert "fedala is at round 4 of 9" in ask(served, "/page").text
    whole = synthetic.make_run(half.parent / "whole", "fedala", rounds=9)
    for name in ("history.jsonl", "result.json"):
        (half / name).write_bytes((whole / name).read_bytes())
    served._server.snapshots._rest_until = 0.0  # as if the time that it rests were over
    later = state(served)
    assert later["words"] == "finished"
    assert later["finished"]
    assert later["page"] == found["page"] + 1
    assert "Not finished" not in ask(served, "/page").text


def test_the_page_is_made_anew_only_when_something_changed(served: Watching, half: Path) -> None:
    first = state(served)["page"]
    served._server.snapshots._rest_until = 0.0
    assert state(served)["page"] == first
    with (half / "history.jsonl").open("a") as file:
        file.write('{"round": 5, "half a li')
    served._server.snapshots._rest_until = 0.0
    assert state(served)["failed"] == ""


def test_what_cannot_be_read_keeps_the_last_page(served: Watching, half: Path) -> None:
    state(served)
    before = ask(served, "/page").text
    with (half / "history.jsonl").open("a") as file:
        file.write("{\n")
    served._server.snapshots._rest_until = 0.0
    assert "history.jsonl" in state(served)["failed"]
    assert ask(served, "/page").text == before


def test_policies(served: Watching) -> None:
    state(served)
    shell = ask(served, "/").headers["Content-Security-Policy"]
    page = ask(served, "/page")
    assert "connect-src 'self'" in shell
    assert "default-src 'none'" in shell
    assert "connect-src" not in page.headers["Content-Security-Policy"]
    assert "connect-src" not in page.text
    for answer in (page, ask(served, "/watch.js"), ask(served, "/nothing")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    ["/result.json", "/../run/result.json", "/assets/watch.js", "//etc/passwd", "/%2e%2e/run", "*"],
)
def test_nothing_else_is_served(path: str, served: Watching) -> None:
    assert ask(served, path).status == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
def test_other_hosts_are_refused(host: str, served: Watching) -> None:
    found = ask(served, "/state.json", Host=host)
    assert found.status == 421
    assert "round" not in found.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get(method: str, served: Watching) -> None:
    found = ask(served, "/state.json", method)
    assert found.status == 405
    assert found.headers["Allow"] == "GET"


def test_localhost_is_this_server(served: Watching) -> None:
    port = served.url.rstrip("/").rpartition(":")[2]
    assert ask(served, "/", Host=f"localhost:{port}").status == 200


def test_on_the_port_of_http_browsers_name_no_port() -> None:
    plain = {"127.0.0.1", "localhost"}
    assert host_names(80) == plain | {"127.0.0.1:80", "localhost:80"}
    assert not host_names(8640) & plain


def test_it_listens_on_loopback_only(served: Watching) -> None:
    assert served._server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_named(half: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} "):
            Watching(half, port)
    with pytest.raises(BadInput, match="port is 70000"):
        Watching(half, 70000)


def test_a_comparison_that_has_not_begun(tmp_path: Path) -> None:
    kept = {"made_by": "FedTailor", "methods": ["fedavg"], "seeds": 2, "settings": {"seed": 3}}
    (tmp_path / "comparison.json").write_text(json.dumps(kept))
    names = ["local-seed3", "fedavg-seed3", "local-seed4", "fedavg-seed4"]
    assert [place.name for place in planned(tmp_path)] == names
    found = PageCache(tmp_path).state()
    assert found["words"] == "0 of 4 runs finished"
    assert found["page"] == 0
    assert found["failed"] == ""
    assert {run["words"] for run in found["runs"]} == {"not begun"}


def test_a_comparison_in_the_middle(tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg"))
    synthetic.unfinish(folder / "runs" / "fedavg-seed0", 2)
    snapshots = PageCache(folder)
    assert snapshots.state()["words"] == (
        "1 of 2 runs finished; fedavg-seed0: round 2 of 5, running"
    )
    page = snapshots.page()
    assert page is not None
    assert "fedavg is at round 2 of 5" in page


def test_a_comparison_that_was_stopped_goes_on_as_a_whole(tmp_path: Path) -> None:
    folder = synthetic.make_comparison(tmp_path / "c", ("local", "fedavg"))
    half = synthetic.unfinish(folder / "runs" / "fedavg-seed0", 2)
    (half / LOCK).touch()  # of a process that was killed
    told = "1 of 2 runs finished; fedavg-seed0: round 2 of 5, "
    snapshots = PageCache(folder)
    assert snapshots.state()["words"] == f"{told}stopped: fedtailor resume {folder} goes on with it"
    with lock_folder(folder):  # somebody does so, and has not come to that run yet
        assert snapshots.state()["words"] == f"{told}running"


def test_words() -> None:
    assert progress_line([RunStatus("a", 3, 3, True)]) == "finished"
    assert progress_line([RunStatus("a", 12, 30, False)]) == "round 12 of 30, running"


@pytest.mark.parametrize("what", ["nowhere", "empty", "broken"])
def test_bad_folders(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "comparison.json").write_text("[]")
    with pytest.raises(SystemExit) as end:
        main(["watch", str(tmp_path / what), "--no-open"])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
