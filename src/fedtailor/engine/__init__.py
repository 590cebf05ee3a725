"""Engines: how functions written for one client meet many clients."""

from fedtailor.engine.client_data import Federation
from fedtailor.engine.clients import Kept, Scores
from fedtailor.engine.cohort import draw_cohort
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.simulation import Diverged, RoundReport, Simulation

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
