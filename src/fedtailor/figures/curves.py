"""Lines: the metric and the loss by round, and the metric against what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.figures.charts import Curve, draw_curves, legend, whole_rounds
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.style import empty_figure
from fedtailor.results import numbers
from fedtailor.results.collect import CollectedRuns

HEIGHT = 0.66  # of the width
LINE = 1.3  # points
MEGA = 1e6
X_NAMES = {
    "round": "round",
    "sent": "sent, up and down together (MB)",
    "seconds": "time (s)",
    "simulated": "simulated time (rounds of a normal client)",
}


def _values(found: list[float | None], times: int) -> Any:
    return times * np.array(found, dtype=float)


def lines_figure(
    collection: CollectedRuns, options: FigureOptions, *, measure: str, against: str
) -> Any:
    """One line per method: a measure against rounds, bytes or seconds; bands are over seeds."""
    picture = empty_figure(options.width, HEIGHT * options.width)
    axes = picture.add_subplot()
    metric = numbers.metric_of(collection)
    times = 1 if measure == "loss" else metric.times
    lines, free = [], []
    for number, contender in enumerate(collection.contenders):
        found = numbers.mean_curves(contender)
        if measure not in found:
            continue
        if against not in found:
            raise BadInput(
                f"{contender.label} has no {X_NAMES[against].partition(' (')[0]}: run with --slow "
                "or --deadline"
            )
        middle = _values(found[measure]["mid"], times)
        x: Any = np.array(found[against], dtype=float)
        if against == "sent":
            if not x.any():
                free.append((number, contender.label, middle[-1]))
                continue
            x /= MEGA
        low, high = (_values(found[measure][side], times) for side in ("low", "high"))
        band = (low, high) if len(contender.runs) > 1 else None
        lines.append(Curve(number, contender.label, x, middle, band))
    shown = "test loss" if measure == "loss" else numbers.axis_of(metric, "mean test")
    named = X_NAMES[against], shown
    draw_curves(axes, lines, *named, linewidth=LINE)
    ends = axes.get_xlim()
    # nothing sent: its last value is a level to reach
    levels = [Curve(i, f"{label} (0 MB)", ends, (y, y)) for i, label, y in free]
    draw_curves(axes, levels, *named, linewidth=LINE)
    if not axes.lines:
        raise BadInput("these runs hold nothing to draw: were their clients tested?")
    axes.set_xlim(*ends)
    if against == "round":
        whole_rounds(axes)
    axes.margins(x=0.02)
    legend(picture, axes)
    return picture
