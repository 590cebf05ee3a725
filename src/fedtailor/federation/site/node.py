"""Keeps a site's SuperNode alive: `python -m fedtailor.federation.site.node SITE.toml ARGUMENTS...`

ARGUMENTS are those of `flower-supernode`. A node that restarts within a minute is turned away by
the coordinator, who still believes in the old one; so whenever it ends, it is started again after a
while. With it run the site's own process and `prefork`, which make messages cheap.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedtailor.core.errors import BadInput
from fedtailor.federation.protocol.ipc import private_folder, start_worker, stop_site
from fedtailor.federation.site.prefork import SOCKET_VARIABLE, write_shim

log = logging.getLogger("fedtailor.node")

SWITCHES = {
    # nothing of a federation is anybody else's business
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
# how often a site's waiting SuperExec looks for work; Flower's default is a second
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
AGAIN = 5.0  # seconds until an ended node is started again; more each time, up to
AT_MOST = 20.0
STEADY = 120.0  # a node that lived so long starts quickly again


def environment(home: Path) -> dict[str, str]:
    """What Flower's processes see: its switches, a home of their own, and our commands."""
    commands = str(Path(sys.executable).parent)
    path = os.pathsep.join([commands, os.environ.get("PATH", "")])
    return {**os.environ, **SWITCHES, "FLWR_HOME": str(home), "PATH": path}


class Node:
    """A SuperNode with what makes it quick; `arguments` are those of `flower-supernode`."""

    def __init__(self, site_file: Path, arguments: Sequence[str]) -> None:
        self.site_file, self.arguments = site_file.resolve(), list(arguments)
        if '"' in str(self.site_file) or "\\" in str(self.site_file):
            raise BadInput(f"site file '{site_file}': Flower takes no quotes in a path: move it")
        self._ended = threading.Event()
        self._children: list[subprocess.Popen[bytes]] = []

    def _environment(self) -> dict[str, str]:
        mark = hashlib.sha256(str(self.site_file).encode()).hexdigest()[:24]
        folder = private_folder()
        home = Path(os.environ.get("FLWR_HOME", self.site_file.parent / ".flwr"))
        env = environment(home) | QUICK
        env["PATH"] = os.pathsep.join([str(write_shim(folder / f"{mark}-bin")), env["PATH"]])
        env[SOCKET_VARIABLE] = str(folder / f"{mark}-prefork.sock")
        return env

    def run(self) -> None:
        """Runs until it is ended."""
        env = self._environment()
        module = "fedtailor.federation.site.prefork"
        prefork = [sys.executable, "-m", module, env[SOCKET_VARIABLE]]
        self._children.append(subprocess.Popen(prefork, env=env, stdin=subprocess.DEVNULL))
        start_worker(self.site_file)  # warm before the first message
        config = ["--node-config", f'site="{self.site_file}"']
        pause = AGAIN
        try:
            while not self._ended.is_set():
                begun = time.monotonic()
                command = ["flower-supernode", *self.arguments, *config]
                node = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
                self._children.append(node)
                code = node.wait()
                self._children.remove(node)
                if self._ended.is_set():
                    return
                pause = AGAIN if time.monotonic() - begun > STEADY else min(pause * 1.5, AT_MOST)
                log.warning("the node ended (code %d): again in %.0f s", code, pause)
                self._ended.wait(pause)
        finally:
            self.end()
            for child in self._children:
                wait_or_kill(child)
            stop_site(self.site_file)

    def end(self) -> None:
        """Ends the node and all that runs with it."""
        self._ended.set()
        for child in self._children:
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
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
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
