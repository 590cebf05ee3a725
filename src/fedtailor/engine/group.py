"""Clients that have the same network, with their states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.method import Method, Model
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.training import SCORED, Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.engine.chunk import estimate_chunk
from fedtailor.engine.client_data import ClientData
from fedtailor.engine.mapper import Visit
from fedtailor.engine.memory import nbytes
from fedtailor.engine.state_store import StatePlace, StateStore, choose_place


class Room(NamedTuple):
    """How many clients fit on the device at a time, when they train and when they are scored (0: as
    many as train)."""

    training: int
    scoring: int = 0


class ClientGroup:
    """A method built for one network, the clients that have it, and their states.

    Args:
      method: what these clients play.
      task: their network.
      members: their ids, ascending.
      seed: of the run.
    """

    def __init__(self, method: Method, task: Task, members: Tensor, seed: int) -> None:
        self.method, self.task, self.members = method, task, members
        self.initial: Params = task.init(rng.key(seed, rng.INITIAL))
        self.states: StateStore

    def prepare(
        self,
        server: Tree,
        client_data: ClientData,
        turn: Turn,
        place: StatePlace | None,
        folder: Path | None,
        recipe: Recipe,
        mapped: bool = True,
    ) -> Room:
        """Makes room for the states; returns how much is left for clients."""
        first = self.members[0].to(client_data.x.device)
        message = self.method.send(server, first, turn.of(first))
        like = self.method.start(message, self.initial, turn.of(first).at_start())
        device, count = client_data.x.device, len(self.members)
        place = place or choose_place(nbytes(like), count, device)
        self.states = StateStore(count, like, device, place, folder)

        def fits(how: Recipe) -> int:
            return estimate_chunk(
                self.task, self.initial, client_data, message, like, how, mapped=mapped
            )

        if device.type == "cpu":  # memory is not short there
            return Room(fits(recipe))
        return Room(fits(recipe), fits(replace(recipe, batch=SCORED)))

    def rows(self, ids: Tensor) -> Tensor:
        """The members' places in the bank."""
        return torch.searchsorted(self.members, ids)

    def stage(self, ids: Tensor, state: Tree) -> Callable[[], Tree]:
        """Holds new states until the round is whole; states on disk do not fit in memory and go
        there at once (a round that breaks ends the run, and the last checkpoint counts)."""
        if self.states.place == "disk":
            self.states.put(self.rows(ids), self.states.land(state)())
            return dict
        return self.states.land(state)

    def keep(self, ids: Tensor, state: Tree) -> None:
        """Puts staged states where they belong."""
        if self.states.place != "disk":
            self.states.put(self.rows(ids), state)

    def begin(self, visit: Visit) -> tuple[Tree, Tree]:
        """A client's message, and its state at the start of its turn."""
        message = self.method.send(visit.server, visit.cid, visit.turn)
        made = self.method.start(message, self.initial, visit.turn.at_start())
        return message, tree.where(visit.fresh, made, visit.state)

    def model(self, visit: Visit, finetune: Recipe | None) -> Model:
        """The model that a client would use now."""
        message, state = self.begin(visit)
        before, after = visit.turn.at_client().split()
        model = self.method.personal(message, state, visit.data, before)
        return fit(self.task, model, visit.data, after, finetune) if finetune else model

    def trained(self, visit: Visit) -> Model:
        """The model that a client has right after local training, if it trains now."""
        message, state = self.begin(visit)
        return self.method.client(message, state, visit.data, visit.turn.at_client()).model

    def general(self, visit: Visit) -> Model:
        """The global model as a client has it; only where the method has one."""
        assert self.method.general is not None
        return self.method.general(*self.begin(visit))
