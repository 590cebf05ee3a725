"""A coordinator and sites as real processes, for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from fedtailor.federation.deploy.keys import Certificates, make_certificates, make_node_key
from fedtailor.federation.deploy.link import Link
from fedtailor.federation.deploy.processes import (
    ProcessGroup,
    free_port,
    superlink_command,
)
from fedtailor.federation.site.node import environment


class Crew(ProcessGroup):
    """A coordinator and sites as processes of this machine.

    Args:
      folder: for keys, logs and Flower's files.
      insecure: without TLS and node authentication; for trials only.
      host: address that the coordinator listens at.
    """

    def __init__(self, folder: Path, *, insecure: bool = False, host: str = "127.0.0.1") -> None:
        super().__init__(folder.resolve())
        self.folder, self.insecure, self.host = folder.resolve(), insecure, host
        self.port = free_port()
        self.certificates: Certificates | None = None
        if not insecure:
            hosts = list(dict.fromkeys([host, "127.0.0.1", "localhost"]))
            self.certificates = make_certificates(self.folder / "certificates", hosts)
        authority = self.certificates.authority if self.certificates else None
        self.link = Link(self._home("coordinator"), self.address, authority)

    # --- what processes need ---

    @property
    def address(self) -> str:
        """Where sites find the coordinator."""
        return f"{self.host}:{self.port}"

    def _home(self, name: str) -> Path:
        home = self.folder / "flower" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _start(
        self, name: str, home: str, command: list[str], **more: Any
    ) -> subprocess.Popen[bytes]:
        env = environment(self._home(home)) | more
        return self.start(name, command, env, self.folder)

    # --- starting ---

    def start_coordinator(self) -> None:
        """Starts the SuperLink and waits until it listens."""
        command = superlink_command(
            self.certificates, self.host, self.port, self._home("coordinator") / "state.db"
        )
        self._start("coordinator", "coordinator", command)
        self.wait_until(self.link.listens, "coordinator", "listen")

    def register(self, name: str) -> Path:
        """Makes a site's key, if it has none, and lets the coordinator know it."""
        key = self.folder / "keys" / name
        if not key.exists():
            make_node_key(key)
        self.link.register(key.with_name(key.name + ".pub"), name)
        return key

    def start_site(self, name: str, site_file: Path, **more: Any) -> subprocess.Popen[bytes]:
        """Starts a SuperNode whose configuration names a site's file.

        Args:
          name: of the site.
          site_file: its settings.
          **more: variables for its environment.
        """
        site_file = site_file.resolve()
        trust = ["--insecure"]
        if self.certificates:
            trust = [
                "--root-certificates", str(self.certificates.authority),
                "--auth-supernode-private-key", str(self.register(name)),
            ]  # fmt: skip
        self.site_files.add(site_file)
        where = ["--superlink", self.address, "--host", "127.0.0.1", "--port", str(free_port())]
        node = [sys.executable, "-m", "fedtailor.federation.site.node", str(site_file)]
        return self._start(name, name, [*node, *trust, *where], **more)

    def submit(self, federation_file: Path, **more: Any) -> str:
        """Starts a run of the federation; returns its id."""
        return self.link.submit(federation_file, **more)

    def status(self, run: str) -> str:
        """What Flower says of a run, e.g. `running` or `finished:completed`."""
        return self.link.status(run)
