"""Pictures that a comparison leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.figures.style import COLOURS, bars_by_sign, curve, figure, tidy
from fedtailor.results.verdict import YARDSTICK


def _save(picture: Any, folder: Path, name: str) -> None:
    for kind in ("png", "svg"):
        picture.savefig(folder / f"{name}.{kind}", dpi=150)


def _per_cent(row: dict[str, Any], key: str) -> list[float]:
    return [100 * point[key] for point in row["curve"]]


def accuracy_curves(summary: dict[str, Any], folder: Path) -> None:
    """Mean client accuracy by round, with the range over seeds as a band."""
    picture = figure(7.5, 4.2)
    axes = picture.add_subplot()
    for number, (method, row) in enumerate(summary["table"].items()):
        rounds = [point["round"] for point in row["curve"]]
        several = len(summary["seeds"]) > 1
        band = (_per_cent(row, "low"), _per_cent(row, "high")) if several else None
        curve(axes, number, method, rounds, _per_cent(row, "mean"), band)
    axes.set_xlabel("round")
    axes.set_ylabel("mean client accuracy (%)")
    settings = summary["settings"]
    axes.set_title(
        f"{settings['data']}, {settings['clients']} clients, {settings['partition']}, "
        f"{settings['model']}",
        fontsize=11,
        parse_math=False,  # a path may hold what looks like a formula
    )
    tidy(axes)
    picture.legend(loc="outside right upper", frameon=False)
    _save(picture, folder, "accuracy")


def gains(summary: dict[str, Any], folder: Path) -> None:
    """Each client's gain over training alone, sorted, one panel per method."""
    others = [m for m in summary["table"] if m != YARDSTICK]
    if not others:
        return
    columns = min(3, len(others))
    rows = -(-len(others) // columns)
    picture = figure(3.4 * columns, 2.5 * rows + 0.5)
    panels = picture.subplots(rows, columns, sharey=True, squeeze=False)
    for panel in panels.flat[len(others) :]:
        panel.set_visible(False)
    for panel, method in zip(panels.flat, others, strict=False):
        row = summary["table"][method]
        found = 100 * np.sort(np.array(list(row["gain"].values())))[::-1]
        bars_by_sign(panel, found)
        panel.set_title(
            f"{method}: {row['better_off']} better, {row['worse_off']} worse",
            fontsize=10,
            parse_math=False,
        )
        panel.set_xticks([])
        panel.set_xlabel(f"{len(found)} clients, best first", fontsize=9)
        tidy(panel)
    for panel in panels[:, 0]:
        panel.set_ylabel("gain over alone (points)", fontsize=9)
    _save(picture, folder, "gain_per_client")


def spread(summary: dict[str, Any], folder: Path) -> None:
    """How the clients' accuracies are spread, one box per method, every client a dot."""
    table = summary["table"]
    picture = figure(1.1 * len(table) + 2, 4.0)
    axes = picture.add_subplot()
    values = [100 * np.array(list(row["per_client"].values())) for row in table.values()]
    axes.boxplot(values, widths=0.55, showfliers=False, medianprops={"color": COLOURS[2], "lw": 2})
    for number, found in enumerate(values, start=1):
        # an even spread to the sides, the same each time
        aside = number + 0.2 * np.linspace(-1, 1, len(found))
        axes.scatter(aside, found, s=12, color=COLOURS[1], alpha=0.6, linewidths=0, zorder=3)
    axes.set_xticks(range(1, len(table) + 1), list(table), rotation=20 if len(table) > 5 else 0)
    axes.set_ylabel("client accuracy (%)")
    tidy(axes)
    _save(picture, folder, "clients")


def comparison_figures(summary: dict[str, Any], folder: Path) -> None:
    """All pictures of a comparison, as PNG and SVG."""
    accuracy_curves(summary, folder)
    gains(summary, folder)
    spread(summary, folder)
