"""How pictures look: the same colours, lines and sizes everywhere.

For those who draw something of their own:

    from fedtailor.figures import figure, look, tidy

    picture = figure(3.5, 2.4)
    axes = picture.add_subplot()
    axes.plot(rounds, accuracy, label="fedala", **look(0))
    tidy(axes)
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

# Okabe and Ito's colours; line styles tell methods apart where colour does not
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3))]
HEAT = "cividis_r"  # perceptually uniform, for the colour-blind too, and darker is more in grey
COLUMN, PAGE = 3.5, 7.0  # inches: one column of a paper, and both

# for matplotlib's `rc_context`: letters as small as in a caption, fonts that printers can edit,
# and names from outside (a path, a class) that are never taken for formulae
PAPER: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "fedtailor",  # the same input gives the same file
    "text.parse_math": False,
}


def look(number: int) -> dict[str, Any]:
    """Colour and line style of the so-many-th method: no two alike before the 64th."""
    style = (number + number // len(COLOURS)) % len(STYLES)
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[style], "linewidth": 1.8}


def figure(width: float, height: float) -> Any:
    """An empty figure of some size in inches, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def tidy(axes: Any) -> None:
    """Axes with as few lines as will do."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def file_of(picture: Any, kind: str, dots: int) -> bytes:
    """A figure as a file, without a date: the same input gives the same file.

    Args:
      picture: the figure.
      kind: pdf, svg or png.
      dots: per inch, of a PNG.
    """
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    file = io.BytesIO()
    picture.savefig(file, format=kind, dpi=dots, metadata=undated)
    return file.getvalue()


def curve(
    axes: Any,
    number: int,
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]] | None = None,
    **changed: Any,
) -> None:
    """A method's line, with its range over seeds as a band.

    Args:
      axes: where to draw.
      number: which look the method has.
      label: for the legend.
      x: rounds, bytes or seconds.
      y: what is shown.
      band: least and largest, if there are several seeds.
      changed: what is to be other than in `look`.
    """
    drawn = look(number) | changed
    axes.plot(x, y, label=label, **drawn)
    if band is not None:
        axes.fill_between(x, *band, color=drawn["color"], alpha=0.14, lw=0)


def bars_by_sign(axes: Any, values: Any) -> None:
    """Sorted bars around 0; hatching marks what lies below, where colour cannot."""
    for sign, colour, hatch in ((values >= 0, COLOURS[1], None), (values < 0, COLOURS[2], "////")):
        at = sign.nonzero()[0]
        axes.bar(at, values[at], color=colour, width=0.9, hatch=hatch, edgecolor="white", lw=0)
    axes.axhline(0, color="black", linewidth=0.8)


def legend(picture: Any, axes: Any) -> None:
    """The methods above the picture, in as many columns as there is room for."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    letters = max(len(text) for text in labels)
    columns = int(picture.get_figwidth() * 72 / (3.9 * letters + 34))
    picture.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=max(1, min(columns, len(labels))),
        frameon=False,
        handlelength=2.8,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
