"""How pictures look: the same colours, lines and sizes everywhere.

For those who draw something of their own:

    from fedtailor.figures import empty_figure, look, tidy

    picture = empty_figure(3.5, 2.4)
    axes = picture.add_subplot()
    axes.plot(rounds, accuracy, label="fedala", **look(0))
    tidy(axes)
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.files import write_atomically
from fedtailor.figures.fonts import make_legible

# Okabe and Ito's colours; line styles tell methods apart where colour does not
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
STYLES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (3, 3))]
HEAT = "cividis_r"  # perceptually uniform, for the colour-blind too, and darker is more in grey
COLUMN, PAGE = 3.5, 7.0  # inches: one column of a paper, and both
DOTS = 150  # per inch, of pictures that are looked at on a screen

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


def shorten(name: str, letters: int = 12) -> str:
    """A name that does not push the picture aside."""
    return name if len(name) <= letters else name[: letters - 1] + "…"


def empty_figure(width: float, height: float, layout: Any = "constrained") -> Any:
    """An empty figure of some size in inches, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(made)
    return made


def tidy(axes: Any) -> None:
    """Axes with as few lines as will do."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def file_of(picture: Any, kind: str, dots: int, **how: Any) -> bytes:
    """A figure as a file, without a date: the same input gives the same file.

    Args:
      picture: the figure.
      kind: pdf, svg or png.
      dots: per inch, of a PNG.
      **how: more for `savefig`.
    """
    make_legible(picture)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    file = io.BytesIO()
    picture.savefig(file, format=kind, dpi=dots, metadata=undated, **how)
    return file.getvalue()


def save_figure(
    picture: Any, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg", "pdf")
) -> str:
    """Writes a figure in several forms, and returns the name of the first one's file."""
    for kind in kinds:
        write_atomically(folder / f"{name}.{kind}", file_of(picture, kind, DOTS))
    return f"{name}.{kinds[0]}"
