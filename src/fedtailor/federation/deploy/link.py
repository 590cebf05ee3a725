"""A coordinator's SuperLink as its owner talks to it: through Flower's own command."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.federation.coordinator.owners import REGISTERED
from fedtailor.federation.protocol.certificates import tls_trouble
from fedtailor.federation.site.node import environment

NAME = "fedtailor"  # of the connection in Flower's configuration
SECONDS = 120.0  # that a command of Flower's may take
APP = f"""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedtailor-app"
version = "{__version__}"
description = "FedTailor's app for every method: the work is done by the installed package."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedtailor"

[tool.flwr.app.components]
serverapp = "fedtailor_coordinator:server_app"
clientapp = "fedtailor_site:client_app"

[tool.flwr.app.config]
federation = ""
min-sites = 0
deadline = 0.0
survey = false
"""
SHIM = '''\
"""FedTailor's app: everything else is in the installed package."""

from fedtailor.federation.{side}.app import {name}

__all__ = ["{name}"]
'''


def write_app(folder: Path) -> Path:
    """The folder that `flwr run` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(APP, encoding="utf-8")
    for side, name in (("coordinator", "server_app"), ("site", "client_app")):
        text = SHIM.format(side=side, name=name)
        (folder / f"fedtailor_{side}.py").write_text(text, encoding="utf-8")
    return folder


class Link:
    """A SuperLink and how to reach it.

    Args:
      home: Flower's folder for this connection.
      address: of the SuperLink, `HOST:PORT` or `[IPv6]:PORT`.
      authority: certificate that its own is checked against; None: without TLS.
    """

    def __init__(self, home: Path, address: str, authority: Path | None) -> None:
        self.home, self.address, self.authority = home, address, authority
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true"
        if authority:
            trust = f"root-certificates = {json.dumps(str(authority))}"
        text = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        text += f'address = "{address}"\n{trust}\n'
        (home / "config.toml").write_text(text, encoding="utf-8")

    def listens(self) -> bool:
        """Whether somebody answers at the address."""
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
                return True
        except OSError:
            return False

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Calls Flower's command; returns what it says as JSON, unless it says that it failed."""
        command, env = ["flwr", *arguments, "--format", "json"], environment(self.home)
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, timeout=SECONDS, cwd=self.home, check=False
            )
        except FileNotFoundError:
            raise BadInput("Flower is not installed: pip install 'fedtailor[flower]'") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadInput(f"flwr {' '.join(arguments[:2])}: {error}") from None
        text = done.stdout.decode(errors="replace")
        try:
            found: dict[str, Any] = parse_json(text[text.index("{") :])
        except ValueError:
            found = {"success": False}
        if done.returncode or not found.get("success", True):
            if self.authority and (why := tls_trouble(self.address, self.authority)):
                raise BadInput(why)
            shown = " ".join((text + done.stderr.decode(errors="replace")).split())[-400:]
            raise BadInput(f"flwr {' '.join(arguments[:2])} failed: {shown}")
        return found

    def register(self, public: Path, name: str) -> bool:
        """Lets the SuperLink know a site's public key; False where it knew it already.

        The mark lies beside the SuperLink's database: whoever removes that must register anew.
        """
        marks = self.home / REGISTERED
        marks.mkdir(exist_ok=True)
        mark = marks / hashlib.sha256(public.read_bytes()).hexdigest()[:24]
        if mark.exists():
            return False
        node = ""
        try:
            said = self.flwr("supernode", "register", str(public.resolve()), NAME, "--name", name)
            node = str(said.get("node-id", ""))
        except BadInput as error:
            if "already" not in str(error):  # known since before the mark could be made
                raise
        mark.write_text(json.dumps({"name": name, "node": node}), encoding="utf-8")
        return True

    def submit(
        self,
        federation_file: Path,
        *,
        min_sites: int = 0,
        deadline: float = 0.0,
        survey: bool = False,
    ) -> str:
        """Starts a run of the federation, or asks its sites for their columns; returns its id.

        0: as the federation's file says.
        """
        path = federation_file.resolve()
        if '"' in str(path) or "\\" in str(path):
            raise BadInput(f"federation file '{path}': Flower takes no quotes in a path: move it")
        app = write_app(self.home / "app")
        config = f'federation="{path}" min-sites={int(min_sites)} deadline={float(deadline)}'
        config += f" survey={str(survey).lower()}"
        return str(self.flwr("run", str(app), NAME, "--run-config", config)["run-id"])

    def status(self, run: str) -> str:
        """What Flower says of a run, e.g. `running` or `finished:completed`."""
        found = self.flwr("list", "--run-id", run, NAME)
        return str(found["runs"][0]["status"])

    def connected(self) -> dict[str, bool]:
        """Whether each registered site is connected, by its name."""
        listed = self.flwr("supernode", "list", NAME).get("nodes", [])
        status = {str(node["node-id"]): node["status"] == "online" for node in listed}
        marks = [parse_json(path.read_text()) for path in (self.home / REGISTERED).glob("*")]
        found: dict[str, bool] = {}
        for mark in marks:  # a site whose key was changed has two
            found[mark["name"]] = found.get(mark["name"], False) or status.get(mark["node"], False)
        return found
