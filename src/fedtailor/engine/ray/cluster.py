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
    """Workers on a Ray cluster, for `Simulation`.

    Attributes:
      build: makes the methods anew in each worker, on its own device: what they close over may not
        be fit to travel.
      workers: how many; 0 chooses one per GPU, or one per core.
      address: of a running Ray cluster; empty starts one on this machine.
      device: what workers compute on: `cpu` or `cuda`.
      gpus: GPUs that each worker takes; below 1, workers share one.
    """

    build: BuildGroups
    workers: int = 0
    address: str = ""
    device: str = "cpu"
    gpus: float = 1.0
