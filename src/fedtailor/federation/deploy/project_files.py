"""Writes a federation's project: files, keys, scripts, units; all of it or nothing."""

from __future__ import annotations

import ipaddress
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.federation.coordinator.federation_file import read_federation, read_survey_file
from fedtailor.federation.deploy.keys import make_certificates, make_node_key
from fedtailor.federation.deploy.project import (
    FILE,
    LAST_PORT,
    NODE_PORT,
    PORT,
    STATE,
    address_of,
    is_loopback,
    read_project,
)
from fedtailor.federation.deploy.proxy import CONFIGURATION, configuration
from fedtailor.federation.protocol.packet import checked_id
from fedtailor.federation.site.settings import OF_DATA, read_settings
from fedtailor.results.config import as_toml
from fedtailor.runs.schedule import networks

MARK = "FedTailor"  # in the first line of federation.toml: what may be overwritten
_SITE = re.compile(r"[a-z0-9]([a-z0-9_-]{0,46}[a-z0-9])?")
_LOOPBACKS = ("127.0.0.1", "::1")
_TRUST = "--root-certificates ca.crt --auth-supernode-private-key node.key"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class ProjectSpec:
    """A project to be written."""

    id: str  # of the federation
    method: str  # that is played
    sites: Sequence[str]  # their names; a site's number is its place here
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a run, those that were given
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method, likewise
    rules: Mapping[str, Any] = field(default_factory=dict)  # of `[federation]`, e.g. `deadline`
    host: str = "127.0.0.1"  # name or address at which sites find the coordinator
    port: int = PORT  # of the same
    node_ports: Sequence[int] = ()  # of the sites' nodes, for their own use on their machines
    control: int = 0  # port of loopback for its owner; given: with nginx in front, on loopback too
    insecure: bool = False  # without TLS and node authentication
    # what all sites apply to their own rows; None: trial data that everybody has, or see `survey`
    preprocessing: Mapping[str, Any] | None = None
    survey: bool = False  # whether it is made of what the sites tell

    @property
    def trial(self) -> bool:
        """Whether sites take their shares of data that everybody has."""
        return self.preprocessing is None and not self.survey


_SHARED = "# share = []        # tell no test scores; the report names who does not\n"
_SHARED_COLUMNS = (
    'share = ["scores", "baseline", "error", "columns"]  # what may leave; columns: sums and\n'
    "# categories of training rows, from which all sites' preprocessing is made\n"
    "# min_category = 5  # categories of fewer rows are not told\n"
)


def check_names(sites: Sequence[str], host: str) -> None:
    """Refuses names that could not be a folder, a service and a part of a certificate."""
    for name in sites:
        if not _SITE.fullmatch(name) or name == "coordinator":
            raise BadInput(
                f"site '{name[:80]}': use small letters, digits, '_' and '-', at most 48, and "
                "another name than 'coordinator'"
            )
        if list(sites).count(name) > 1:
            raise BadInput(f"site '{name}' is named twice: give each its own name")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise BadInput(
                f"host '{host[:80]}': give the name or address at which sites reach the coordinator"
            ) from None


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {as_toml(value)}\n" for name, value in values.items())


def _federation_toml(spec: ProjectSpec) -> str:
    own = {k: v for k, v in spec.settings.items() if spec.trial or k not in OF_DATA}
    table = {"id": spec.id, "sites": len(spec.sites), "folder": STATE}
    if spec.survey:
        # where a coordinator in a container may write
        table |= {"preprocessing": "coordinator/preprocessing.json", "survey": True}
    elif not spec.trial:
        table |= {"preprocessing": "preprocessing.json"}
    loopback = is_loopback(spec.host)
    # who listens at IPv6 addresses is not found at 127.0.0.1
    everywhere, contact = ("::", "::1") if ":" in spec.host else ("0.0.0.0", "127.0.0.1")
    where: dict[str, Any] = {
        "host": spec.host,
        "port": spec.port,
        "listen": spec.host if loopback else everywhere,
        "contact": contact,
    }
    if spec.control or not loopback:  # behind nginx
        where["control"] = spec.control or spec.port + (1 if spec.port < LAST_PORT else -1)
    if not spec.insecure:
        names = {"authority": "ca.crt", "certificate": "server.pem", "key": "server.key"}
        where |= {k: f"coordinator/certificates/{v}" for k, v in names.items()}
        where |= {"keys": "coordinator/keys"}
    return (
        f"# {MARK} {__version__}: what this federation learns. All sites agree to it when they "
        "join;\n# a change of method, network or training needs a new id.\n"
        + _toml({"method": spec.method} | own)
        + "\n[options]  # the method's own: fedtailor show METHOD\n"
        + _toml(spec.options)
        + "\n[federation]\n"
        + _toml(table | dict(spec.rules))
        + "\n[coordinator]  # where it runs; paths are relative to this file\n"
        + _toml(where)
    )


def _site_toml(spec: ProjectSpec, number: int) -> str:
    given = {k: v for k, v in spec.settings.items() if k in OF_DATA}
    said: dict[str, Any] = {"client": number, "name": spec.sites[number], "folder": "state"}
    note = ""
    if spec.trial:
        said |= {"data": "digits"} | given | {"clients": len(spec.sites)}
    else:
        note = "# CHANGE `data`: a file or folder in any form that `fedtailor run --data` takes.\n"
        unfit = ("data", "data_dir", "clients", "partition", "client_column", "min_samples")
        said |= {"data": "data"} | {k: v for k, v in given.items() if k not in unfit}
    if several := spec.settings.get("models"):
        having = networks(several, "", len(spec.sites))
        said["model"] = next(name for name, ids in having if number in ids)
    return (
        f"# Site '{spec.sites[number]}' of '{spec.id}': its data, and what it agrees to. Paths "
        "are relative to\n# this file. Nothing here leaves the site but its name.\n"
        + note
        + _toml(said)
        + f"federations = {as_toml([spec.id])}  # that it takes part in\n"
        + f"allow = {as_toml([spec.method])}  # methods, likewise\n"
        + (_SHARED_COLUMNS if spec.survey else _SHARED)
        + '# counts = "exact"  # rows for validation and testing, which else leave in tens\n'
        + "# max_rounds = 100  # refuse after so many; max_answers: over all federations\n"
        + "# max_epsilon = 3   # refuse what would bring ε of DP-SGD above it, and plans without\n"
    )


def _filled(asset: str, **values: Any) -> str:
    """One of the project's files: `$NAME` is filled in, `$$` is a dollar sign of its own."""
    text = resources.files(__package__).joinpath("assets", asset).read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _write(path: Path, asset: str, **values: Any) -> None:
    """Writes a file, filled in; a script can be run."""
    path.write_text(_filled(asset, **values), encoding="utf-8")
    if path.suffix == ".sh":
        path.chmod(0o755)


def _unit(path: Path, spec: ProjectSpec, what: str, folder: str, seconds: int) -> None:
    user = f"fedtailor-{what.partition(' ')[0]}"
    named = {"unit": path.name, "what": what, "federation": spec.id, "user": user}
    _write(path, "unit.service", **named, folder=folder, seconds=seconds)


def certified_hosts(host: str) -> list[str]:
    """Names in a coordinator's certificate: loopback too, where this machine's own commands go."""
    return list(dict.fromkeys([host, *_LOOPBACKS, "localhost", "coordinator"]))


def _write_coordinator(root: Path, spec: ProjectSpec) -> None:
    here = root / "coordinator"
    here.mkdir()
    if not spec.insecure:
        make_certificates(here / "certificates", certified_hosts(spec.host))
        (here / "keys").mkdir()
    insecure = " --insecure" if spec.insecure else ""
    _write(here / "start.sh", "coordinator.sh", federation=spec.id, insecure=insecure)
    unit = here / "fedtailor-coordinator.service"
    _unit(unit, spec, "coordinator", f"/srv/{spec.id}/coordinator", 10)


def _write_site(root: Path, spec: ProjectSpec, number: int) -> None:
    name = spec.sites[number]
    here = root / "sites" / name
    here.mkdir(parents=True, mode=0o700)
    (here / "site.toml").write_text(_site_toml(spec, number), encoding="utf-8")
    if not spec.insecure:
        public = make_node_key(here / "node.key")
        shutil.copyfile(public, root / "coordinator" / "keys" / f"{name}.pub")
        shutil.copyfile(root / "coordinator" / "certificates" / "ca.crt", here / "ca.crt")
    ports = spec.node_ports or [NODE_PORT + i for i in range(len(spec.sites))]
    _write(
        here / "start.sh",
        "site.sh",
        site=name,
        federation=spec.id,
        address=address_of(spec.host, spec.port),
        trust="--insecure" if spec.insecure else _TRUST,
        port=ports[number],
    )
    # A node that comes back within a minute is turned away, since the coordinator still believes in
    # the old one; `federation/site/node.py` waits that out by itself: the unit restarts the rest.
    _unit(here / f"fedtailor-{name}.service", spec, f"site {name}", f"/srv/{name}", 70)


def _write_containers(root: Path, spec: ProjectSpec, mounted: str) -> None:
    service = partial(_filled, "compose-site.yaml", port=spec.port)
    _write(
        root / "compose.yaml",
        "compose.yaml",
        federation=spec.id,
        version=__version__,
        preprocessing=mounted,
        port=spec.port,
        sites="".join(service(site=name) for name in spec.sites).rstrip(),
    )
    _write(root / "Dockerfile", "Dockerfile", version=__version__)
    (root / "wheels").mkdir()
    (root / "wheels" / "README").write_text("Wheels for `docker compose build`, if any.\n")


def _write_all(root: Path, spec: ProjectSpec) -> None:
    (root / FILE).write_text(_federation_toml(spec), encoding="utf-8")
    mounted = ""
    if spec.preprocessing is not None:
        text = json.dumps(spec.preprocessing, indent=1) + "\n"
        (root / "preprocessing.json").write_text(text, encoding="utf-8")
        mounted = "      - ./preprocessing.json:/project/preprocessing.json:ro\n"
    _write_coordinator(root, spec)
    for number in range(len(spec.sites)):
        _write_site(root, spec, number)
    if not spec.insecure:  # containers talk over a network
        _write_containers(root, spec, mounted)
    mode = "**Without TLS and node keys: for trials on one machine only.** "
    _write(
        root / "README.md",
        "readme.md",
        federation=spec.id,
        version=__version__,
        what=(mode if spec.insecure else "") + "Guide: docs/federation.md of FedTailor.",
        insecure=" --insecure" if spec.insecure else "",
    )


def _is_project(folder: Path) -> bool:
    try:
        return MARK in (folder / FILE).read_text(encoding="utf-8", errors="replace")[:200]
    except OSError:
        return False


def write_project(folder: Path, spec: ProjectSpec, *, overwrite: bool = False) -> Path:
    """Writes a project, wholly or not at all.

    With `overwrite` an earlier one is removed, with its keys and all that was learnt in it.

    Raises:
      BadInput: something in it cannot be had, or the folder holds something else.
    """
    folder = folder.expanduser().absolute()
    checked_id(spec.id)
    check_names(spec.sites, spec.host)
    if spec.insecure and not is_loopback(spec.host):
        raise BadInput(
            f"--insecure with host '{spec.host}': without TLS a federation stays on one machine: "
            "leave one of them out"
        )
    if not 1 <= spec.port <= LAST_PORT:
        raise BadInput(f"port is {spec.port}: give a number from 1 to {LAST_PORT}")
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken and not _is_project(folder):
        raise BadInput(f"'{folder}' is not empty and no earlier project: choose another folder")
    if taken and not overwrite:
        raise BadInput(
            f"'{folder}' holds a project: choose another folder, or say --overwrite (its keys and "
            "all that was learnt there are lost)"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise BadInput(f"folder '{folder}' cannot be made: {error.strerror}") from None
    try:
        try:
            _write_all(made, spec)
            # read as it will be, so that mistakes show now and not at the sites
            if spec.survey:
                read_survey_file(made / FILE)
            else:
                read_federation(made / FILE)
            project = read_project(made, insecure=spec.insecure)
            if project.proxied:
                text = configuration(project, Path("proxy"))
                (made / "coordinator" / CONFIGURATION).write_text(text, encoding="utf-8")
            for name in spec.sites:
                read_settings(made / "sites" / name / "site.toml")
        except BadInput as error:  # the person knows nothing of the folder in between
            raise BadInput(str(error).replace(str(made.resolve()), str(folder))) from None
        made.chmod(0o755)
        if taken:
            shutil.rmtree(folder)
        made.replace(folder)
    except OSError as error:
        raise BadInput(f"folder '{folder}' cannot be written to: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            shutil.rmtree(made)
    return folder
