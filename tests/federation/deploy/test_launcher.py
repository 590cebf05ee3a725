"""Who starts the coordinator's app, and that it outlives a SuperLink that is busy."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from flwr.supercore.constant import TaskType

from fedtailor.federation.deploy import launcher, superlink
from fedtailor.federation.deploy.launcher import Launcher
from fedtailor.federation.deploy.processes import superlink_command
from fedtailor.federation.site.executor import Executor


@pytest.fixture
def started(monkeypatch):
    """Commands that would have been started."""
    found: list[list[str]] = []

    class Child:
        def __init__(self, command, **_):
            found.append(command)

        def poll(self):
            return 0

    monkeypatch.setattr(launcher.subprocess, "Popen", Child)
    return found


def test_an_app_is_started_and_other_tasks_are_not(started, caplog, monkeypatch) -> None:
    own, rested = Launcher("127.0.0.1:1", b"secret", None), []
    monkeypatch.setattr(own, "keep_alive", lambda token: lambda: rested.append(token))
    own.take("a token", TaskType.AGENT_APP)
    assert not started and "'flwr-agentapp' is not FedTailor's" in caplog.text
    own.take("a token", TaskType.SERVER_APP)
    (command,) = started
    assert command[0] == "flwr-serverapp" and "--insecure" in command
    assert command[command.index("--token") + 1] == "a token" and not rested
    monkeypatch.setattr(Executor, "step", lambda self, wait: None)
    own.step()  # the process has ended
    assert rested == ["a token"] and not own.loading


def test_the_superlink_starts_nothing_itself(tmp_path: Path) -> None:
    command = superlink_command(None, "127.0.0.1", 1, tmp_path / "db", tmp_path / "secret")
    assert command[command.index("--isolation") + 1] == "process"


class Busy(BaseHTTPRequestHandler):
    """A SuperLink whose database is busy."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.server.asked.append(self.path)
        self.send_response(500)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_busy_superlink_does_not_end_it(tmp_path: Path) -> None:
    """Flower's own ends at the first 500, and the running app with it."""
    server = HTTPServer(("127.0.0.1", 0), Busy)
    server.asked, twice = [], threading.Event()
    finish = server.finish_request

    def counted(*arguments):
        finish(*arguments)
        if len(server.asked) >= 2:
            twice.set()

    server.finish_request = counted
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "secret").write_bytes(bytes(32))
    address = f"127.0.0.1:{server.server_port}"
    command = [sys.executable, "-m", launcher.__name__, address, str(tmp_path / "secret")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert twice.wait(60) and process.poll() is None
        process.terminate()
        assert b"Flower answered 500" in process.stderr.read()
    server.shutdown()


def test_it_is_started_again(monkeypatch) -> None:
    own = superlink.Launching([], {})  # without arguments it ends at once
    first = own.process
    first.wait()
    assert "started again" in own.look() and own.process is not first
    own.stop()
