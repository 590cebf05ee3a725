"""Pictures of a comparison, readable in grey and for the colour-blind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

# Okabe and Ito's colours; line styles tell methods apart where colour does not
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3))]
YARDSTICK = "local"


def _look(number: int) -> dict[str, Any]:
    style = (number + number // len(COLOURS)) % len(STYLES)
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[style], "linewidth": 1.8}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, folder: Path, name: str) -> None:
    for kind in ("png", "svg"):
        figure.savefig(folder / f"{name}.{kind}", dpi=150)


def _tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _per_cent(row: dict[str, Any], key: str) -> list[float]:
    return [100 * point[key] for point in row["curve"]]


def accuracy_curves(summary: dict[str, Any], folder: Path) -> None:
    """Mean client accuracy by round, with the range over seeds as a band."""
    figure = _figure(7.5, 4.2)
    axes = figure.add_subplot()
    for number, (method, row) in enumerate(summary["table"].items()):
        rounds = [point["round"] for point in row["curve"]]
        look = _look(number)
        axes.plot(rounds, _per_cent(row, "mean"), label=method, **look)
        if len(summary["seeds"]) > 1:
            low, high = _per_cent(row, "low"), _per_cent(row, "high")
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.12, lw=0)
    axes.set_xlabel("round")
    axes.set_ylabel("mean client accuracy (%)")
    settings = summary["settings"]
    axes.set_title(
        f"{settings['data']}, {settings['clients']} clients, {settings['partition']}, "
        f"{settings['model']}",
        fontsize=11,
        parse_math=False,  # a path may hold what looks like a formula
    )
    _tidy(axes)
    figure.legend(loc="outside right upper", frameon=False)
    _save(figure, folder, "accuracy")


def gains(summary: dict[str, Any], folder: Path) -> None:
    """Each client's gain over training alone, sorted, one panel per method."""
    others = [m for m in summary["table"] if m != YARDSTICK]
    if not others:
        return
    columns = min(3, len(others))
    rows = -(-len(others) // columns)
    figure = _figure(3.4 * columns, 2.5 * rows + 0.5)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for panel in panels.flat[len(others) :]:
        panel.set_visible(False)
    for panel, method in zip(panels.flat, others, strict=False):
        row = summary["table"][method]
        found = 100 * np.sort(np.array(list(row["gain"].values())))[::-1]
        colours = np.where(found >= 0, COLOURS[1], COLOURS[2])
        # hatching marks losses where colour cannot
        bars = panel.bar(np.arange(len(found)), found, color=colours, width=0.9)
        for bar, value in zip(bars, found, strict=True):
            if value < 0:
                bar.set_hatch("///")
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_title(
            f"{method}: {row['better_off']} better, {row['worse_off']} worse",
            fontsize=10,
            parse_math=False,
        )
        panel.set_xticks([])
        panel.set_xlabel(f"{len(found)} clients, best first", fontsize=9)
        _tidy(panel)
    for panel in panels[:, 0]:
        panel.set_ylabel("gain over alone (points)", fontsize=9)
    _save(figure, folder, "gain_per_client")


def spread(summary: dict[str, Any], folder: Path) -> None:
    """How the clients' accuracies are spread, one box per method, every client a dot."""
    table = summary["table"]
    figure = _figure(1.1 * len(table) + 2, 4.0)
    axes = figure.add_subplot()
    values = [100 * np.array(list(row["per_client"].values())) for row in table.values()]
    axes.boxplot(values, widths=0.55, showfliers=False, medianprops={"color": COLOURS[2], "lw": 2})
    for number, found in enumerate(values, start=1):
        # an even spread to the sides, the same each time
        aside = number + 0.2 * np.linspace(-1, 1, len(found))
        axes.scatter(aside, found, s=12, color=COLOURS[1], alpha=0.6, linewidths=0, zorder=3)
    axes.set_xticks(range(1, len(table) + 1), list(table), rotation=20 if len(table) > 5 else 0)
    axes.set_ylabel("client accuracy (%)")
    _tidy(axes)
    _save(figure, folder, "clients")


def comparison_figures(summary: dict[str, Any], folder: Path) -> None:
    """All pictures of a comparison, as PNG and SVG."""
    accuracy_curves(summary, folder)
    gains(summary, folder)
    spread(summary, folder)
