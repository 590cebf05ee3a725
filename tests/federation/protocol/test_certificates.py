"""What a coordinator shows to those who come in, and what is said of it."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs flwr: pip install 'fedtailor[flower]'")

from fedtailor.core.errors import BadInput
from fedtailor.federation.deploy import keys, link
from fedtailor.federation.deploy.keys import Certificates, make_certificates, renew_certificate
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.deploy.project import Project, certificate_lines
from fedtailor.federation.protocol.certificates import tls_trouble
from fedtailor.federation.site import node
from fedtailor.federation.site.node import Node

HOST = "127.0.0.1"


@contextmanager
def shown(made: Certificates) -> Iterator[str]:
    """The address of a server with this certificate, for one who comes after the other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as plain, suppress(OSError):
                        context.wrap_socket(plain, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"{HOST}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def made_at(folder: Path, monkeypatch: pytest.MonkeyPatch, days: float) -> Certificates:
    """An authority, and a certificate that somebody with another clock has made."""
    make_certificates(folder, [HOST])

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    with monkeypatch.context() as patch:
        patch.setattr(keys, "datetime", Clock)
        renew_certificate(keys.certificates_in(folder))
    return keys.certificates_in(folder)


EXPIRED = "has expired: at the coordinator, make a new one with fedtailor federation renew"


@pytest.mark.parametrize(("days", "said"), [(0, ""), (-400, EXPIRED), (2, "is not valid yet")])
def test_a_certificate_out_of_its_time_is_named(tmp_path, monkeypatch, days, said) -> None:
    made = made_at(tmp_path, monkeypatch, days)
    with shown(made) as address:
        line = tls_trouble(address, made.authority)
        assert bool(line) == bool(said) and said in line
        assert not said or f"shown at {address} {said}" in line
    assert tls_trouble(address, made.authority) == ""  # nobody is there: others say so


def test_a_certificate_of_another_name_or_authority_is_named(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "own", [HOST])
    other = make_certificates(tmp_path / "other", [HOST])
    with shown(made) as address:
        assert tls_trouble(address, made.authority, HOST) == ""
        line = tls_trouble(address, made.authority, "hub.example.org")
        assert "is not for 'hub.example.org': reach the coordinator under a name" in line
        assert f"authority in '{other.authority}': ask for" in tls_trouble(address, other.authority)
        port = int(address.rpartition(":")[2])
        tls = {"authority": made.authority, "certificate": made.certificate, "key": made.key}
        project = Project(folder=tmp_path, host="hub.example.org", port=port, **tls)
        assert certificate_lines(project) == [line]


def test_commands_and_nodes_say_what_is_wrong_with_it(tmp_path, monkeypatch) -> None:
    """Flower says to check the address, or quotes OpenSSL."""
    made = made_at(tmp_path, monkeypatch, -400)
    told: list[object] = []
    with shown(made) as address:
        failing = tmp_path / "flwr"
        failing.write_text("#!/bin/sh\necho check the address\nexit 1\n")
        failing.chmod(0o755)
        monkeypatch.setattr(link, "environment", lambda home: {"PATH": str(tmp_path)})
        with pytest.raises(BadInput, match="has expired"):
            Link(tmp_path / "home", address, made.authority).flwr("list")
        where = ["--superlink", address, "--root-certificates", str(made.authority)]
        site = Node(tmp_path / "site.toml", where)
        monkeypatch.setattr(site, "commands", lambda: {"node": [sys.executable, "-c", "exit(1)"]})
        for name in ("start_worker", "stop_site"):
            monkeypatch.setattr(node, name, lambda path: None)
        monkeypatch.setattr(node.log, "warning", lambda *said: (told.append(said), site.end()))
        site.run()
    assert EXPIRED in str(told) and "2004" not in str(told)
