"""Loss surfaces of an experiment's runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor.figures.draw import KINDS, draw_figure
from fedtailor.reproduce.playing.plan import ExperimentRuns
from fedtailor.reproduce.playing.play import PlannedRun
from fedtailor.reproduce.shown.pictures import finished, titled

if TYPE_CHECKING:
    from fedtailor.analysis.landscape import Tell

PICTURE = "landscape"


def _columns(part: ExperimentRuns) -> Iterator[tuple[str, list[PlannedRun]]]:
    """The first seed of every cell, a column at a time."""
    for column in dict.fromkeys(cell.column for cell, _ in finished(part)):
        yield column, [tasks[0] for cell, tasks in finished(part) if cell.column == column]


def measure_landscapes(part: ExperimentRuns, tell: Tell) -> None:
    """Measures the runs that have not been measured: they must have kept their models."""
    from fedtailor.analysis.landscape import write_landscapes
    from fedtailor.results.measurements import read_landscape

    for _, tasks in _columns(part):
        left = [task.folder for task in tasks if read_landscape(task.folder) is None]
        if left:
            write_landscapes(left, device=tasks[0].config.device, tell=tell)


def draw_landscapes(part: ExperimentRuns, folder: Path) -> list[str]:
    """Draws what was measured, a column of the experiment at a time."""
    out = []
    for number, (column, tasks) in enumerate(_columns(part)):
        places = [task.folder for task in tasks]
        for kind in KINDS:
            path = folder / f"{PICTURE}-{number}.{kind}"
            draw_figure(PICTURE, places, out=path, kind=kind, title=titled(part, f": {column}"))
        out.append(f"{PICTURE}-{number}.png")
    return out
