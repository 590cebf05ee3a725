"""Lines: accuracy and loss by round, and accuracy against what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.figures.style import curve, figure, legend, tidy
from fedtailor.figures.wish import Wish
from fedtailor.results import numbers
from fedtailor.results.collect import CollectedRuns

HEIGHT = 0.66  # of the width
LINE = 1.3  # points
MEGA = 1e6


def _values(found: list[float | None], times: float) -> Any:
    return times * np.array(found, dtype=float)


def _lines(collection: CollectedRuns, wish: Wish, measure: str, against: str) -> Any:
    """One line per method: a measure against rounds, bytes or seconds."""
    picture = figure(wish.width, HEIGHT * wish.width)
    axes = picture.add_subplot()
    times = 1.0 if measure == "loss" else 100.0
    free = []
    for number, contender in enumerate(collection.contenders):
        found = numbers.mean_curves(contender)
        if measure not in found:
            continue
        middle = _values(found[measure]["mid"], times)
        x: Any = np.array(found[against], dtype=float)
        if against == "sent":
            if not x.any():
                free.append((number, contender.label, middle[-1]))
                continue
            x /= MEGA
        low, high = (_values(found[measure][side], times) for side in ("low", "high"))
        # one evaluated round is a dot, not a line without length
        dot = {"marker": "o", "markersize": 3} if len(x) == 1 else {}
        band = (low, high) if len(contender.runs) > 1 else None
        curve(axes, number, contender.label, x, middle, band, linewidth=LINE, **dot)
    ends = axes.get_xlim()
    for number, label, level in free:  # nothing sent: its last accuracy is a level to reach
        curve(axes, number, f"{label} (0 MB)", ends, (level, level), linewidth=LINE)
    if not axes.lines:
        raise BadInput("these runs hold nothing to draw: were their clients tested?")
    axes.set_xlim(*ends)
    if against == "round":
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    axes.margins(x=0.02)
    legend(picture, axes)
    return picture, axes


ACCURACY = "mean test accuracy (%)"


def accuracy(collection: CollectedRuns, wish: Wish) -> Any:
    """Mean accuracy over clients by round, with the range over seeds as a band."""
    return _named(_lines(collection, wish, "mean", "round"), "round", ACCURACY)


def loss(collection: CollectedRuns, wish: Wish) -> Any:
    """Test loss of personal models by round."""
    return _named(_lines(collection, wish, "loss", "round"), "round", "test loss")


def communication(collection: CollectedRuns, wish: Wish) -> Any:
    """Mean accuracy against bytes sent, up and down together."""
    words = "sent, up and down together (MB)"
    return _named(_lines(collection, wish, "mean", "sent"), words, ACCURACY)


def time(collection: CollectedRuns, wish: Wish) -> Any:
    """Mean accuracy against the seconds that the run took."""
    return _named(_lines(collection, wish, "mean", "seconds"), "time (s)", ACCURACY)


def _named(drawn: tuple[Any, Any], x: str, y: str) -> Any:
    picture, axes = drawn
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return picture
