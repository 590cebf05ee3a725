"""What somebody wants of a figure, and what a figure is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedtailor.figures.style import COLUMN
from fedtailor.results.collect import CollectedRuns


@dataclass(frozen=True)
class FigureOptions:
    """What a caller may choose."""

    width: float = 0.0  # in inches; 0 takes what suits the figure
    # which ones to show, where a figure shows single rounds; empty: the last one
    rounds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()  # labels of the methods to show; empty: all


# (what lies in the folders, what is wanted) -> a matplotlib figure; raises BadInput if the folders
# do not hold what it needs. The options has a width by then.
DrawFigure = Callable[[CollectedRuns, FigureOptions], Any]


@dataclass(frozen=True)
class FigureKind:
    """A figure that `fedtailor figure` can draw."""

    shows: str  # what is to be seen, in a few words
    needs: str  # what the folders must hold
    draw: DrawFigure  # draws it
    width: float = COLUMN  # in inches, unless somebody wants another one
    against: bool = False  # whether methods are shown against training alone, which is needed then
