"""Somebody with the public ca.crt and an app of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from fedtailor.federation.site.node import environment

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "{publisher}"
[tool.flwr.app.components]
serverapp = "foreign:server_app"
clientapp = "foreign:client_app"
[tool.flwr.app.config]
"""
CODE = """\
from pathlib import Path
Path({loot!r}).joinpath("imported").write_text("here", encoding="utf-8")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client_app = ClientApp()
server_app = ServerApp()

@client_app.query()
def steal(message, context):
    site = Path(str(context.node_config["site"]))
    Path({loot!r}).joinpath("ran-at-site").write_text(site.read_text())
    return Message(RecordDict({{"c": ConfigRecord({{"s": site.read_text()}})}}), reply_to=message)

@server_app.main()
def main(grid, context):
    import time
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    empty = RecordDict({{"c": ConfigRecord({{"s": ""}})}})
    sent = [Message(empty, dst_node_id=n, message_type="query", ttl=60) for n in nodes]
    for reply in grid.send_and_receive(sent, timeout=60):
        said = reply.error.reason if reply.has_error() else reply.content
        Path({loot!r}).joinpath("reply").write_text(str(said))
"""


def foreign_app(folder: Path, loot: Path, name: str = "evil", publisher: str = "stranger") -> Path:
    """An app that takes a site's file away and says in LOOT how far it came."""
    for path in (folder, loot):
        path.mkdir(parents=True, exist_ok=True)
    text = APP.format(name=name, publisher=publisher)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    (folder / "foreign.py").write_text(CODE.format(loot=str(loot)), encoding="utf-8")
    return folder


def flwr_run(
    home: Path, address: str, authority: Path | None, app: Path, *before: str
) -> subprocess.CompletedProcess[str]:
    """`flwr run` as a stranger types it; `before`: a command that it runs in."""
    home.mkdir(parents=True, exist_ok=True)
    trust = f"root-certificates = {json.dumps(str(authority))}" if authority else "insecure = true"
    (home / "config.toml").write_text(f'[superlink.x]\naddress = "{address}"\n{trust}\n')
    flwr = [sys.executable, "-c", "from flwr.cli.app import app; app()"]
    command = [*before, *flwr, "run", str(app), "x", "--format", "json"]
    return subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )
