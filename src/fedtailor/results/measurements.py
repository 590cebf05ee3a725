"""What was measured around models of finished runs: files that reports and figures read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.results.folder import LANDSCAPE, TRAJECTORY

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


def _holds_landscape(found: Json) -> bool:
    size = len(found["axis"])
    return size > 2 and all(
        _is_surface(one[which][rows], size)
        for one in found["clients"].values()
        for which in (PERSONAL, GLOBAL)
        if which in one
        for rows in (OWN, ALL)
    )


def _holds_trajectory(found: Json) -> bool:
    width, height = len(found["x"]), len(found["y"])
    stops = [stop for run in found["runs"] for stop in run["stops"]]
    return (
        len(found["loss"]) == height
        and all(len(row) == width for row in found["loss"])
        and all({"round", "when", "x", "y", "loss"} <= stop.keys() for stop in stops)
        and all(stop["when"] in (BEFORE, AFTER) for stop in stops)
    )


def read_landscape(folder: Path) -> Json | None:
    """What `fedtailor landscape` measured of a run; None if nothing was.

    Raises:
      BadInput: the file is broken.
    """
    return _read(folder / LANDSCAPE, _holds_landscape)


def read_trajectory(folder: Path) -> Json | None:
    """What `fedtailor trajectory` measured; None if nothing was.

    Raises:
      BadInput: the file is broken.
    """
    return _read(folder / TRAJECTORY, _holds_trajectory)


def _read(path: Path, usable: Callable[[Json], bool]) -> Json | None:
    if not path.exists():
        return None
    try:
        found: Json = parse_json(path.read_text(encoding="utf-8"))
        whole = usable(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        command = f"fedtailor {path.stem} {path.parent}"
        raise BadInput(f"'{path}' is broken: make it again with {command}")
    return found
