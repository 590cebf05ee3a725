"""A small server on this machine alone: the page, and whether there is a new one.

What is served never depends on paths in a request: there are five addresses, all else is refused.
A request must name this server as its host, so that no page from elsewhere can ask under another
name (DNS rebinding), and can only read.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.watch.snapshot import PageCache

HOME = "127.0.0.1"
PORT = 8640
HTTP_PORT = 80
# the shell may ask this server, and nobody else; the page in it may ask nobody, as on disk
SHELL_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
ASSETS = {
    "/": ("watch.html", "text/html; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
}


def host_names(port: int) -> set[str]:
    """What a browser on this machine may call the server."""
    names = {HOME, "localhost"}
    # browsers leave out the port that http has anyway
    return {f"{name}:{port}" for name in names} | (names if port == HTTP_PORT else set())


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server
    server_version, sys_version = "FedTailor", ""
    timeout = 30  # seconds: a silent guest does not keep a thread for ever

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.names:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"unknown host\n")
            return
        path = self.path.partition("?")[0]
        snapshots = self.server.snapshots
        if path in ASSETS:
            name, kind = ASSETS[path]
            body = resources.files(__package__).joinpath("assets", name).read_bytes()
            self._answer(HTTPStatus.OK, body, kind)
        elif path == "/state.json":
            self._state()
        elif path == "/page" and (page := snapshots.page()) is not None:
            self._answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8", PAGE_POLICY)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"nothing here\n")

    def _state(self) -> None:
        try:
            state = self.server.snapshots.state()
        except BadInput as error:  # somebody removed the folder
            state = {"words": str(error), "finished": False, "page": 0, "failed": "", "runs": []}
        self._answer(HTTPStatus.OK, json.dumps(state).encode(), "application/json")
        self.server.asked = time.monotonic()

    def _answer(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain; charset=utf-8",
        policy: str = SHELL_POLICY,
    ) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Allow", "GET"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Anything but GET, and what is no HTTP at all; in few words and with our headers."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._answer(status, b"only GET\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the terminal belongs to the run."""


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, snapshots: PageCache) -> None:
        super().__init__((HOME, port), _Handler)
        self.snapshots = snapshots
        self.port = int(self.server_address[1])
        self.names = host_names(self.port)
        self.asked = 0.0  # when a browser last asked for the state

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news."""


class Watching:
    """Serves a folder's page for as long as it is entered; port 0 takes any free one.

    Raises:
      BadInput: the folder holds no run, or the port cannot be had.
    """

    def __init__(self, folder: Path, port: int = PORT) -> None:
        if not 0 <= port <= 65535:
            raise BadInput(f"port is {port}: give one from 1 to 65535, or 0 for any free one")
        snapshots = PageCache(folder)
        try:
            self._server = _Server(port, snapshots)
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be had ({error.strerror}): choose another --port, or 0 for "
                "any free one"
            ) from None
        self.url = f"http://{HOME}:{self._server.port}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True
        )

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def linger(self, patience: float = 6.0) -> None:
        """After a run: lets a browser that is looking fetch the finished page, then goes."""
        until, now = time.monotonic() + patience, time.monotonic()
        if now - self._server.asked > patience or not self._server.asked:
            return  # nobody is looking
        while self._server.asked < now + 0.5 and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(0.5)  # the page itself is asked for after the state


def open_browser(url: str) -> bool:
    """Opens the page where there is a screen; never a text browser in the run's own terminal."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if not screen:
        return False
    import webbrowser

    return webbrowser.open(url)
