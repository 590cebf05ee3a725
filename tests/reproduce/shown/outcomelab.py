"""Outcomes made up for tests of how results are shown: nothing here was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.shown.outcome import taus

SEED = {"seed": 0, "main": 93.2}


def a_cell(row: str = "FedAvg", column: str = "MNIST", **changed: Any) -> dict[str, Any]:
    """A finished cell of three seeds, slightly above the paper's."""
    paper = {"text": "93.00±0.10", "mean": 93.0, "std": 0.1, "low": None, "high": None}
    return {
        "row": row, "column": column, "x": None, "method": "fedavg", "metric": "last",
        "unit": "%", "status": "done", "reason": "", "mean": 93.2, "std": 0.05, "low": None,
        "high": None, "text": "93.20±0.05", "seeds": 3 * [SEED], "paper": paper,
        "difference": 0.2, "outside": True,
    } | changed  # fmt: skip


def half(row: str = "FedAvg", column: str = "MNIST", **changed: Any) -> dict[str, Any]:
    """A cell of which one seed is finished."""
    some = {"status": "not finished", "reason": "stopped", "std": None, "text": "93.20"}
    return a_cell(row, column, **some | {"seeds": [SEED], "outside": None} | changed)


def an_outcome(cells: Sequence[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """An experiment that came to these cells, of three seeds each."""
    columns = list(dict.fromkeys(c["column"] for c in cells))
    rows = list(dict.fromkeys(c["row"] for c in cells))
    ranks = changed.get("ranks", "rows")
    found = taus(cells, rows if ranks == "columns" else columns, ranks)
    return {
        "version": "0", "command": "fedtailor reproduce a/b", "experiment": "a/b", "title": "A",
        "paper": {"name": "P", "venue": "V"}, "scale": "", "seeds": 3, "tau": found,
        "ranks": ranks, "columns": columns, "rows": rows,
        "cells": list(cells), "meaning": "accuracy", "undrawn": "", "folder": "f",
    } | changed  # fmt: skip


def as_printed(experiment: Experiment) -> dict[str, Any]:
    """An outcome of the shape of a real experiment, every cell as long as it may get."""
    cells = []
    for row in experiment.rows:
        for column, published in zip(experiment.columns, row.published or (), strict=False):
            paper = published._asdict() if published else None
            groups = {"low": 88.88, "high": 88.88} if published and published.low else {}
            cells.append(a_cell(row.name, column.name, paper=paper, **groups))
    named = {"name": experiment.paper.name, "venue": experiment.paper.venue}
    return an_outcome(cells, title=experiment.title, paper=named, experiment=experiment.key)
