"""One worker of a simulation on Ray: some clients with their data and states.

Nothing here knows Ray: a worker is an ordinary object that somebody made an actor of.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Turn
from fedtailor.core.tree import Tree
from fedtailor.engine.clients import (
    ClientSettings,
    ClientStates,
    CohortOutcome,
    ModelChoice,
    Outputs,
    TurnReport,
)
from fedtailor.engine.culprit import naming_their_code
from fedtailor.engine.fold import Folded
from fedtailor.engine.group import ClientGroup
from fedtailor.engine.local_clients import LocalClients
from fedtailor.engine.ray.arrays import Arrays, as_arrays, as_tensors, from_arrays, to_arrays
from fedtailor.engine.ray.cluster import BuildGroups
from fedtailor.engine.ray.shard import Shard


class WorkerSpec(NamedTuple):
    """What a worker plays, but for its data."""

    build: BuildGroups  # makes the methods
    members: list[Tensor]  # for each network the worker's clients, ascending
    seed: int  # of the run
    settings: ClientSettings  # how clients are played
    device: str  # to compute on
    dtype: torch.dtype  # of numbers
    threads: int  # for a CPU


class LoadReport(NamedTuple):
    """What a worker says when it has its clients; `like` is by number of the network."""

    chunk: int
    place: str
    like: dict[int, Arrays]


class RoundAnswer(NamedTuple):
    """What a worker says of a round; the large parts stay where they are."""

    drawn: Tensor
    measured: TurnReport
    taken: Tensor
    notes: Tree
    has_each: bool
    chunk: int
    warnings: list[str]


States = dict[int, tuple[Tensor, Arrays]]  # by number of the network: ids, their states


def fold_to_arrays(folded: Folded) -> Arrays:
    """A fold, ready to travel."""
    mean, weight = tree.unflatten(folded.mean), tree.unflatten(folded.weight)
    return to_arrays({"mean": mean, "weight": weight, "total": folded.total})


def fold_from_arrays(arrays: Arrays) -> Folded:
    """The fold again, in memory of its own."""
    found = from_arrays(arrays, own=True)
    return Folded(tree.flatten(found["mean"]), tree.flatten(found["weight"]), found["total"])


class _WarningCollector(logging.Handler):
    """Collects what is logged: the driver says it, with the worker's number."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class RayWorker:
    """Some clients on a machine of the cluster. It can be loaded anew for another run."""

    def __init__(self) -> None:
        self._warnings = _WarningCollector()
        logging.getLogger("fedtailor").addHandler(self._warnings)
        self._numbers: list[int] = []
        self._clients: LocalClients | None = None
        self._played: CohortOutcome | None = None

    @property
    def clients(self) -> LocalClients:
        assert self._clients is not None, "load comes first"
        return self._clients

    def look_in(self, path: Sequence[str]) -> None:
        """Says where the driver finds modules: methods and networks of one's own may be there.

        To be called before `load`, whose arguments may need them to arrive.
        """
        sys.path += [entry for entry in path if entry not in sys.path]

    @naming_their_code()
    def load(self, spec: WorkerSpec, data: Shard, server: Arrays, turn: Turn) -> LoadReport:
        """Takes over some clients, none of which was met."""
        self.clear()
        torch.set_default_dtype(spec.dtype)
        torch.set_num_threads(spec.threads)
        if spec.device.startswith("cuda") and not torch.cuda.is_available():
            raise BadInput(f"device '{spec.device}' cannot be used by a worker: try --device cpu")
        built = spec.build(spec.device)
        self._numbers = [i for i, ids in enumerate(spec.members) if len(ids)]
        self._clients = LocalClients(
            [ClientGroup.of(*built[i][:2], spec.members[i], spec.seed) for i in self._numbers],
            data.client_data(spec.device),
            from_arrays(server, spec.device),
            turn.to(spec.device),
            spec.settings,
        )
        like = dict(zip(self._numbers, map(to_arrays, self.clients.like()), strict=True))
        return LoadReport(self.clients.chunk, self.clients.place, like)

    def _here(self, server: Arrays, ids: Tensor, turn: Turn) -> tuple[Tree, Tensor, Turn]:
        device = self.clients.device
        return from_arrays(server, device), as_tensors(ids), as_tensors(turn).to(device)

    def set_chunk(self, size: int) -> int:
        """Sets how many clients share the device at a time."""
        self.clients.chunk = size
        return size

    @naming_their_code()
    def play(
        self, server: Arrays, ids: Tensor, turn: Turn, post: bool
    ) -> tuple[RoundAnswer, Arrays, Arrays]:
        """The turns of some clients: a report on them, their mean, and what is needed one by one.

        New states wait here until `keep`. `ids` and `turn` may have arrays for tensors, and the
        report has.
        """
        state, some, now = self._here(server, ids, turn)
        played = self._played = self.clients.play(state, some, now, post=post)
        each = to_arrays(played.each()) if len(played.taken) else {}
        answer = RoundAnswer(
            played.drawn,
            played.measured(),
            played.taken,
            played.notes(),
            bool(each),
            self.clients.chunk,
            self._warnings.take(),
        )
        return as_arrays(answer), fold_to_arrays(played.fold.folded()), each

    def keep(self) -> tuple[bool, States]:
        """Makes the states of the last round count; a copy of them outlives the worker."""
        assert self._played is not None, "play comes first"
        self._played.keep()
        taken, self._played = self._played.taken, None
        return True, self._states(self.clients.client_states(taken))

    def client_states(self) -> tuple[bool, States]:
        """The states of all clients that were met."""
        return True, self._states(self.clients.client_states())

    def _states(self, kept: list[ClientStates]) -> States:
        return {
            i: (ids, to_arrays(rows)) for i, (ids, rows) in zip(self._numbers, kept, strict=True)
        }

    def restore_states(self, states: States) -> bool:
        """Puts states where they were; clients that are not named stay as they are."""
        for number, (ids, rows) in states.items():
            i = self._numbers.index(number)
            self.clients.stores[i].put(self.clients.groups[i].rows(ids), from_arrays(rows))
        return True

    @naming_their_code()
    def outputs(
        self, server: Arrays, ids: Tensor, turn: Turn, choice: ModelChoice, part: str
    ) -> Outputs:
        """What models of some clients say, by ascending id; arrays for tensors."""
        state, some, now = self._here(server, ids, turn)
        said: Outputs = as_arrays(self.clients.outputs(state, some, now, choice, part))
        return said

    @naming_their_code()
    def models(
        self, server: Arrays, ids: Tensor, turn: Turn, choice: ModelChoice
    ) -> list[tuple[Tensor, Arrays]]:
        """Models of some clients."""
        state, own, now = self._here(server, ids, turn)
        found = self.clients.models(state, own, now, choice)
        return [(some, to_arrays(models)) for some, models in found]

    def clear(self) -> bool:
        """Lets go of everything."""
        if self._clients is not None:
            self._clients.close()
        self._clients = self._played = None
        return True
