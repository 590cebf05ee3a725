"""What was measured around models of finished runs: files that reports and figures read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import BadInput

LANDSCAPE, TRAJECTORY = "landscape.json", "trajectory.json"
OWN, ALL = "own", "all"  # whose test rows
WORDS = {OWN: "own test rows", ALL: "all clients' test rows"}
PERSONAL, GLOBAL = "personal", "global"
BEFORE, AFTER = "before", "after"  # local training
Json = dict[str, Any]


def models_of(told: Json) -> list[str]:
    """Which models were measured of a client, the global one first."""
    return [which for which in (GLOBAL, PERSONAL) if which in told]


def _is_surface(value: Any, size: int) -> bool:
    return (
        all(
            len(value[kind]) == size and all(len(row) == size for row in value[kind])
            for kind in ("loss", "accuracy")
        )
        and {"centre", "highest", "mean"} <= value["sharpness"].keys()
    )


def read_landscape(folder: Path) -> Json | None:
    """What was measured of a run; None if nothing was.

    Raises:
      BadInput: the file is broken.
    """
    path = folder / LANDSCAPE
    if not path.exists():
        return None
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
        size = len(found["axis"])
        usable = size > 2 and all(
            _is_surface(one[which][rows], size)
            for one in found["clients"].values()
            for which in (PERSONAL, GLOBAL)
            if which in one
            for rows in (OWN, ALL)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise BadInput(f"'{path}' is broken: make it again with fedtailor landscape {folder}")
    return found


def read_trajectory(folder: Path) -> Json | None:
    """What was measured; None if nothing was.

    Raises:
      BadInput: the file is broken.
    """
    path = folder / TRAJECTORY
    if not path.exists():
        return None
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
        width, height = len(found["x"]), len(found["y"])
        usable = len(found["loss"]) == height and all(len(r) == width for r in found["loss"])
        usable &= all(
            {"round", "when", "x", "y", "loss"} <= stop.keys() and stop["when"] in (BEFORE, AFTER)
            for run in found["runs"]
            for stop in run["stops"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise BadInput(f"'{path}' is broken: make it again with fedtailor trajectory {folder}")
    return found
