"""Pictures that a comparison leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.inputs.plain_text import counted
from fedtailor.figures.charts import (
    Curve,
    draw_boxes,
    draw_curves,
    draw_gains,
    panel_grid,
    whole_rounds,
)
from fedtailor.figures.style import empty_figure, save_figure, tidy
from fedtailor.results.folder import ALONE
from fedtailor.results.metrics.named import METRICS, Metric
from fedtailor.results.numbers import axis_of
from fedtailor.results.verdict import wording_of

KINDS = ("png", "svg")
NAMES = 18  # of methods, one below the other
BOXES = 12  # of methods, side by side; more stand in several rows
Summary = dict[str, Any]


def _metric(summary: Summary) -> Metric:
    return METRICS[summary["metric"]]


def _curves(summary: Summary) -> Any:
    """The metric, mean over clients, by round, with the range over seeds as a band."""
    # methods stand at the right, in so many columns that all are seen
    columns = -(-len(summary["table"]) // NAMES)
    picture = empty_figure(7.5 + 1.6 * (columns - 1), 4.2)
    axes = picture.add_subplot()
    lines = []
    for number, (method, row) in enumerate(summary["table"].items()):
        mean, low, high = (
            [_metric(summary).times * p[k] for p in row["curve"]] for k in ("mean", "low", "high")
        )
        band = (low, high) if len(summary["seeds"]) > 1 else None
        lines.append(Curve(number, method, [p["round"] for p in row["curve"]], mean, band))
    draw_curves(axes, lines, "round", axis_of(_metric(summary), "mean client"))
    settings = summary["settings"]
    axes.set_title(
        f"{settings['data']}, {counted(settings['clients'], 'client')}, {settings['partition']}, "
        f"{settings['model']}",
        fontsize=11,
        parse_math=False,  # a path may hold what looks like a formula
    )
    whole_rounds(axes)
    picture.legend(loc="outside right upper", frameon=False, ncols=columns)
    return picture


def _gains(summary: Summary, others: list[str]) -> Any:
    """Each client's gain over training alone, sorted, one panel per method."""
    columns, metric = min(3, len(others)), _metric(summary)
    size = lambda down: (3.4 * columns, 2.5 * down + 0.5)
    picture, panels = panel_grid(len(others), columns, size, sharey=True)
    for number, (panel, method) in enumerate(zip(panels, others, strict=True)):
        row = summary["table"][method]
        found = _metric(summary).times * np.sort(np.array(list(row["gain"].values())))[::-1]
        told = f"{method}: {row['better_off']} better, {row['worse_off']} worse"
        draw_gains(panel, found, told, fontsize=10, parse_math=False)
        panel.set_xlabel(f"{counted(len(found), 'client')}, best first", fontsize=9)
        if number % columns == 0:
            unit = "points" if metric.percent else wording_of(metric).metric
            panel.set_ylabel(f"gain over alone ({unit})", fontsize=9)
    return picture


def _clients(summary: Summary) -> Any:
    """How the clients' values are spread, a box per method in rows, every client a dot."""
    metric, table = _metric(summary), summary["table"]
    names = list(table)
    wide = -(-len(names) // -(-len(names) // BOXES))  # about as many in every row
    size = lambda down: (1.1 * wide + 2, 4.0 if down == 1 else 3.2 * down)
    picture, panels = panel_grid(-(-len(names) // wide), 1, size, sharey=True)
    for number, panel in enumerate(panels):
        some = names[number * wide :][:wide]
        values = [
            metric.times * np.array([v for v in table[k]["per_client"].values() if v is not None])
            for k in some
        ]
        draw_boxes(panel, values, size=12, alpha=0.6, median=2)
        turned = 20 if len(names) > 5 else 0
        panel.set_xticks(range(1, len(some) + 1), some, rotation=turned, parse_math=False)
        panel.set_xlim(0.5, wide + 0.5)
        panel.set_ylabel(axis_of(metric, "client"))
        tidy(panel)
    return picture


def comparison_figures(summary: Summary, folder: Path) -> None:
    """All pictures of a comparison, as PNG and SVG."""
    save_figure(_curves(summary), folder, "score", KINDS)
    if others := [method for method in summary["table"] if method != ALONE]:
        save_figure(_gains(summary, others), folder, "gain_per_client", KINDS)
    save_figure(_clients(summary), folder, "clients", KINDS)
