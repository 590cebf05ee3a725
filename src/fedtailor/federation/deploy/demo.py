"""A whole federation on this machine: a coordinator and its sites, each a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import Ending, follow
from fedtailor.federation.deploy.processes import ProcessGroup, free_port
from fedtailor.federation.deploy.project import Project, read_project
from fedtailor.federation.deploy.project_files import ProjectSpec, write_project
from fedtailor.federation.deploy.proxy import CURE, find_nginx
from fedtailor.federation.protocol.lines import Line
from fedtailor.federation.protocol.plan import set_up


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
        control=free_port() if find_nginx() and not insecure else 0,
        insecure=insecure,
    )
    project = read_project(write_project(folder, spec), insecure=insecure)
    if sends_class_means(project):
        for file in sorted((project.folder / "sites").glob("*/site.toml")):
            with file.open("a", encoding="utf-8") as site:
                site.write("min_rows = 1  # of a class, too: these rows are no secret\n")
    return project


def sends_class_means(project: Project) -> bool:
    """Whether sites would refuse it for their classes of few rows, as the demo's all have."""
    return bool(set_up(read_federation(project.file).plan).method.by_class)


def play_demo(
    project: Project, sites: int, tell: Callable[[Line], None], say: Callable[[str], None]
) -> Ending:
    """Starts everything with the project's own scripts, plays, and stops all that it started.

    `tell` is called with each round and event, `say` with what is being done.

    Raises:
      BadInput: something did not start.
    """
    env = os.environ | {"PYTHON": sys.executable}
    env.setdefault("OMP_NUM_THREADS", "1")  # sites share this machine's cores
    found, link = read_federation(project.file), project.link()
    if project.certificates and not project.proxied:
        say(
            "nginx is not installed: sites talk to Flower directly, which is safe on this machine "
            f"alone; a coordinator that others can reach needs it: {CURE}"
        )
    with ProcessGroup(project.folder / "logs") as group:
        say("starting the coordinator")
        group.start_script("coordinator", project.folder / "coordinator", env)
        group.wait_until(project.reachable, "coordinator", "listen")
        if project.certificates:
            say("registering the sites' keys")
            marks = link.home / "registered"
            group.wait_until(
                lambda: len(list(marks.glob("*"))) >= sites, "coordinator", "take all keys in"
            )
        if sends_class_means(project):
            say(
                f"method '{found.plan.method}' sends a mean for each class: the demo's sites have "
                "min_rows = 1, or they would refuse it for their classes of few rows"
            )
        say(f"starting {sites} sites")
        for i in range(sites):
            folder = project.folder / "sites" / f"site-{i}"
            group.site_files.add(folder / "site.toml")
            group.start_script(f"site-{i}", folder, env)
        run = link.submit(project.file)
        say("waiting for the sites to join")
        return follow(found.state_folder, link.status, run, 0, tell)


def model_cards(project: Project, sites: int) -> list[dict[str, Any]]:
    """Each site's card, as it lies in its own folder; a site without one is left out."""
    found = []
    for i in range(sites):
        site = project.folder / "sites" / f"site-{i}" / "state" / "federations" / "demo"
        if (site / "card.json").exists():
            found.append(parse_json((site / "card.json").read_text(encoding="utf-8")))
    return found
