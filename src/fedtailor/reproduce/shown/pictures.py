"""Pictures of an experiment, from what its runs kept: the same looks as all of FedTailor's."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedtailor.figures.charts import Curve, draw_boxes, draw_curves, panel_grid
from fedtailor.figures.style import empty_figure, look, save_figure, tidy
from fedtailor.reproduce.declared.measures import measure_of, result_and_history
from fedtailor.reproduce.playing.cells import Cell
from fedtailor.reproduce.playing.plan import ExperimentRuns
from fedtailor.reproduce.playing.play import PlannedRun
from fedtailor.reproduce.shown.outcome import mean_over_seeds
from fedtailor.results.folder import read_history

AT_ONCE = 3  # panels side by side
# in the middle: what stands above a narrow picture is as broad as it
ASIDE: dict[str, Any] = {"loc": "outside right center", "frameon": False, "fontsize": 8}
FinishedCells = list[tuple[Cell, list[PlannedRun]]]


def finished(part: ExperimentRuns) -> FinishedCells:
    """Cells that have at least one finished run, with those runs."""
    found = [(cell, [t for t in tasks if t.finished]) for cell, tasks in part.cells]
    return [(cell, tasks) for cell, tasks in found if tasks]


def _places(part: ExperimentRuns) -> dict[str, int]:
    """Numbers of rows: one looks the same in every panel and whatever else is left out."""
    return {row.name: i for i, row in enumerate(part.experiment.rows)}


def titled(part: ExperimentRuns, more: str = "") -> str:
    """What stands above a picture; it says what is not as in the paper."""
    mark = f" [{part.mark}]" if part.mark else ""
    return f"{part.experiment.key}{more}{mark}"


def headline(picture: Any, text: str, size: int = 10) -> None:
    """Writes above a picture, in as many lines as it takes."""
    letters = int(120 / size * picture.get_figwidth())
    picture.suptitle(fill(text, letters), fontsize=size, parse_math=False)


def _panels(
    part: ExperimentRuns, played: FinishedCells, height: float = 3.0
) -> tuple[Any, Iterator[tuple[Any, FinishedCells]]]:
    """A figure with a panel for each column of the experiment."""
    columns = list(dict.fromkeys(cell.column for cell, _ in played))
    across = min(AT_ONCE, len(columns))
    size = lambda down: (3.6 * across + 1.4, height * down + 0.5)
    picture, grid = panel_grid(len(columns), across, size)
    headline(picture, titled(part))

    def each() -> Iterator[tuple[Any, FinishedCells]]:
        for panel, column in zip(grid, columns, strict=True):
            panel.set_title(column, fontsize=10, parse_math=False)
            yield panel, [(cell, tasks) for cell, tasks in played if cell.column == column]
            tidy(panel)
        handles, labels = [], []
        for panel in grid:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                if label not in labels:
                    handles.append(handle)
                    labels.append(label)
        if labels:
            picture.legend(handles, labels, **ASIDE)

    return picture, each()


def _evaluated(folder: Path, key: str) -> list[tuple[dict[str, Any], float]]:
    """(line of the history, accuracy in per cent) of the rounds that were evaluated."""
    history = read_history(folder)
    if not any(line.get(key) for line in history):
        key = "pre"  # nobody comes later: all are there from the start
    return [(line, 100 * line[key]["mean"]) for line in history if line.get(key)]


def _by_round(part: ExperimentRuns, folder: Path, key: str, across: str, name: str) -> list[str]:
    """Accuracy against something of the history, a line per row."""
    places, played = _places(part), finished(part)
    picture, panels = _panels(part, played)
    x, y = "MB up and down" if across == "sent" else "round", "mean client accuracy (%)"
    for panel, cells in panels:
        lines: list[Curve] = []
        arrivals: set[int] = set()
        for cell, tasks in cells:
            runs = [_evaluated(t.folder, key) for t in tasks]
            all_have = min(map(len, runs))  # patience may have ended some sooner than others
            runs = [run[:all_have] for run in runs]
            if not runs[0]:
                continue
            scale = 1e-6 if across == "sent" else 1
            place = scale * np.mean([[line[across] for line, _ in run] for run in runs], axis=0)
            scores = np.array([[score for _, score in run] for run in runs])
            band = (scores.min(axis=0), scores.max(axis=0)) if len(scores) > 1 else None
            lines.append(Curve(places[cell.row], cell.row, place, scores.mean(axis=0), band))
            if key == "pre_present":
                history = result_and_history(tasks[0].folder)[1]  # somebody may come in any round
                arrivals |= {line["round"] for line in history if "joined" in line}
        draw_curves(panel, lines, x, part.experiment.y or y)
        for number in sorted(arrivals):
            panel.axvline(number, color="#7F7F7F", linewidth=0.9, linestyle=":")
        panel.locator_params(axis="x", integer=across == "round", nbins=6)
    return [save_figure(picture, folder, name)]


def curves_picture(part: ExperimentRuns, folder: Path) -> list[str]:
    """Accuracy by round, a line per row, the range over seeds as a band."""
    return _by_round(part, folder, "pre", "round", "curves")


def sent_picture(part: ExperimentRuns, folder: Path) -> list[str]:
    """Accuracy against what was sent until then."""
    return _by_round(part, folder, "pre", "sent", "bytes")


def join_picture(part: ExperimentRuns, folder: Path) -> list[str]:
    """Accuracy of the clients that are there by round; a line marks those that come later."""
    return _by_round(part, folder, "pre_present", "round", "join")


def sweep_picture(part: ExperimentRuns, folder: Path) -> list[str]:
    """The metric by what is varied; the paper's values, where it prints them, as hollow marks."""
    played = finished(part)
    picture = empty_figure(6.0, 3.8)
    axes = picture.add_subplot()
    for row, number in _places(part).items():
        points = []
        for cell, tasks in played:
            if cell.row != row or cell.x is None:
                continue
            measure = measure_of(cell.metric)
            found = [measure.read(*result_and_history(t.folder)) for t in tasks]
            values = [v for v in found if v and isfinite(v.main)]
            if values:
                ours = mean_over_seeds(values)  # as in the table
                points.append((cell.x, ours["mean"], ours["std"] or 0.0, cell.published))
        points.sort(key=lambda point: point[0])
        if not points:
            continue
        x, mean, std, published = zip(*points, strict=True)
        drawn = look(number)
        axes.errorbar(x, mean, yerr=std, label=row, marker="o", markersize=4, **drawn)
        known = [(a, p.mean) for a, p in zip(x, published, strict=True) if p and isfinite(p.mean)]
        if known:
            at, value = zip(*known, strict=True)
            ring = {"facecolors": "none", "edgecolors": drawn["color"], "marker": "s"}
            axes.scatter(at, value, s=36, zorder=3, **ring)
    axes.set_xlabel(part.experiment.x, parse_math=False)
    axes.set_ylabel(
        part.experiment.y or measure_of(part.experiment.metric).meaning, parse_math=False
    )
    headline(picture, titled(part))
    tidy(axes)
    picture.legend(**ASIDE)
    return [save_figure(picture, folder, "sweep")]


def spread_picture(part: ExperimentRuns, folder: Path) -> list[str]:
    """How the clients' accuracies are spread: a box per row, every client a dot."""
    picture, panels = _panels(part, finished(part), 3.6)
    for panel, cells in panels:
        values = []
        for _, tasks in cells:
            each = [list(result_and_history(t.folder)[0]["per_client"].values()) for t in tasks]
            mean = 100 * np.array(each, dtype=float).mean(axis=0)
            values.append(mean[np.isfinite(mean)])
        draw_boxes(panel, values)
        names = [cell.row for cell, _ in cells]
        panel.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right", fontsize=8)
        panel.set_ylabel(part.experiment.y or "client accuracy (%)")
    return [save_figure(picture, folder, "spread")]
