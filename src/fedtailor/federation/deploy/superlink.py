"""Runs a project's SuperLink and lets it know the sites' keys:

    python -m fedtailor.federation.deploy.superlink DIR [--insecure]
        [--listen ADDRESS] [--contact ADDRESS]

Public keys that are put into the project's folder of keys later are taken in without a restart.
"""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import start_log
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.deploy.processes import superlink_command
from fedtailor.federation.deploy.project import HOME, Project, address_of, read_project
from fedtailor.federation.site.node import environment, wait_or_kill

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


def run_superlink(project: Project) -> int:
    """Runs until it is ended; returns the SuperLink's exit code."""
    link, ended = project.link(), threading.Event()
    if link.listens():
        raise BadInput(f"somebody listens at {link.address} already: end it, or change the port")
    home = project.folder / HOME
    command = superlink_command(
        project.certificates, project.listen, project.port, home / "state.db"
    )
    process = subprocess.Popen(command, env=environment(home), stdin=subprocess.DEVNULL)

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()
        process.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        if not _listens_in_time(link, process):
            log.error("the SuperLink did not start at %s", link.address)
            return process.poll() or 1
        log.info("the coordinator listens at %s", address_of(project.listen, project.port))
        while process.poll() is None and not ended.is_set():
            if project.certificates:
                register_keys(link, project.keys)
            try:
                process.wait(LOOK)
            except subprocess.TimeoutExpired:
                continue
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            wait_or_kill(process, 10.0)


def main(arguments: Sequence[str]) -> int:
    """The command: a project's folder."""
    parser = argparse.ArgumentParser(prog="python -m fedtailor.federation.deploy.superlink")
    parser.add_argument("folder", type=Path, help="of the project")
    parser.add_argument("--insecure", action="store_true", help="without TLS and node keys")
    parser.add_argument("--listen", default="", help="address, in place of the project's")
    parser.add_argument("--contact", default="", help="where it is found here, likewise")
    said = parser.parse_args(list(arguments))
    start_log()
    try:
        project = read_project(said.folder, insecure=said.insecure)
        listen, contact = said.listen or project.listen, said.contact or project.contact
        return run_superlink(replace(project, listen=listen, contact=contact))
    except FileNotFoundError:
        sys.stderr.write("fedtailor: Flower is not installed: pip install 'fedtailor[flower]'\n")
        return 2
    except BadInput as error:
        sys.stderr.write(f"fedtailor: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
