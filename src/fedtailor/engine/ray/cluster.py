"""Where a simulation that is too large for one process finds its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedtailor.core.method import Method
from fedtailor.core.task import Task

# (device) -> (method, network, ids of the clients that have it), the server's network first
BuildGroups = Callable[[str], list[tuple[Method, Task, Tensor]]]


class Cluster(NamedTuple):
    """Workers on a Ray cluster, for `Simulation`."""

    # makes the methods anew in each worker, on its own device: what they close over may not be fit
    # to travel
    build: BuildGroups
    workers: int = 0  # how many; 0 chooses one per GPU, or one per core
    address: str = ""  # of a running Ray cluster; empty starts one on this machine
    device: str = "cpu"  # what workers compute on: `cpu` or `cuda`
    gpus: float = 1.0  # GPUs that each worker takes; below 1, workers share one
