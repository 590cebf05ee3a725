"""Engines: how functions written for one client meet many clients."""

from .cohort import draw_cohort
from .federation import Federation
from .simulation import Diverged, RoundReport, Scores, Simulation

__all__ = ["Diverged", "Federation", "RoundReport", "Scores", "Simulation", "draw_cohort"]
