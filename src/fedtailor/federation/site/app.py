"""The one Flower app for every method: it hands messages on, and knows no method.

Flower starts a new process for every message to a site. This module is all that such a process
loads of us: no torch, no data. The work is done by the site's own process, which stays warm.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedtailor.core.errors import BadInput
from fedtailor.core.version import __version__
from fedtailor.federation.protocol.ipc import ask_site
from fedtailor.federation.protocol.packet import PROTOCOL, Packet, from_records, refusal, to_records

SITE, FEDERATION = "site", "federation"  # in a node's config, and in a run's

Answerer = Callable[[Path, Packet], Packet]  # (the site's file, its message) -> its answer


def _file(config: object, key: str) -> Path:
    if not isinstance(config, str) or not config:
        raise BadInput(f"{key} is {config!r}: give the path of its TOML file")
    return Path(config)


def make_client_app(answer: Answerer = ask_site) -> ClientApp:
    """A ClientApp whose node's config names the site's file.

    Args:
      answer: does the work; by default the site's own warm process.
    """
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        try:
            path = _file(context.node_config.get(SITE), f"node config '{SITE}'")
            reply = answer(path, from_records(message.content))
        except BadInput as error:
            reply = refusal("site", str(error), protocol=PROTOCOL, version=__version__)
        return Message(to_records(reply), reply_to=message)

    app.query()(handle)
    app.train()(handle)
    app.evaluate()(handle)
    return app


def make_server_app() -> ServerApp:
    """A ServerApp whose run's config names the coordinator's file."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # late: the sites' processes load this module too, and must stay light
        from fedtailor.federation.coordinator.serve import serve

        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
        config = context.run_config
        serve(
            grid,
            _file(config.get(FEDERATION), f"run config '{FEDERATION}'"),
            str(context.run_id),
            int(config.get("min-sites", 0)),
            float(config.get("deadline", 0.0)),
        )

    return app


client_app = make_client_app()
server_app = make_server_app()
