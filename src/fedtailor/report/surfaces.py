"""Loss landscapes and trajectories on the page, of runs where they were measured."""

from __future__ import annotations

from typing import Any

from fedtailor.results.collect import CollectedRuns
from fedtailor.results.measurements import (
    ALL,
    OWN,
    Json,
    models_of,
    read_landscape,
    read_trajectory,
)
from fedtailor.results.pack import evenly

MOST = 41  # points along an axis; odd, so that the middle stays


def _thinned(values: list[Any], rows: list[int], columns: list[int]) -> list[Any]:
    """Some rows and columns of a surface, with as many digits as can be seen."""
    return [
        [None if (v := values[i][j]) is None else float(f"{v:.4g}") for j in columns] for i in rows
    ]


def _surface(found: Json, kept: list[int]) -> Json:
    return {
        "loss": _thinned(found["loss"], kept, kept),
        "accuracy": _thinned(found["accuracy"], kept, kept),
        "sharpness": found["sharpness"],
    }


def landscapes(collection: CollectedRuns) -> list[Json]:
    """What was measured around models, by method (of the first seed's run)."""
    out = []
    for number, contender in enumerate(collection.contenders):
        found = read_landscape(contender.first.folder)
        if found is None:
            continue
        kept = evenly(len(found["axis"]), MOST)
        clients = [
            {
                "client": name,
                "line": told.get("line"),
                **{
                    which: {rows: _surface(told[which][rows], kept) for rows in (OWN, ALL)}
                    for which in models_of(told)
                },
            }
            for name, told in found["clients"].items()
        ]
        axis = [found["axis"][i] for i in kept]
        out.append({"method": number, "axis": axis, "radius": found["radius"], "clients": clients})
    return out


def trajectories(collection: CollectedRuns) -> list[Json]:
    """Ways of clients' models; runs that share a plane share one."""
    out: list[Json] = []
    numbers = {
        run.folder.resolve().name: number
        for number, contender in enumerate(collection.contenders)
        for run in contender.runs
    }
    for contender in collection.contenders:
        found = read_trajectory(contender.first.folder)
        if found is None:
            continue
        columns, rows = evenly(len(found["x"]), MOST), evenly(len(found["y"]), MOST)
        told = {
            "client": found["client"],
            "shares": found["shares"],
            "x": [found["x"][i] for i in columns],
            "y": [found["y"][i] for i in rows],
            "loss": _thinned(found["loss"], rows, columns),
            "runs": [
                {"label": r["label"], "method": numbers.get(r["folder"]), "stops": r["stops"]}
                for r in found["runs"]
            ],
        }
        if told not in out:
            out.append(told)
    return out
