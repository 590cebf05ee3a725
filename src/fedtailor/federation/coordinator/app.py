"""Flower's app at the coordinator, one for every method."""

from __future__ import annotations

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtailor.federation.coordinator.serve import serve
from fedtailor.federation.protocol.packet import named_file

FEDERATION = "federation"  # in a run's config

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Plays the federation whose file the run's config names."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    config = context.run_config
    serve(
        grid,
        named_file(config.get(FEDERATION), f"run config '{FEDERATION}'"),
        str(context.run_id),
        int(config.get("min-sites", 0)),
        float(config.get("deadline", 0.0)),
    )
