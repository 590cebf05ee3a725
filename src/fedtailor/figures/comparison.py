"""Pictures that a comparison leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.figures.charts import Curve, draw_boxes, draw_curves, draw_gains, panel_grid
from fedtailor.figures.style import empty_figure, save_figure, tidy
from fedtailor.results.folder import ALONE

KINDS = ("png", "svg")
Summary = dict[str, Any]


def _curves(summary: Summary) -> Any:
    """Mean client accuracy by round, with the range over seeds as a band."""
    picture = empty_figure(7.5, 4.2)
    axes = picture.add_subplot()
    lines = []
    for number, (method, row) in enumerate(summary["table"].items()):
        mean, low, high = ([100 * p[k] for p in row["curve"]] for k in ("mean", "low", "high"))
        band = (low, high) if len(summary["seeds"]) > 1 else None
        lines.append(Curve(number, method, [p["round"] for p in row["curve"]], mean, band))
    draw_curves(axes, lines, "round", "mean client accuracy (%)")
    settings = summary["settings"]
    axes.set_title(
        f"{settings['data']}, {settings['clients']} clients, {settings['partition']}, "
        f"{settings['model']}",
        fontsize=11,
        parse_math=False,  # a path may hold what looks like a formula
    )
    picture.legend(loc="outside right upper", frameon=False)
    return picture


def _gains(summary: Summary, others: list[str]) -> Any:
    """Each client's gain over training alone, sorted, one panel per method."""
    columns = min(3, len(others))
    size = lambda down: (3.4 * columns, 2.5 * down + 0.5)
    picture, panels = panel_grid(len(others), columns, size, sharey=True)
    for number, (panel, method) in enumerate(zip(panels, others, strict=True)):
        row = summary["table"][method]
        found = 100 * np.sort(np.array(list(row["gain"].values())))[::-1]
        told = f"{method}: {row['better_off']} better, {row['worse_off']} worse"
        draw_gains(panel, found, told, fontsize=10, parse_math=False)
        panel.set_xlabel(f"{len(found)} clients, best first", fontsize=9)
        if number % columns == 0:
            panel.set_ylabel("gain over alone (points)", fontsize=9)
    return picture


def _clients(summary: Summary) -> Any:
    """How the clients' accuracies are spread, one box per method, every client a dot."""
    table = summary["table"]
    picture = empty_figure(1.1 * len(table) + 2, 4.0)
    axes = picture.add_subplot()
    values = [
        100 * np.array([v for v in row["per_client"].values() if v is not None])
        for row in table.values()
    ]
    draw_boxes(axes, values, size=12, alpha=0.6, median=2)
    axes.set_xticks(range(1, len(table) + 1), list(table), rotation=20 if len(table) > 5 else 0)
    axes.set_ylabel("client accuracy (%)")
    tidy(axes)
    return picture


def comparison_figures(summary: Summary, folder: Path) -> None:
    """All pictures of a comparison, as PNG and SVG."""
    save_figure(_curves(summary), folder, "accuracy", KINDS)
    if others := [method for method in summary["table"] if method != ALONE]:
        save_figure(_gains(summary, others), folder, "gain_per_client", KINDS)
    save_figure(_clients(summary), folder, "clients", KINDS)
