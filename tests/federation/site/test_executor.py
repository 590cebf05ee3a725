"""What a site executes: its own FedTailor, and nothing that comes with a run."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

import httpx
import uvicorn
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from fedtailor.federation.deploy.link import APP as SUBMITTED
from fedtailor.federation.deploy.processes import free_port
from fedtailor.federation.site import app, executor
from fedtailor.federation.site.executor import APP, Executor
from fedtailor.federation.site.node import Node, _runtime

SECRET = b"only these two know it"
FAB = Fab("", b"no archive at all", {})


@pytest.fixture
def node():
    """A SuperNode's own interface, as it is while no coordinator sends anything."""
    factory, port = NodeStateFactory(ObjectStoreFactory()), free_port()
    served = create_app(state_factory=factory, superexec_auth_secret=SECRET)
    server = uvicorn.Server(uvicorn.Config(served, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    factory.state().set_node_id(7)
    yield factory.state(), f"127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def send(state, monkeypatch, fab_id, task_type, said="hello"):
    """What a coordinator sends: a run, its app, and a message."""
    for name, value in (("_run_id", 5), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    run = replace(Run.create_empty(5), fab_id=fab_id, fab_hash=state.store_fab(FAB), series_id=5)
    state.store_run(run)
    state.set_run_series_context(5, Context(5, 7, {}, RecordDict(), {}))
    content = RecordDict({"c": ConfigRecord({"s": said})})
    sent = Message(content, dst_node_id=7, message_type="query")
    state.create_task(task_type=task_type, run_id=5, fab_hash=run.fab_hash)
    _insert_message(sent, state, state.object_store)
    return sent


@pytest.fixture
def seen(monkeypatch):
    """What the site was asked; it answers with the same."""
    found: list[str] = []

    def answer(message, context):
        found.append(message.content["c"]["s"])
        return Message(message.content, reply_to=message)

    monkeypatch.setattr(app, "client_app", answer)
    return found


def answered(own: Executor, state) -> list[Message]:
    """The replies, as soon as there are some."""
    for _ in range(50):
        own.step()
        if found := state.get_messages_legacy(is_reply=True):
            return list(found)
    raise AssertionError("no reply came")


@pytest.mark.parametrize(
    ("fab_id", "task_type", "said"),
    [
        ("stranger/evil", TaskType.CLIENT_APP, "the app 'stranger/evil' is not FedTailor's"),
        ("stranger/evil", TaskType.AGENT_APP, "the app 'stranger/evil' is not FedTailor's"),
        (APP, TaskType.AGENT_APP, "'flwr-agentapp' is not FedTailor's"),
        (APP, TaskType.CLIENT_APP, ""),
    ],
)
def test_only_fedtailors_messages_are_answered(
    node, seen, monkeypatch, caplog, fab_id, task_type, said
):
    def forbidden(*_, **__):
        raise AssertionError("a process was started")

    state, address = node
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    own = Executor(address, SECRET)
    own.step()
    assert not state.get_messages_legacy(is_reply=True)
    send(state, monkeypatch, fab_id, task_type)
    (reply,) = answered(own, state)
    assert reply.has_error() == bool(said) and seen == ([] if said else ["hello"])
    if said:
        assert said in reply.error.reason and said in caplog.text


def test_a_failure_is_that_messages_alone(node, monkeypatch):
    def broken(message, context):
        raise RuntimeError("broken")

    state, address = node
    monkeypatch.setattr(app, "client_app", broken)
    send(state, monkeypatch, APP, TaskType.CLIENT_APP)
    (reply,) = answered(Executor(address, SECRET), state)
    assert reply.error.reason == "RuntimeError: the site's log says more"


def test_a_message_that_never_comes_whole_holds_up_no_other(node, seen, monkeypatch):
    """As a SuperNode leaves it when its run ends during the download."""
    state, address = node
    with monkeypatch.context() as lost:
        lost.setattr(type(state.object_store), "put", lambda *_: None)
        send(state, monkeypatch, APP, TaskType.CLIENT_APP, "lost")
    own = Executor(address, SECRET)
    own.step()
    send(state, monkeypatch, APP, TaskType.CLIENT_APP, "whole")
    assert answered(own, state) and seen == ["whole"]


def test_who_does_not_know_the_secret_gets_no_message(node, monkeypatch):
    state, address = node
    send(state, monkeypatch, APP, TaskType.CLIENT_APP)
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        Executor(address, b"guessed").step()


def test_the_name_is_that_of_what_we_submit():
    publisher, name = APP.split("/")
    assert f'publisher = "{publisher}"' in SUBMITTED and f'name = "{name}"' in SUBMITTED
    assert executor.LOOK < 0.5


def test_no_argument_brings_flowers_loader_back(tmp_path):
    command = Node(tmp_path / "site.toml", ["--isolation", "subprocess"]).commands()["node"]
    last = len(command) - 1 - command[::-1].index("--isolation")
    assert command[last + 1] == "process"


def test_the_executor_looks_where_the_node_listens():
    assert _runtime([]) == ("127.0.0.1:9094", [])
    assert _runtime(["--host", "::1", "--port", "7", "--insecure"]) == ("[::1]:7", [])
    assert _runtime(["--port=7", "--ssl-ca-certfile", "a"]) == ("127.0.0.1:7", ["a"])
