"""A whole federation on this machine: a coordinator and its sites, each a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import Ending, folder_of, follow
from fedtailor.federation.coordinator.store import Line
from fedtailor.federation.deploy.processes import ProcessGroup, free_port
from fedtailor.federation.deploy.project import Project, read_project
from fedtailor.federation.deploy.project_files import ProjectSpec, write_project

READY_SECONDS = 90.0


def demo_project(folder: Path, method: str, rounds: int, sites: int, insecure: bool) -> Project:
    """Writes the demo's project: digits, divided unevenly, on free ports of this machine."""
    settings = {"data": "digits", "partition": "dirichlet:0.1", "model": "cnn", "rounds": rounds}
    spec = ProjectSpec(
        "demo",
        method,
        [f"site-{i}" for i in range(sites)],
        settings,
        rules={"deadline": 60, "wait": 120, "join": 60, "pause": 2, "min_sites": min(2, sites)},
        port=free_port(),
        node_ports=[free_port() for _ in range(sites)],
        insecure=insecure,
    )
    return read_project(write_project(folder, spec), insecure=insecure)


def play_demo(
    project: Project, sites: int, tell: Callable[[Line], None], say: Callable[[str], None]
) -> Ending:
    """Starts everything with the project's own scripts, plays, and stops all that it started.

    Args:
      project: of the demo.
      sites: how many there are.
      tell: called with each round and event.
      say: called with what is being done.

    Raises:
      BadInput: something did not start.
    """
    env = os.environ | {"PYTHON": sys.executable}
    env.setdefault("OMP_NUM_THREADS", "1")  # sites share this machine's cores
    found, link = read_federation(project.file), project.link()
    with ProcessGroup(project.folder / "logs") as group:
        say("starting the coordinator")
        start_script(group, "coordinator", project.folder / "coordinator", env)
        wait_until(link.listens, group, "coordinator", "listen")
        if project.certificates:
            say("registering the sites' keys")
            marks = project.folder / "coordinator" / "flower" / "registered"
            wait_until(lambda: _count(marks) >= sites, group, "coordinator", "take all keys in")
        say(f"starting {sites} sites")
        for i in range(sites):
            folder = project.folder / "sites" / f"site-{i}"
            group.site_files.add(folder / "site.toml")
            start_script(group, f"site-{i}", folder, env)
        run = link.submit(project.file)
        say("waiting for the sites to join")
        folder = folder_of(found)
        return follow(folder, link.status, run, 0, tell)


def start_script(group: ProcessGroup, name: str, folder: Path, env: dict[str, str]) -> None:
    """Starts the coordinator or a site with the script in its folder."""
    group.start(name, ["sh", str(folder / "start.sh")], env, folder)


def _count(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def wait_until(
    condition: Callable[[], bool],
    group: ProcessGroup,
    name: str,
    what: str,
    seconds: float = READY_SECONDS,
) -> None:
    """Waits for something that a process is to do.

    Raises:
      BadInput: it ended, or took too long.
    """
    until = time.monotonic() + seconds
    while not condition():
        log = group.logs / f"{name}.log"
        if group.started[name].poll() is not None or time.monotonic() > until:
            raise BadInput(f"the {name} did not {what}: see '{log}' (keep it with --keep)")
        time.sleep(0.1)


def model_cards(project: Project, sites: int) -> list[dict[str, Any]]:
    """Each site's card, as it lies in its own folder; a site without one is left out."""
    found = []
    for i in range(sites):
        site = project.folder / "sites" / f"site-{i}" / "state" / "federations" / "demo"
        if (site / "card.json").exists():
            found.append(json.loads((site / "card.json").read_text(encoding="utf-8")))
    return found
