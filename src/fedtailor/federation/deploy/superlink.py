"""Runs a project's SuperLink and lets it know the sites' keys:

    python -m fedtailor.federation.deploy.superlink DIR [--insecure]
        [--listen ADDRESS]

Public keys that are put into the project's folder of keys later are taken in without a restart, and
so are new certificates behind nginx. A coordinator that others can reach has nginx in front of it.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import start_log
from fedtailor.federation.coordinator.owners import HOME
from fedtailor.federation.deploy.keys import (
    AUTHORITY_DAYS,
    AUTHORITY_KEY,
    Certificates,
    make_certificates,
)
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.deploy.processes import superlink_command
from fedtailor.federation.deploy.project import (
    Project,
    address_of,
    certificate_lines,
    read_project,
)
from fedtailor.federation.deploy.proxy import Proxy, find_nginx, missing, running
from fedtailor.federation.protocol.ipc import write_private
from fedtailor.federation.site.node import DAY, environment, wait_or_kill, warn_of_root

log = logging.getLogger("fedtailor.coordinator")

START_SECONDS = 60.0
LOOK = 10.0  # seconds between two looks for new keys


def register_keys(link: Link, folder: Path) -> None:
    """Registers all keys of a folder that the SuperLink does not know; a bad one is named."""
    for public in sorted(folder.glob("*.pub")):
        try:
            if link.register(public, public.stem):
                log.info("key of site '%s' registered", public.stem)
        except (BadInput, OSError) as error:
            log.warning("key '%s': %s", public, error)


def _listens_in_time(link: Link, process: subprocess.Popen[bytes]) -> bool:
    """Whether the SuperLink came up before it ended, and in time."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        if link.listens():
            return process.poll() is None  # somebody else may have had the port
        time.sleep(0.1)
    return False


def _certificates(project: Project) -> Certificates | None:
    """For the SuperLink: behind nginx its own, which hold on this machine alone."""
    if not project.proxied:
        shutil.rmtree(project.loopback, ignore_errors=True)
        return project.certificates
    made = make_certificates(project.loopback, ["localhost", "127.0.0.1"], days=AUTHORITY_DAYS)
    (project.loopback / AUTHORITY_KEY).unlink()  # made anew at every start
    return made


class Launching:
    """The process that starts apps, for as long as the SuperLink lives."""

    def __init__(self, arguments: list[str], env: dict[str, str]) -> None:
        module = "fedtailor.federation.deploy.launcher"
        self._command, self._env = [sys.executable, "-m", module, *arguments], env
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._env, stdin=subprocess.DEVNULL)

    def look(self) -> str:
        """Keeps it going; says what had to be done."""
        if (code := self.process.poll()) is None:
            return ""
        self._start()
        return f"the launcher of apps ended (code {code}): started again; so must be what it ran"

    def stop(self) -> None:
        """Ends it, and with it the apps that it started."""
        self.process.terminate()
        wait_or_kill(self.process)


def run_superlink(project: Project) -> int:
    """Runs until it is ended; returns the SuperLink's exit code."""
    if project.proxied and find_nginx() is None:
        raise BadInput(missing(project))
    link, ended = project.link(), threading.Event()
    for found, where in (
        (link.listens(), link.address),
        (project.proxied and project.reachable(), address_of(project.listen, project.port)),
    ):
        if found:
            raise BadInput(f"somebody listens at {where} already: end it, or change the port")
    home, own = project.folder / HOME, _certificates(project)
    listen, port = project.listen, project.port
    if project.proxied:
        listen, port = "127.0.0.1", project.control_port
    secret, env = home / "launcher.key", environment(home)
    write_private(secret, secrets.token_bytes(32))
    command = superlink_command(own, listen, port, home / "state.db", secret)
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        if not _listens_in_time(link, process):
            log.error("the SuperLink did not start at %s", link.address)
            return process.poll() or 1
        with running(project) if project.proxied else nullcontext() as proxy:
            log.info("the coordinator listens at %s", address_of(project.listen, project.port))
            if proxy:
                log.info("its control interface at %s, for this machine alone", link.address)
            trust = [str(own.authority)] if own else []
            launcher = Launching([link.address, str(secret), *trust], env)
            try:
                _watch(project, link, proxy, process, launcher, ended)
            finally:
                launcher.stop()
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            wait_or_kill(process, 10.0)


def _watch(
    project: Project,
    link: Link,
    proxy: Proxy | None,
    process: subprocess.Popen[bytes],
    launcher: Launching,
    ended: threading.Event,
) -> None:
    """Takes in keys and certificates, and keeps all others going, until the SuperLink ends."""
    told = -DAY
    while process.poll() is None and not ended.is_set():
        if project.certificates:
            register_keys(link, project.keys)
            if time.monotonic() - told >= DAY:
                told = time.monotonic()
                for line in certificate_lines(project):
                    log.warning("%s", line)
        if proxy and (said := proxy.look()):
            log.info("%s", said)
        if said := launcher.look():
            log.warning("%s", said)
        try:
            process.wait(LOOK)
        except subprocess.TimeoutExpired:
            continue


def main(arguments: Sequence[str]) -> int:
    """The command: a project's folder."""
    parser = argparse.ArgumentParser(prog="python -m fedtailor.federation.deploy.superlink")
    parser.add_argument("folder", type=Path, help="of the project")
    parser.add_argument("--insecure", action="store_true", help="without TLS and node keys")
    parser.add_argument("--listen", default="", help="address, in place of the project's")
    said = parser.parse_args(list(arguments))
    start_log()
    try:
        project = read_project(said.folder, insecure=said.insecure)
        warn_of_root(log)
        return run_superlink(replace(project, listen=said.listen or project.listen))
    except FileNotFoundError:
        sys.stderr.write("fedtailor: Flower is not installed: pip install 'fedtailor[flower]'\n")
        return 2
    except BadInput as error:
        sys.stderr.write(f"fedtailor: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
