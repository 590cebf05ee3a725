"""Pictures of runs and comparisons, readable in grey and for the colour-blind."""

from fedtailor.figures.comparison import accuracy_curves, comparison_figures, gains, spread
from fedtailor.figures.draw import draw, draw_figure
from fedtailor.figures.registry import FIGURES
from fedtailor.figures.style import (
    COLOURS,
    PAPER,
    STYLES,
    curve,
    figure,
    file_of,
    legend,
    look,
    tidy,
)
from fedtailor.figures.wish import Picture, Wish

__all__ = [
    "COLOURS",
    "FIGURES",
    "PAPER",
    "STYLES",
    "Picture",
    "Wish",
    "accuracy_curves",
    "comparison_figures",
    "curve",
    "draw",
    "draw_figure",
    "figure",
    "file_of",
    "gains",
    "legend",
    "look",
    "spread",
    "tidy",
]
