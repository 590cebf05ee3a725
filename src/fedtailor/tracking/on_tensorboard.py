"""TensorBoard: event files under `tensorboard` in the folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.spreadsheet import csv_cells
from fedtailor.tracking.protocol import TrackedRun

CLIENTS = 500  # rows of the table of clients


def check() -> None:
    """Loads what is slow to load before the run begins."""
    importlib.import_module("torch.utils.tensorboard")


def as_table(rows: list[list[str]]) -> str:
    """Rows as a table in Markdown, the first one its head."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


class OnTensorBoard:
    """One run as a folder of event files."""

    def __init__(self, run: TrackedRun, known: str, logged: int) -> None:
        package: Any = importlib.import_module("torch.utils.tensorboard")
        self.id = run.name.replace(":", ".").replace("/", ".")
        place = run.home / "tensorboard" / self.id
        # whatever an interrupted start wrote beyond the last round that is known is not shown
        self._writer = package.SummaryWriter(place, purge_step=logged + 1 if logged else None)
        if not logged:
            rows = [["setting", "value"], *([k, str(v)] for k, v in run.settings.items())]
            self._writer.add_text("config", as_table(rows))

    def log(self, number: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, number: int, values: dict[str, float], clients: Path) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        head, rows = csv_cells(clients.read_bytes().decode())
        self._writer.add_text("clients", as_table([head, *rows[:CLIENTS]]), number)
        self._writer.close()

    def leave(self) -> None:
        self._writer.close()
