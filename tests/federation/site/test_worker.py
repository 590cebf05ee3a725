"""The site's own process, the commands around it, and what must stay light."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

import pytest

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.protocol import ipc
from fedtailor.federation.protocol.packet import PROTOCOL, Packet
from fedtailor.federation.site import node
from fedtailor.federation.site.node import Node
from tests.federation.trial import Trial


@pytest.fixture
def site(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory() as short:  # sockets have no room for pytest's long paths
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        trial = Trial(tmp_path, "fedavg")
        yield trial
        ipc.stop_site(trial.sites[0])


def test_a_folder_too_deep_for_sockets_is_left_aside(site, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    where = ipc.socket_of(site.sites[0])
    assert len(str(where)) <= ipc.LONGEST_SOCKET and not list(deep.iterdir())
    assert len(where.name) + 1 == ipc.SOCKET_NAME
    with socket.socket(socket.AF_UNIX) as listener:
        ipc.listen(listener, where)
    where.unlink()
    monkeypatch.undo()


def join(trial):
    plan = read_federation(trial.federation).plan
    return Packet(
        {
            "protocol": PROTOCOL,
            "version": fedtailor.__version__,
            "kind": "join",
            "federation": "trial",
            "plan": plan.fingerprint(),
            "round": 0,
            "text": plan.text(),
        },
        {},
    )


def test_started_when_needed_kept_warm_and_ended(site):
    path, packet = site.sites[0], join(site)
    first = ipc.ask_site(path, packet)
    assert first.header["status"] == "ok" and first.header["n"] == 24
    where = ipc.socket_of(path)
    assert stat.S_IMODE(where.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(where.parent.stat().st_mode) == 0o700
    pid = ipc.worker_pid(where)
    begun = time.monotonic()
    assert ipc.ask_site(path, packet) == first
    assert time.monotonic() - begun < 1 and ipc.worker_pid(where) == pid
    # killed: the next message starts it again, and it knows what it had joined
    os.kill(pid, signal.SIGKILL)
    again = ipc.ask_site(path, packet)
    assert again == first and ipc.worker_pid(where) != pid
    # other settings need another process
    site.write_site(0, max_rounds=7)
    assert ipc.socket_of(path) != where
    site.write_site(0)
    ipc.stop_site(path)
    assert ipc.worker_pid(where) is None and not where.exists()


def test_a_bad_site_file_is_named(site):
    site.sites[0].write_text("client = 0")
    with pytest.raises(BadInput, match="did not start"):
        ipc.ask_site(site.sites[0], join(site))
    with pytest.raises(BadInput, match="cannot be read"):
        ipc.ask_site(site.root / "nowhere.toml", join(site))


def test_a_folder_that_others_can_enter_is_refused(monkeypatch):
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        ipc.private_folder().chmod(0o755)
        with pytest.raises(BadInput, match="entered by others"):
            ipc.private_folder()


def test_paths_that_flower_cannot_take_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no quotes"):
        Node(tmp_path / 'a"b.toml', [])


def test_a_node_that_is_turned_away_says_what_to_do(tmp_path, monkeypatch):
    """Flower's own line has a number, and no cure."""
    site, told = Node(tmp_path / "site.toml", []), []
    monkeypatch.setattr(site, "commands", lambda: {"node": [sys.executable, "-c", "exit(1)"]})
    for name in ("start_worker", "stop_site"):
        monkeypatch.setattr(node, name, lambda path: None)
    monkeypatch.setattr(node.log, "warning", lambda *said: (told.append(said), site.end()))
    site.run()
    assert "send it node.key.pub" in str(told)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_what_takes_the_messages_is_light():
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")
    heavy = "{'torch', 'scipy', 'sklearn', 'matplotlib', 'pandas'}"
    loads = "import sys, fedtailor.federation.site.app, fedtailor.federation.site.executor"
    done = run(f"{loads}; print({heavy} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr


def test_all_but_the_adaptor_loads_without_flower():
    modules = (
        "site.site coordinator.coordinator site.state site.worker site.settings deploy.processes "
        "deploy.keys site.node site.executor coordinator.federation_file"
    )
    code = "import sys; sys.modules['flwr'] = None\nimport importlib\n"
    code += f"for m in '{modules}'.split(): importlib.import_module('fedtailor.federation.' + m)"
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_every_module_loads_on_a_system_without_unix():
    """Windows has neither of these; what cannot be done there is said when it is asked for."""
    pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")
    code = """
import importlib, os, pkgutil, signal, socket, sys
import flwr.clientapp, flwr.serverapp, filelock, torch  # their own way around is theirs
for name in ("fcntl", "resource"):
    sys.modules[name] = None
for module, name in ((socket, "AF_UNIX"), (os, "fork"), (os, "getuid"), (signal, "SIGHUP")):
    delattr(module, name)
import fedtailor.federation
for found in pkgutil.walk_packages(fedtailor.federation.__path__, "fedtailor.federation."):
    importlib.import_module(found.name)
import fedtailor.cli.federation
os.name = "nt"
from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.ipc import private_folder
try:
    private_folder()
except BadInput as error:
    print(error)
"""
    done = run(code)
    assert "Unix sockets" in done.stdout and done.stdout.count("\n") == 1, done.stderr


def test_where_a_site_keeps_its_files_does_not_travel(tmp_path, caplog):
    path = tmp_path / "secret-folder" / "site.toml"
    with pytest.raises(BadInput) as told:
        ipc.socket_of(path)
    assert str(told.value) == "site file 'site.toml' cannot be read: No such file or directory"
    assert str(path) in caplog.text


def test_an_unreadable_message_is_refused_in_the_sites_name(site):
    path = site.sites[0]
    assert ipc.ask_site(path, join(site)).header["status"] == "ok"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(ipc.socket_of(path)))
        connection.sendall((12).to_bytes(8, "big") + b"no packet...")
        told = ipc.receive(connection).header
    assert told["code"] == "message" and told["protocol"] == PROTOCOL
    assert told["version"] == fedtailor.__version__
    assert (told["client"], told["name"]) == (0, "site-0")
