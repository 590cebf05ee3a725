"""The clients of one worker, and what it was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.engine.ray.replicas import StateReplicas


@dataclass(eq=False)
class Slot:
    """Some clients, and the worker that has them now."""

    number: int  # from 0
    ids: Tensor  # the clients, ascending
    spec: Any  # reference of what is played
    data: Any  # reference of their rows
    actor: Any = None  # the worker
    loaded: Any = None  # reference of what the worker said when it had its clients
    chunk: int = 0  # how many of them share its device at a time
    replicas: StateReplicas = field(default_factory=StateReplicas)  # copies of their states


class Pending(NamedTuple):
    """References of a worker's answer, and which worker was asked."""

    references: Any
    actor: Any
