"""Weights & Biases: as WANDB_MODE says; offline, its files lie under `wandb` in the folder."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.spreadsheet import csv_cells
from fedtailor.tracking.protocol import TrackedRun

PROJECT = "fedtailor"
UNSEEN = ("offline", "dryrun", "disabled")


def check() -> None:
    """Says at once, not after the first round, that nobody is logged in; starts what is slow."""
    package: Any = importlib.import_module("wandb")
    if os.environ.get("WANDB_MODE") not in UNSEEN and not package.api.api_key:
        raise BadInput(
            "--track wandb: nobody is logged in: say wandb login first, or set WANDB_MODE=offline"
        )
    package.setup()


class OnWandb:
    """One run of a project, in a group named after its folder."""

    def __init__(self, run: TrackedRun, known: str, logged: int) -> None:
        self._package: Any = importlib.import_module("wandb")
        self._run = self._package.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.name,
            group=run.home.resolve().name,
            dir=str(run.home),
            config=run.settings,
            id=known or None,
            resume="allow",
            settings=self._package.Settings(silent=True),
        )
        self.id = str(self._run.id)

    def log(self, number: int, values: dict[str, float]) -> None:
        self._run.log(values, step=number)

    def end(self, number: int, values: dict[str, float], clients: Path) -> None:
        for name, value in values.items():
            self._run.summary[name] = value
        head, rows = csv_cells(clients.read_bytes().decode())
        self._run.log({"clients": self._package.Table(columns=head, data=rows)}, step=number)
        self._run.finish()

    def leave(self) -> None:
        self._run.finish(exit_code=1)
