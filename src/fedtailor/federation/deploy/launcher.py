"""Starts the coordinator's app when a run was submitted to its SuperLink.

python -m fedtailor.federation.deploy.launcher ADDRESS SECRET [AUTHORITY]

The SuperLink could start a process for that itself. That one ends at the first request that fails,
as requests do while the database is busy; the app ends with it, and nobody starts either again.
This one waits and asks again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedtailor.federation.site.executor import LOOK, Executor, serve

log = logging.getLogger("fedtailor.coordinator")

START = 180.0  # seconds that an app may take to be loaded; Flower gives up after a few heartbeats


@dataclass
class _App:
    """A process that was started, and what tells the SuperLink that it will come."""

    process: subprocess.Popen[bytes]
    rest: Callable[[], None]
    until: float


class Launcher(Executor):
    """Starts a process for each run that the SuperLink at `address` has."""

    def __init__(self, address: str, secret: bytes, authority: Path | None = None) -> None:
        super().__init__(address, secret, authority)
        self.loading: list[_App] = []

    def step(self, wait: float = LOOK) -> None:
        """Starts an app, if one is asked for, and lets go of those that ended or run."""
        for app in list(self.loading):
            if app.process.poll() is not None or time.monotonic() > app.until:
                app.rest()
                self.loading.remove(app)
        super().step(wait)

    def take(self, token: str, task_type: str) -> None:
        """Starts the app that `token` is for; it ends with this process."""
        from flwr.supercore.constant import TaskType

        if task_type != TaskType.SERVER_APP:
            log.warning("a task of the kind '%.60s' is not FedTailor's: left alone", task_type)
            return
        trust = ["--root-certificates", str(self.authority)] if self.authority else ["--insecure"]
        command = [
            "flwr-serverapp", "--runtime-api-address", self.address, "--token", token, *trust,
            "--parent-pid", str(os.getpid()),
        ]  # fmt: skip
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.loading.append(_App(process, self.keep_alive(token), time.monotonic() + START))


if __name__ == "__main__":
    serve(Launcher, sys.argv[1:])
