"""Pictures of runs and comparisons, readable in grey and for the colour-blind."""

from fedtailor.figures.charts import Curve, draw_boxes, draw_curves, draw_gains, legend
from fedtailor.figures.comparison import comparison_figures
from fedtailor.figures.draw import draw, draw_figure
from fedtailor.figures.options import FigureKind, FigureOptions
from fedtailor.figures.registry import FIGURES
from fedtailor.figures.style import (
    COLOURS,
    PAPER,
    STYLES,
    empty_figure,
    file_of,
    look,
    save_figure,
    tidy,
)

__all__ = [
    "COLOURS",
    "FIGURES",
    "PAPER",
    "STYLES",
    "Curve",
    "FigureKind",
    "FigureOptions",
    "comparison_figures",
    "draw",
    "draw_boxes",
    "draw_curves",
    "draw_figure",
    "draw_gains",
    "empty_figure",
    "file_of",
    "legend",
    "look",
    "save_figure",
    "tidy",
]
