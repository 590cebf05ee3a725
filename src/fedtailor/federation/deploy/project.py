"""A federation's project folder as its coordinator sees it: where everything lies.

    federation.toml          what is learnt, by whom, and where the coordinator runs
    preprocessing.json       how every site encodes its rows (own data only)
    coordinator/             certificates, the sites' public keys, start script; later the state
    sites/NAME/              all that site NAME needs: to be moved to its machine
    compose.yaml, Dockerfile the same in containers

The table `[coordinator]` of federation.toml holds what is no part of the agreement.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.core.settings_file import check_table, read_toml, setting
from fedtailor.federation.deploy.keys import Certificates
from fedtailor.federation.deploy.link import Link

FILE = "federation.toml"
STATE, HOME = "coordinator/state", "coordinator/flower"
PORT, NODE_PORT = 8000, 9094  # Flower's own; each node of one machine needs another than 9094
LAST_PORT = 65535
Port = Annotated[int, (1, LAST_PORT)]
# what scripts that 0.1 wrote start
RENAMED = {
    "fedtailor.sites.superlink": "fedtailor.federation.deploy.superlink",
    "fedtailor.sites.node": "fedtailor.federation.site.node",
}
_TLS = ("authority", "certificate", "key")


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The table `[coordinator]`; paths are relative to the project's folder."""

    host: str = setting("name or address at which sites find it", "127.0.0.1")
    port: Port = setting("at which it listens", PORT)
    listen: str = setting("address that it listens at", "127.0.0.1")
    contact: str = setting("name or address at which this machine's own commands find it", "")
    authority: str = setting("certificate that sites trust", "")
    certificate: str = setting("of the coordinator", "")
    key: str = setting("of the coordinator", "")
    keys: str = setting("folder with the sites' public keys", "coordinator/keys")


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Project(NamedTuple):
    """A project's folder, and where its coordinator runs.

    Attributes:
      folder: of the project.
      file: the coordinator's file.
      host: name or address at which sites find the coordinator.
      port: of the same.
      listen: address that it listens at.
      contact: name or address at which this machine's own commands find it.
      certificates: None without TLS.
      keys: folder with the sites' public keys, `NAME.pub`.
    """

    folder: Path
    file: Path
    host: str
    port: int
    listen: str
    contact: str
    certificates: Certificates | None
    keys: Path

    def link(self) -> Link:
        """The way to the coordinator's SuperLink."""
        authority = self.certificates.authority if self.certificates else None
        return Link(self.folder / HOME, address_of(self.contact, self.port), authority)


def read_project(folder: Path, *, insecure: bool) -> Project:
    """The project in a folder.

    Args:
      folder: that `fedtailor federation init` made.
      insecure: whether it was said that a project without TLS is meant.

    Raises:
      BadInput: there is none, or something in its table is unknown or missing.
    """
    folder = folder.expanduser().resolve()
    path = folder / FILE
    if not path.exists():
        raise BadInput(
            f"'{folder}' holds no {FILE}: make a project with fedtailor federation init {folder}"
        )
    where = f"'{path}'"
    table = read_toml(path, "federation file").get("coordinator", {})
    found = check_table(table, _Table, f"{where}, coordinator")
    return Project(
        folder,
        path,
        found.host,
        found.port,
        found.listen,
        found.contact or found.host,
        _certificates(folder, found, insecure, where),
        folder / found.keys,
    )


def _certificates(folder: Path, table: _Table, insecure: bool, where: str) -> Certificates | None:
    paths = {name: getattr(table, name) for name in _TLS}
    named = [name for name in _TLS if paths[name]]
    if not named and insecure:
        return None
    if insecure:
        raise BadInput(f"{where} names certificates: leave --insecure out, or remove them there")
    if len(named) < len(_TLS):
        missing = ", ".join(name for name in _TLS if not paths[name])
        raise BadInput(
            f"{where}: [coordinator] names no {missing}: give the paths, or say --insecure"
        )
    made = Certificates(*(folder / paths[name] for name in _TLS))
    for path in made:
        if not path.is_file():
            raise BadInput(f"{where}: '{path}' does not exist: put the certificate there")
    return made


def check_scripts(folder: Path) -> None:
    """Whether a project's scripts start what this version has.

    Raises:
      BadInput: an earlier version wrote them; the message says what to change.
    """
    for path in [folder / "coordinator" / "start.sh", *sorted(folder.glob("sites/*/start.sh"))]:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for old, new in RENAMED.items():
            if old in text:
                raise BadInput(
                    f"'{path}' was written by FedTailor 0.1 and starts {old}, which is {new} now: "
                    "change that there, in the other start.sh likewise, and start them again"
                )
