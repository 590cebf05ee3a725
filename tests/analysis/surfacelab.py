"""Small runs whose losses are looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fedtailor

SMALL: dict[str, Any] = {
    "model": "mlp-2", "clients": 4, "rounds": 3, "batch": 50, "lr": 0.1, "device": "cpu",
}  # fmt: skip


def play(folder: Path, method: str = "plgu-lf", **settings: Any) -> Path:
    """A finished run."""
    # ALA's first adaptation may take a hundred passes, which nothing here is about
    options = {"max_ala_epochs": 2} if method == "fedala" else {}
    fedtailor.run(method, out=folder, options=options, **SMALL | settings)
    return folder


def _bowl(axis: list[float], steepness: float) -> dict[str, Any]:
    loss = [[0.2 + steepness * (a * a + b * b) for b in axis] for a in axis]
    loss[0][0] = None  # type: ignore[call-overload]  # where it is not finite
    accuracy = [[1 / (1 + steepness * (a * a + b * b)) for b in axis] for a in axis]
    sharpness = {"centre": 0.2, "highest": 0.25 * steepness, "mean": 0.1 * steepness}
    return {"loss": loss, "accuracy": accuracy, "sharpness": sharpness}


def fake_landscape(folder: Path, clients: list[str], *, general: bool = True) -> None:
    """A run's landscape that nobody measured: bowls, the personal model's steeper."""
    axis = [-1 + k / 4 for k in range(9)]
    t = [-0.5 + k / 4 for k in range(9)]
    line = {"loss": [1 + v * v for v in t], "accuracy": [0.5 for _ in t]}
    models = {"personal": 3.0} | ({"global": 1.0} if general else {})
    one: dict[str, Any] = {
        which: {rows: _bowl(axis, k) for rows in ("own", "all")} for which, k in models.items()
    }
    if general:
        one["line"] = {"t": t, "own": line, "all": line}
    told = {"axis": axis, "radius": 0.5, "clients": dict.fromkeys(clients, one)}
    (folder / "landscape.json").write_text(json.dumps(told))


def fake_trajectory(folders: list[Path], labels: list[str], client: str) -> None:
    """Ways that nobody went, on one plane, in the folder of each run."""
    axis = [float(k) for k in range(7)]
    runs = [
        {
            "label": label,
            "folder": folder.resolve().name,
            "stops": [
                {"round": r, "when": when, "x": r + aside, "y": 1.0 + k + aside, "loss": 2.0 / r}
                for r in (1, 2, 3)
                for when, aside in (("before", 0.0), ("after", 0.5))
            ],
        }
        for k, (folder, label) in enumerate(zip(folders, labels, strict=True))
    ]
    loss = [[0.3 + 0.1 * abs(a - 3) + 0.05 * b for b in axis] for a in axis]
    told = {
        "client": client,
        "x": axis,
        "y": axis,
        "shares": [0.6, 0.3],
        "loss": loss,
        "runs": runs,
    }
    for folder in folders:
        (folder / "trajectory.json").write_text(json.dumps(told))
