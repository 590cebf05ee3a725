"""Keeps a site's SuperNode alive: `python -m fedtailor.federation.site.node SITE.toml ARGUMENTS...`

ARGUMENTS are those of `flower-supernode`. A node that restarts within a minute is turned away by
the coordinator, who still believes in the old one; so whenever it ends, it is started again after a
while. With it run the site's own process, which does the work, and `executor`, which hands it the
messages: the node itself starts nothing of what comes with a run.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import start_log
from fedtailor.federation.protocol.certificates import expiry_line, tls_trouble
from fedtailor.federation.protocol.ipc import (
    private_folder,
    start_worker,
    stop_site,
    write_private,
)

log = logging.getLogger("fedtailor.node")

SWITCHES = {
    # nothing of a federation is anybody else's business
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
# seconds until what ended is started again; more each time, up to
AGAIN = {"executor": 1.0, "node": 5.0}
AT_MOST = 20.0
LOOK = 0.2  # seconds between two looks whether all are there
DAY = 86400.0
_CURE = "ask the coordinator for its new ca.crt, put it in this one's place, and start again"
STEADY = 120.0  # a node that lived so long starts quickly again
# Flower (2004) and nginx (403) say nothing of what to do
_TURNED_AWAY = (
    "why is above: with 2004 or 403 the coordinator does not know node.key (send it node.key.pub), "
    "or another process used it in the last minute; with a refused connection, it is not there yet"
)


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes see: its switches, a home of their own, and our commands."""
    commands = str(Path(sys.executable).parent)
    path = os.pathsep.join([commands, os.environ.get("PATH", "")])
    return {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": path}


def warn_of_root(log: logging.Logger) -> None:
    """One line where somebody has more rights than are needed."""
    if os.geteuid() == 0:
        log.warning("running as root, which is not needed: use a user of its own (see the unit)")


def _runtime(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Where the node will talk to its executor, and the certificate to trust there, if any."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="9094")
    parser.add_argument("--ssl-ca-certfile")
    found, _ = parser.parse_known_args(list(arguments))
    host = f"[{found.host}]" if ":" in found.host else found.host
    return f"{host}:{found.port}", [found.ssl_ca_certfile] if found.ssl_ca_certfile else []


class Node:
    """A SuperNode with its executor; `arguments` are those of `flower-supernode`."""

    def __init__(self, site_file: Path, arguments: Sequence[str]) -> None:
        self.site_file, self.arguments = site_file.resolve(), list(arguments)
        if '"' in str(self.site_file) or "\\" in str(self.site_file):
            raise BadInput(f"site file '{site_file}': Flower takes no quotes in a path: move it")
        self._ended = threading.Event()
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def commands(self) -> dict[str, list[str]]:
        """What runs here, and with a secret that only these two know."""
        mark = hashlib.sha256(str(self.site_file).encode()).hexdigest()[:24]
        secret = private_folder() / f"{mark}.key"
        write_private(secret, secrets.token_bytes(32))
        address, trusted = _runtime(self.arguments)
        executor = [sys.executable, "-m", "fedtailor.federation.site.executor"]
        return {
            "executor": [*executor, address, str(secret), *trusted],
            # ours come last, and so win: with any other isolation Flower would start a run's app
            "node": [
                "flower-supernode", *self.arguments,
                "--isolation", "process", "--superexec-auth-secret-file", str(secret),
                "--node-config", f'site="{self.site_file}"',
            ],
        }  # fmt: skip

    def _coordinator(self) -> tuple[str, Path | None]:
        """Where the coordinator is, and the certificate that its own is checked against."""
        parser = argparse.ArgumentParser(add_help=False)
        parser.add_argument("--superlink", default="")
        parser.add_argument("--root-certificates", type=Path)
        found, _ = parser.parse_known_args(self.arguments)
        return found.superlink, found.root_certificates

    def _tell_of_certificate(self) -> None:
        _, path = self._coordinator()
        if path and (line := expiry_line(path, _CURE, trusted=True)):
            log.warning("%s", line)

    def _why_it_ended(self) -> str:
        """Why a node ended soon after it was started."""
        address, path = self._coordinator()
        return (tls_trouble(address, path) if path else "") or _TURNED_AWAY

    def run(self) -> None:
        """Runs until it is ended; whichever of the two ends is started again."""
        env = environment(Path(os.environ.get("FLWR_HOME", self.site_file.parent / ".flwr")))
        commands = self.commands()
        start_worker(self.site_file)  # warm before the first message
        again = dict.fromkeys(commands, 0.0)  # when to start it, or when it was started
        pauses, told = dict(AGAIN), -DAY
        try:
            while not self._ended.wait(LOOK):
                if time.monotonic() - told >= DAY:
                    told = time.monotonic()
                    self._tell_of_certificate()
                for name, command in commands.items():
                    now, child = time.monotonic(), self._children.get(name)
                    if child is None and now >= again[name]:
                        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
                        self._children[name], again[name] = child, now
                    elif child is not None and (code := child.poll()) is not None:
                        steady = now - again[name] > STEADY
                        pause = AGAIN[name] if steady else min(pauses[name] * 1.5, AT_MOST)
                        log.warning("the %s ended (code %d): again in %.0f s", name, code, pause)
                        if name == "node" and code > 0 and not steady:
                            log.warning("%s", self._why_it_ended())
                        del self._children[name]
                        pauses[name], again[name] = pause, now + pause
        finally:
            self.end()
            for child in self._children.values():
                wait_or_kill(child)
            stop_site(self.site_file)

    def end(self) -> None:
        """Ends the node and all that runs with it."""
        self._ended.set()
        for child in list(self._children.values()):
            with suppress(ProcessLookupError):
                child.terminate()


def wait_or_kill(child: subprocess.Popen[bytes], seconds: float = 5.0) -> None:
    """Waits for a process that was told to end, but not for long."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(arguments: Sequence[str]) -> int:
    """The command: a site file, then Flower's arguments."""
    if not arguments:
        sys.stderr.write("usage: python -m fedtailor.federation.site.node SITE.toml ARGUMENTS...\n")
        return 2
    start_log()
    try:
        warn_of_root(log)
        node = Node(Path(arguments[0]), arguments[1:])
    except BadInput as error:
        sys.stderr.write(f"fedtailor: {error}\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.end())
    node.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
