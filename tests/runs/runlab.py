"""Small runs, and what their folders hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

SMALL: dict[str, Any] = {"model": "mlp", "clients": 4, "rounds": 3, "batch": 200, "lr": 0.1}
# ALA's first adaptation may take a hundred passes, which tests of runs are not about
ALA: dict[str, Any] = SMALL | {"options": {"max_ala_epochs": 2}}
# what two equal runs may differ in
TIMES = ("seconds", "train_seconds", "peak_memory_bytes", "seconds_by_phase")


def models(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "models").iterdir())}


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if k not in TIMES}


def table(path: Path, sizes: dict[str, int], huge: str = "", seed: int = 0) -> Path:
    """A csv with a client column; two classes that two features tell apart."""
    draw = np.random.default_rng(seed)
    rows = ["client,a,b,label"]
    for client, size in sizes.items():
        for i in range(size):
            a, b = (draw.normal(size=2) + 2 * (i % 2)) * (1e30 if client == huge else 1)
            rows.append(f"{client},{a:.5g},{b:.5g},{('no', 'yes')[i % 2]}")
    path.write_text("\n".join(rows) + "\n")
    return path


# with a table that has a huge client: all learn, and at 0.05 the huge one's own model diverges in
# the last fine-tuning, so that it has no log loss
LOST: dict[str, Any] = {
    "model": "linear", "client_column": "client", "label": "label", "normalise": "none",
    "rounds": 2, "on_nan": "skip", "finetune": 2, "metric": "log-loss",
}  # fmt: skip


HOLD = """
import sys
from pathlib import Path
from fedtailor.results.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a run's folder until its standard input is closed."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
