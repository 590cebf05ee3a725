"""Pictures of runs and comparisons, readable in grey and for the colour-blind."""

from .comparison import accuracy_curves, comparison_figures, gains, spread
from .draw import draw, draw_figure
from .registry import FIGURES
from .style import COLOURS, PAPER, STYLES, curve, figure, file_of, legend, look, tidy
from .wish import Picture, Wish

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
