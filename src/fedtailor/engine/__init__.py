"""Engines: how functions written for one client meet many clients."""

from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import ClientStates, Scores
from fedtailor.engine.cohort import draw_cohort
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.simulation import Diverged, RoundReport, Simulation

__all__ = [
    "ClientData",
    "ClientStates",
    "Cluster",
    "Diverged",
    "RoundReport",
    "Scores",
    "Simulation",
    "draw_cohort",
]
