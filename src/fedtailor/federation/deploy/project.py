"""A federation's project folder as its coordinator sees it: where everything lies.

    federation.toml          what is learnt, by whom, and where the coordinator runs
    preprocessing.json       how every site encodes its rows (own data only)
    coordinator/             certificates, the sites' public keys, start script; later the state
    sites/NAME/              all that site NAME needs: to be moved to its machine
    compose.yaml, Dockerfile the same in containers

The table `[coordinator]` of federation.toml holds what is no part of the agreement.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.settings_file import check_table, read_toml, setting
from fedtailor.federation.coordinator.owners import HOME
from fedtailor.federation.deploy.keys import Certificates
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.protocol.certificates import expiry_line, tls_trouble

FILE = "federation.toml"
STATE = "coordinator/state"
LOOPBACK = "loopback"  # folder in HOME: certificates for this machine's own way to the SuperLink
PORT, NODE_PORT = 8000, 9094  # Flower's own; each node of one machine needs another than 9094
LAST_PORT = 65535
Port = Annotated[int, (1, LAST_PORT)]
PortOrNone = Annotated[int, (0, LAST_PORT)]
# what scripts that 0.1 wrote start
RENAMED = {
    "fedtailor.sites.superlink": "fedtailor.federation.deploy.superlink",
    "fedtailor.sites.node": "fedtailor.federation.site.node",
}
_TLS = ("authority", "certificate", "key")


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project's folder, and where its coordinator runs: the table `[coordinator]`."""

    folder: Path
    host: str = setting("name or address at which sites find it", "127.0.0.1")
    port: Port = setting("at which it listens", PORT)
    listen: str = setting("address that it listens at", "127.0.0.1")
    control: PortOrNone = setting("port of loopback for its owner; 0: next to `port`", 0)
    contact: str = setting("name or address at which this machine's own commands find it", "")
    authority: Path | None = setting("certificate that sites trust", None)
    certificate: Path | None = setting("of the coordinator", None)
    key: Path | None = setting("of the coordinator", None)
    keys: Path = setting("folder with the sites' public keys, NAME.pub", Path("coordinator/keys"))

    @property
    def file(self) -> Path:
        """The coordinator's file."""
        return self.folder / FILE

    @property
    def certificates(self) -> Certificates | None:
        """For TLS; None without."""
        if not (self.authority and self.certificate and self.key):
            return None
        return Certificates(self.authority, self.certificate, self.key)

    @property
    def proxied(self) -> bool:
        """Whether nginx stands in front of the SuperLink, which then listens on loopback."""
        return bool(self.control) or not is_loopback(self.listen)

    @property
    def control_port(self) -> int:
        """Where the SuperLink listens behind nginx."""
        return self.control or self.port + (1 if self.port < LAST_PORT else -1)

    @property
    def loopback(self) -> Path:
        """Folder of the certificates that hold on this machine alone; there while proxied."""
        return self.folder / HOME / LOOPBACK

    @property
    def link_is_proxied(self) -> bool:
        """The same of the coordinator as it was last started (`--listen` may have made it so)."""
        return self.proxied or self.loopback.exists()

    def link(self) -> Link:
        """The way to the coordinator's SuperLink: the one that it was last started with."""
        home = self.folder / HOME
        if self.link_is_proxied:
            inner = self.loopback / "ca.crt"
            return Link(home, address_of("127.0.0.1", self.control_port), inner)
        return Link(home, address_of(self.contact or self.host, self.port), self.authority)

    @property
    def here(self) -> str:
        """The address, on this machine, of where sites come in."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)

    def reachable(self) -> bool:
        """Whether somebody listens where sites come in."""
        try:
            with socket.create_connection((self.here, self.port), timeout=1.0):
                return True
        except OSError:
            return False


def read_project(folder: Path, *, insecure: bool) -> Project:
    """The project in a folder, checked; that one without TLS is meant must be said (`insecure`)."""
    folder = folder.expanduser().resolve()
    path = folder / FILE
    if not path.exists():
        raise BadInput(
            f"'{folder}' holds no {FILE}: make a project with fedtailor federation init {folder}"
        )
    table = read_toml(path, "federation file").get("coordinator", {})
    found = check_table(table, Project, f"'{path}', coordinator", base=folder, folder=folder)
    files = {name: getattr(found, name) for name in _TLS}
    missing = [name for name, file in files.items() if file is None]
    if insecure and len(missing) < len(_TLS):
        raise BadInput(f"'{path}' names certificates: leave --insecure out, or remove them there")
    if missing and not insecure:
        raise BadInput(
            f"'{path}': [coordinator] names no {', '.join(missing)}: give the paths, or say "
            "--insecure"
        )
    if insecure and found.proxied:
        raise BadInput(
            f"'{path}': listen is '{found.listen}': without TLS a federation stays on one machine: "
            "set it to 127.0.0.1, or make a project without --insecure"
        )
    for file in files.values():
        if file and not file.is_file():
            raise BadInput(f"'{path}': '{file}' does not exist: put the certificate there")
    return replace(found, keys=folder / found.keys)


def certificate_lines(project: Project) -> list[str]:
    """A line for each certificate that ends soon or that sites do not take, with what to do."""
    if project.certificates is None:
        return []
    cure = f"make a new one with fedtailor federation renew {project.folder}"
    everywhere = f"{cure} --new-authority, and give each site its new ca.crt"
    found = [
        expiry_line(project.certificates.authority, everywhere, trusted=True),
        expiry_line(project.certificates.certificate, cure),
    ]
    where = address_of(project.here, project.port)
    if not any(found):
        found.append(tls_trouble(where, project.certificates.authority, project.host))
    return [line for line in found if line]


def check_scripts(folder: Path) -> None:
    """Refuses scripts that an earlier version wrote; the message says what to change."""
    for path in [folder / "coordinator" / "start.sh", *sorted(folder.glob("sites/*/start.sh"))]:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for old, new in RENAMED.items():
            if old in text:
                raise BadInput(
                    f"'{path}' was written by FedTailor 0.1 and starts {old}, which is {new} now: "
                    "change that there, in the other start.sh likewise, and start them again"
                )
