"""The charts that figures are made of: curves with bands, gains as bars, clients as boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.figures.style import COLOURS, empty_figure, look, tidy

LEGEND_ROWS = 4  # that a picture has room for as it is
LEGEND_ROW = 0.15  # inches


class Curve(NamedTuple):
    """A method's line in a chart."""

    number: int  # which look the method has
    label: str  # for the legend
    x: Sequence[float]  # rounds, bytes or seconds
    y: Sequence[float]  # what is shown
    # least and largest, if there are several seeds
    band: tuple[Sequence[float], Sequence[float]] | None = None


def draw_curves(axes: Any, curves: Iterable[Curve], x: str, y: str, **changed: Any) -> None:
    """Lines with their range over seeds as a band, and what the axes are called.

    Args:
      axes: where to draw.
      curves: one per method.
      x: name of the axis.
      y: name of the axis.
      changed: what is to be other than in `look`.

    Example:
      >>> axes = empty_figure(3.5, 2.4).add_subplot()
      >>> draw_curves(axes, [Curve(0, "fedala", [1, 2], [60, 80])], "round", "accuracy (%)")
      >>> axes.get_legend_handles_labels()[1]
      ['fedala']
    """
    for curve in curves:
        # one evaluated round is a dot, not a line without length
        dot: dict[str, Any] = {"marker": "o", "markersize": 3} if len(curve.x) == 1 else {}
        drawn = look(curve.number) | dot | changed
        axes.plot(curve.x, curve.y, label=curve.label, **drawn)
        if curve.band is not None:
            axes.fill_between(curve.x, *curve.band, color=drawn["color"], alpha=0.14, lw=0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    tidy(axes)


def draw_gains(axes: Any, values: Any, title: str, **changed: Any) -> None:
    """Clients' gains as bars around 0, best first; hatching marks losses, where colour cannot.

    Args:
      axes: where to draw.
      values: positive is better, largest first.
      title: above the panel.
      changed: how the title looks.
    """
    for sign, colour, hatch in ((values >= 0, COLOURS[1], None), (values < 0, COLOURS[2], "////")):
        at = sign.nonzero()[0]
        axes.bar(at, values[at], color=colour, width=0.9, hatch=hatch, edgecolor="white", lw=0)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_title(title, **changed)
    axes.set_xticks([])
    tidy(axes)


def draw_boxes(
    axes: Any, each: Sequence[Any], *, size: float = 8, alpha: float = 0.5, median: float = 1
) -> None:
    """How clients' values are spread: a box per method, every client a dot.

    Args:
      axes: where to draw.
      each: values of the clients, for each method.
      size: of a dot, in square points.
      alpha: how dense a dot is.
      median: thickness of its line in points.
    """
    line = {"color": COLOURS[2], "lw": median}
    axes.boxplot(each, widths=0.55, showfliers=False, medianprops=line)
    for number, found in enumerate(each, start=1):
        # an even spread to the sides, the same each time
        aside = number + 0.2 * np.linspace(-1, 1, len(found))
        axes.scatter(aside, found, s=size, color=COLOURS[1], alpha=alpha, linewidths=0, zorder=3)


def panel_grid(
    count: int, columns: int, size: Callable[[int], tuple[float, float]], **shared: Any
) -> tuple[Any, list[Any]]:
    """A figure with so many panels.

    Args:
      count: how many.
      columns: side by side.
      size: of the figure in inches, for a number of rows.
      shared: which axes all panels have in common, as `subplots` takes it.
    """
    down = -(-count // columns)
    picture = empty_figure(*size(down))
    panels = list(picture.subplots(down, columns, squeeze=False, **shared).flat)
    for spare in panels[count:]:
        spare.set_visible(False)
    return picture, panels[:count]


def whole_rounds(axes: Any) -> None:
    """Ticks at whole numbers alone: there is no round 1.2."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def columns_for(count: int, width: float) -> int:
    """How many panels stand side by side in a figure that is so many inches wide."""
    return min(count, 3 if width >= 5 else 2)


def legend(picture: Any, axes: Any) -> None:
    """The methods above the picture, in as many columns as there is room for.

    With more rows of them than usual the picture grows, so that what is below keeps its size.
    """
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    letters = max(len(text) for text in labels)
    columns = max(1, int(picture.get_figwidth() * 72 / (3.9 * letters + 34)))
    rows = -(-len(labels) // columns)
    grown = picture.get_figheight() + LEGEND_ROW * max(0, rows - LEGEND_ROWS)
    picture.set_figheight(grown)
    picture.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(columns, len(labels)),
        frameon=False,
        handlelength=2.8,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
