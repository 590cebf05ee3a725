"""Engines: how functions written for one client meet many clients."""

from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import ClientStates, Outputs
from fedtailor.engine.cohort import draw_cohort, who_answers
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.simulation import Diverged, RoundReport, Scores, Simulation

__all__ = [
    "ClientData",
    "ClientStates",
    "Cluster",
    "Diverged",
    "Outputs",
    "RoundReport",
    "Scores",
    "Simulation",
    "draw_cohort",
    "who_answers",
]
