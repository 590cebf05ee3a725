"""Clients that have the same network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.method import Method, Model
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params
from fedtailor.core.turn import ClientTurn
from fedtailor.engine.mapper import Visit


@dataclass(frozen=True, eq=False)
class ClientGroup:
    """Clients that have the same network, and the method built for it.

    Attributes:
      method: what these clients play.
      task: their network.
      members: their ids, ascending.
      initial: the parameters that the network begins with.
    """

    method: Method
    task: Task
    members: Tensor
    initial: Params

    @classmethod
    def of(cls, method: Method, task: Task, members: Tensor, seed: int) -> ClientGroup:
        """With the initial parameters of a run's seed."""
        return cls(method, task, members, task.init(rng.key(seed, rng.INITIAL)))

    def rows(self, ids: Tensor) -> Tensor:
        """The places of some members among all."""
        return torch.searchsorted(self.members, ids)

    def turn(self, visit: Visit) -> ClientTurn:
        """A client's turn, with the message that it is sent."""
        message = self.method.send(visit.server, visit.cid, visit.turn)
        return ClientTurn(
            self.method, self.initial, message, visit.data, visit.turn, visit.state, visit.fresh
        )

    def model(self, visit: Visit, finetune: Recipe | None) -> tuple[Model, Tensor]:
        """The model that a client would use now, and what noisy gradients making it took."""
        if finetune is None:
            return self.turn(visit).personal()
        tune = lambda model, turn: fit(self.task, model, visit.data, turn, finetune)
        return self.turn(visit).personal(tune)

    def trained(self, visit: Visit) -> Model:
        """The model that a client has right after local training, if it trains now."""
        return self.turn(visit).play()[0].model

    def general(self, visit: Visit) -> Model:
        """The global model as a client has it; only where the method has one."""
        assert self.method.general is not None
        turn = self.turn(visit)
        return self.method.general(turn.message, turn.state())
