"""Where a project's federation stands: from its folder and, if it listens, from its SuperLink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.settings_file import read_toml
from fedtailor.federation.coordinator.federation_file import read_federation
from fedtailor.federation.coordinator.progress import (
    last_end,
    round_now,
    rounds_of,
    sites_of,
    traffic_of,
)
from fedtailor.federation.coordinator.store import is_played
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.deploy.project import certificate_lines, read_project

LATEST_ROUNDS = 3


def _connected(link: Link, listens: bool, names: list[str]) -> dict[str, bool | None]:
    """Who is there, by the names that keys were registered with."""
    unknown: dict[str, bool | None] = dict.fromkeys(names)
    if not listens:
        return unknown
    try:
        return unknown | link.connected()
    except (BadInput, KeyError, ValueError):
        return unknown


def named_sites(project_folder: Path) -> list[str]:
    """Names in the project's own folder of sites, where it still is."""
    found = sorted((project_folder / "sites").glob("*/site.toml"))
    numbered = [(int(read_toml(p, "site file").get("client", 0)), p.parent.name) for p in found]
    return [name for _, name in sorted(numbered)]


def project_status(folder: Path, *, insecure: bool) -> dict[str, Any]:
    """Everything that `fedtailor federation status` shows."""
    project = read_project(folder, insecure=insecure)
    found, link = read_federation(project.file), project.link()
    kept, listens = found.state_folder, link.listens()
    ended = last_end(kept)
    keys = [path.stem for path in sorted(project.keys.glob("*.pub"))]
    names = list(dict.fromkeys([*named_sites(project.folder), *keys]))
    return {
        "id": found.id,
        "method": found.plan.method,
        "metric": str(found.plan.settings["metric"]),
        "round": round_now(kept),
        "rounds": found.plan.rounds,
        "playing": is_played(kept),
        "listens": listens,
        "address": link.address,
        "warnings": certificate_lines(project),
        "sites": [s._asdict() for s in sites_of(kept, _connected(link, listens, names))],
        "latest": rounds_of(kept)[-LATEST_ROUNDS:],
        "bytes": traffic_of(kept),
        "ended": ": ".join(str(ended[k]) for k in ("event", "detail") if ended.get(k)),
    }
