"""Writes what an experiment came to: JSON, CSV, LaTeX, pictures and pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.analysis.landscape import Tell
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.figures import PAPER
from fedtailor.report import write_report
from fedtailor.reproduce.playing.plan import ExperimentRuns
from fedtailor.reproduce.shown import pictures
from fedtailor.reproduce.shown.landscapes import draw_landscapes, measure_landscapes
from fedtailor.reproduce.shown.latex import as_latex
from fedtailor.reproduce.shown.matrices import draw_matrices
from fedtailor.reproduce.shown.outcome import outcome
from fedtailor.reproduce.shown.page import experiment_page
from fedtailor.reproduce.shown.writing import as_csv
from fedtailor.results.folder import file_name, written_to

DRAW: dict[str, Callable[[ExperimentRuns, Path], list[str]]] = {
    "table": lambda part, folder: [],
    "curves": pictures.curves_picture,
    "sweep": pictures.sweep_picture,
    "spread": pictures.spread_picture,
    "bytes": pictures.sent_picture,
    "join": pictures.join_picture,
    "matrix": draw_matrices,
    "landscape": draw_landscapes,
}


def _draw(part: ExperimentRuns, folder: Path, tell: Tell) -> tuple[list[str], str]:
    """(pictures, why there are none)."""
    if not pictures.finished(part):
        return [], "no run is finished" if part.experiment.shows != "table" else ""
    from matplotlib import rc_context

    try:
        if part.experiment.shows == "landscape":
            measure_landscapes(part, tell)
        with rc_context(PAPER):
            found = DRAW[part.experiment.shows](part, folder)
    except BadInput as error:
        return [], str(error)
    if not found and part.experiment.shows != "table":
        return [], "the runs kept nothing of the kind"
    return found, ""


def _reports(part: ExperimentRuns, folder: Path) -> dict[str, str]:
    """Pages about the runs of each column, where these have the same clients."""
    found = {}
    for column in dict.fromkeys(cell.column for cell, _ in part.cells):
        runs = [
            t.folder for c, tasks in pictures.finished(part) if c.column == column for t in tasks
        ]
        name = f"report-{file_name(column)}.html"
        try:
            if runs:
                write_report(runs, folder / name)
                found[column] = name
        except BadInput:
            continue  # rows of other clients cannot be put on one page
    return found


def write_experiment(
    part: ExperimentRuns,
    folder: Path,
    failed: dict[str, str],
    command: str,
    tell: Tell = lambda *told: None,
) -> dict[str, Any]:
    """Writes everything about an experiment and returns what `table.json` holds."""
    with written_to(folder):
        found = outcome(part, failed, command)
        drawn, why = _draw(part, folder, tell)
        found |= {"pictures": drawn, "undrawn": why, "folder": str(folder)}
        write_json(folder / "table.json", found)
        write_atomically(folder / "table.csv", as_csv(found))
        write_atomically(folder / "table.tex", as_latex(found))
        page = experiment_page(found, folder, _reports(part, folder))
        write_atomically(folder / "index.html", page)
    return found
