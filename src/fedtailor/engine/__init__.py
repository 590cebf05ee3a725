"""Engines: how functions written for one client meet many clients."""

from fedtailor.engine.client_data import ClientData
from fedtailor.engine.clients import ClientStates, Outputs
from fedtailor.engine.cohort import (
    client_times,
    draw_cohort,
    normal_steps,
    who_answers,
    who_is_in_time,
)
from fedtailor.engine.outcome import RoundReport
from fedtailor.engine.ray.cluster import Cluster
from fedtailor.engine.simulation import Diverged, Simulation

__all__ = [
    "ClientData",
    "ClientStates",
    "Cluster",
    "Diverged",
    "Outputs",
    "RoundReport",
    "Simulation",
    "client_times",
    "draw_cohort",
    "normal_steps",
    "who_answers",
    "who_is_in_time",
]
