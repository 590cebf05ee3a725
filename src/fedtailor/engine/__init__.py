"""Engines: how functions written for one client meet many clients."""

from .cluster import Cluster
from .cohort import draw_cohort
from .federation import Federation
from .players import Kept, Scores
from .simulation import Diverged, RoundReport, Simulation

__all__ = [
    "Cluster",
    "Diverged",
    "Federation",
    "Kept",
    "RoundReport",
    "Scores",
    "Simulation",
    "draw_cohort",
]
