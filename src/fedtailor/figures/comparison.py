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
    """How the clients' values are spread, one box per method, every client a dot."""
    table = summary["table"]
    picture = empty_figure(1.1 * len(table) + 2, 4.0)
    axes = picture.add_subplot()
    values = [
        _metric(summary).times * np.array([v for v in row["per_client"].values() if v is not None])
        for row in table.values()
    ]
    draw_boxes(axes, values, size=12, alpha=0.6, median=2)
    axes.set_xticks(range(1, len(table) + 1), list(table), rotation=20 if len(table) > 5 else 0)
    axes.set_ylabel(axis_of(_metric(summary), "client"))
    tidy(axes)
    return picture


def comparison_figures(summary: Summary, folder: Path) -> None:
    """All pictures of a comparison, as PNG and SVG."""
    save_figure(_curves(summary), folder, "score", KINDS)
    if others := [method for method in summary["table"] if method != ALONE]:
        save_figure(_gains(summary, others), folder, "gain_per_client", KINDS)
    save_figure(_clients(summary), folder, "clients", KINDS)
