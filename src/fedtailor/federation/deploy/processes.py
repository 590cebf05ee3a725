"""Flower's processes on this machine: started with what they need, stopped with what they started.

TLS and node authentication are on unless `insecure` is said.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from fedtailor.core.errors import BadInput
from fedtailor.federation.deploy.keys import Certificates
from fedtailor.federation.protocol.ipc import stop_site

READY_SECONDS, END_SECONDS = 90.0, 10.0  # that a process has to start, and to end


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ProcessGroup:
    """Processes with names, each with a group of its own; a `with` ends all of them."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.site_files: set[Path] = set()
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(
        self, name: str, command: Sequence[str], env: dict[str, str], folder: Path
    ) -> subprocess.Popen[bytes]:
        """Starts a process; what it says goes to `NAME.log`."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                list(command),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,  # a group of its own, so that all of it can be ended
            )
        return self.started[name]

    def start_script(self, name: str, folder: Path, env: dict[str, str]) -> None:
        """Starts the coordinator or a site with the script in its folder."""
        self.start(name, ["sh", str(folder / "start.sh")], env, folder)

    def wait_until(
        self, condition: Callable[[], bool], name: str, what: str, seconds: float = READY_SECONDS
    ) -> None:
        """Waits for something that a process is to do, unless it ends or takes too long."""
        until = time.monotonic() + seconds
        while not condition():
            log = self.logs / f"{name}.log"
            if self.started[name].poll() is not None or time.monotonic() > until:
                raise BadInput(f"the {name} did not {what}: see '{log}' (keep it with --keep)")
            time.sleep(0.1)

    def end(self, name: str, *, kill: bool = False) -> None:
        """Ends a process with all that it started."""
        process = self.started.pop(name, None)
        if process is None:
            return
        below = descendants(process.pid)  # Flower gives some of them groups of their own
        _signal(process, signal.SIGKILL if kill else signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        _signal(process, signal.SIGKILL)  # whoever of the group is left
        process.wait()
        for pid, begun in below.items():
            if _begun(pid) == begun:  # the same process still, not another with its number
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Ends everything that was started; a second Ctrl-C does not leave half of it behind."""
        names = sorted(self.started, key=lambda name: name == "coordinator")  # the sites first
        with signals_to(signal.SIG_IGN, "SIGINT", "SIGTERM"):
            for name in names:
                _signal(self.started[name], signal.SIGTERM)
            for name in names:
                self.end(name)
            for path in self.site_files:
                stop_site(path)


def superlink_command(
    certificates: Certificates | None,
    listen: str,
    port: int,
    database: Path,
    secret: Path | None = None,
) -> list[str]:
    """Flower's command for a coordinator; without certificates it is an insecure one.

    With a file that holds a `secret`, whoever knows it starts the apps, and not the SuperLink.
    """
    trust = ["--insecure"]
    if certificates:
        trust = [
            "--ssl-ca-certfile", str(certificates.authority),
            "--ssl-certfile", str(certificates.certificate),
            "--ssl-keyfile", str(certificates.key),
            "--enable-supernode-auth",
        ]  # fmt: skip
    where = ["--host", listen, "--port", str(port), "--database", str(database)]
    if secret:
        where += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return ["flower-superlink", *trust, *where, "--disable-runtime-dependency-installation"]


def _stat(pid: int) -> list[str]:
    """What Linux says of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _begun(pid: int) -> str:
    found = _stat(pid)
    return found[19] if found and found[0] != "Z" else ""


def descendants(pid: int) -> dict[int, str]:
    """Processes that a process started, and theirs: when each began, by number."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if found := _stat(int(path.name)):
            parents.setdefault(int(found[1]), []).append(int(path.name))
    below, left = {}, [pid]
    while left:
        for child in parents.get(left.pop(), []):
            below[child] = _begun(child)
            left.append(child)
    return {child: begun for child, begun in below.items() if begun}


@contextmanager
def signals_to(handler: Any, *names: str) -> Iterator[None]:
    """Within, these signals go to a handler, as far as this system has them."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's affair
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # its group has its number
