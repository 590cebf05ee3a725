"""What strangers reach of a coordinator: nginx itself in front of somebody who says what came."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs flwr: pip install 'fedtailor[flower]'")

from cryptography.hazmat.primitives import serialization

from fedtailor.core.errors import BadInput
from fedtailor.federation.deploy import proxy as proxy_module
from fedtailor.federation.deploy import superlink
from fedtailor.federation.deploy.keys import make_certificates, make_node_key, renew_certificate
from fedtailor.federation.deploy.processes import _begun, descendants, free_port
from fedtailor.federation.deploy.project import Project
from fedtailor.federation.deploy.proxy import FLEET, Proxy, find_nginx, running
from fedtailor.federation.deploy.superlink import run_superlink

needs_nginx = pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")


DENIED = (
    "/",
    "/health",
    "/docs",
    "/openapi.json",
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "/v1/fleet/",
    "/v1/fleet/get-run/x",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "//v1/control/start-run",
)


class Echo(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers with path and size."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        size = len(self.rfile.read(int(self.headers["content-length"] or 0)))
        said = json.dumps([self.path, size, self.headers["flwr-signature"]]).encode()
        self.send_response(int(self.headers["answer-with"] or 200))
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def project(tmp_path: Path) -> Project:
    home = tmp_path / "with space" / "coordinator"
    made = make_certificates(home / "certificates", ["localhost", "127.0.0.1"])
    make_node_key(home / "keys" / "north")
    return Project(
        folder=home.parent,
        port=free_port(),
        control=free_port(),
        authority=made.authority,
        certificate=made.certificate,
        key=made.key,
        keys=home / "keys",
    )


@pytest.fixture
def served(project: Project):
    inner = make_certificates(project.loopback, ["localhost"])
    server = ThreadingHTTPServer(("127.0.0.1", project.control_port), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(inner.certificate, inner.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with running(project) as proxy:
        yield proxy
    server.shutdown()


def sent_key(path: Path) -> str:
    """A node's key as it puts it into its requests."""
    found = serialization.load_ssh_public_key(path.read_bytes())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return b64encode(found.public_bytes(serialization.Encoding.PEM, form)).decode()


def ask(
    project: Project,
    path: str,
    body: bytes = b"x",
    method: str = "POST",
    key: str = "",
    answer: int = 200,
):
    context = ssl.create_default_context(cafile=str(project.authority))
    link = http.client.HTTPSConnection("127.0.0.1", project.port, context=context, timeout=10)
    try:
        headers = {"flwr-public-key": key, "flwr-signature": "s", "answer-with": str(answer)}
        link.request(method, path, body, headers)
        reply = link.getresponse()
        return reply.status, reply.read(), dict(reply.getheaders())
    except (BrokenPipeError, ConnectionResetError):
        return 0, b"", {}  # refused before all of the body was sent
    finally:
        link.close()


@needs_nginx
def test_sites_reach_the_fleet_and_strangers_nothing(project: Project, served: Proxy) -> None:
    key = sent_key(project.keys / "north.pub")
    for name in FLEET:
        status, said, _ = ask(project, f"/v1/fleet/{name}", key=key)
        assert (status, json.loads(said)) == (200, [f"/v1/fleet/{name}", 1, "s"])
    for path in DENIED:
        assert ask(project, path, key=key)[0] == 404, path
    # another way to write an allowed path is passed on as the allowed one
    said = ask(project, "/v1/control/../fleet/get-run?x=1", key=key)[1]
    assert json.loads(said)[0] == "/v1/fleet/get-run"
    assert ask(project, "/v1/fleet/get-run", method="GET", key=key)[0] == 405
    status, _, headers = ask(project, "/v1/fleet/get-run", key="c3RyYW5nZXI=")
    assert status == 403 and headers["Server"] == "nginx"  # no version
    assert ask(project, "/v1/fleet/get-run")[0] == 403


@needs_nginx
def test_bodies_have_a_limit_above_flowers_largest(project: Project, served: Proxy) -> None:
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

    key = sent_key(project.keys / "north.pub")
    largest = bytes(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 10_000)
    status, said, _ = ask(project, "/v1/fleet/push-object", largest, key=key)
    assert status == 200 and json.loads(said)[1] == len(largest)
    assert ask(project, "/v1/fleet/push-object", bytes(9_000_000), key=key)[0] in (413, 0)


@needs_nginx
def test_a_busy_superlink_ends_no_node(project: Project, served: Proxy) -> None:
    """Flower's node asks again after 503 and ends after 500; what it refuses, it refuses."""
    key = sent_key(project.keys / "north.pub")
    for answer, seen in ((500, 503), (503, 503), (401, 401), (404, 404)):
        assert ask(project, "/v1/fleet/pull-messages", key=key, answer=answer)[0] == seen


def test_others_can_enter_the_folder_for_bodies(tmp_path: Path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(proxy_module.tempfile, "gettempdir", lambda: str(closed))
    assert proxy_module._for_everybody() == "/tmp"
    monkeypatch.setattr(proxy_module.tempfile, "gettempdir", lambda: "/var/tmp")
    assert proxy_module._for_everybody() == "/var/tmp"


def until(condition) -> bool:
    import time

    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def serial(project: Project) -> str:
    return ssl.get_server_certificate(("127.0.0.1", project.port))


@needs_nginx
def test_new_keys_and_certificates_are_taken_in(project: Project, served: Proxy) -> None:
    assert served.look() == ""
    make_node_key(project.keys / "south")
    key = sent_key(project.keys / "south.pub")
    assert ask(project, "/v1/fleet/get-run", key=key)[0] == 403
    assert "new keys" in served.look()
    assert until(lambda: ask(project, "/v1/fleet/get-run", key=key)[0] == 200)
    before = serial(project)
    renew_certificate(project.certificates)
    assert "certificates" in served.look()
    assert until(lambda: serial(project) != before)
    assert ask(project, "/v1/fleet/get-run", key=key)[0] == 200  # by the same authority


@needs_nginx
def test_a_killed_nginx_leaves_no_workers_behind(project: Project, served: Proxy) -> None:
    """They would hold the port, with the old keys and certificates."""
    assert until(lambda: len(descendants(served.process.pid)) == 2)
    workers = descendants(served.process.pid)
    served.process.kill()
    served.process.wait()
    assert "ended" in served.look()
    assert until(lambda: not any(_begun(pid) for pid in workers))
    assert until(lambda: len(descendants(served.process.pid)) == 2) and project.reachable()


@needs_nginx
def test_what_it_writes_stays_in_the_folder(project: Project, served: Proxy, tmp_path) -> None:
    names = {path.name for path in (project.folder / "coordinator").iterdir()}
    assert {"nginx.conf", "proxy", "certificates", "keys"} <= names
    assert (project.folder / "coordinator" / "proxy" / "nginx.pid").exists()


@needs_nginx
def test_a_bad_line_of_the_owners_is_named(project: Project) -> None:
    make_certificates(project.loopback, ["localhost"])
    (project.folder / "coordinator" / "nginx-own.conf").write_text("alow all;")
    with pytest.raises(BadInput, match='unknown directive "alow"'), running(project):
        pass


def test_without_nginx_nobody_else_may_reach_it(project: Project, monkeypatch) -> None:
    for module in (proxy_module, superlink):
        monkeypatch.setattr(module, "find_nginx", lambda: None)
    from dataclasses import replace

    with pytest.raises(BadInput, match=r"listen is '0\.0\.0\.0'.*apt-get install nginx-light"):
        run_superlink(replace(project, listen="0.0.0.0"))
    with pytest.raises(BadInput, match="nginx"), running(project):
        pass


def test_the_list_is_what_flowers_node_calls() -> None:
    """A new version of Flower that needs another path must be looked at."""
    import inspect

    from flwr.supernode import fleet_http_client

    text = inspect.getsource(fleet_http_client)
    called = {line.split('"')[1] for line in text.splitlines() if '"/v1/fleet/' in line}
    owners = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert called == {f"/v1/fleet/{name}" for name in FLEET} | owners
