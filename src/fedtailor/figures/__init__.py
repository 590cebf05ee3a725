"""Pictures of runs and comparisons, readable in grey and for the colour-blind."""

from fedtailor.figures.charts import Curve, draw_curves
from fedtailor.figures.comparison import comparison_figures
from fedtailor.figures.draw import draw, draw_figure
from fedtailor.figures.options import FigureOptions
from fedtailor.figures.registry import FIGURES
from fedtailor.figures.style import PAPER, empty_figure, look, tidy

__all__ = [
    "FIGURES",
    "PAPER",
    "Curve",
    "FigureOptions",
    "comparison_figures",
    "draw",
    "draw_curves",
    "draw_figure",
    "empty_figure",
    "look",
    "tidy",
]
