"""Clients that have the same network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.method import Method, Model
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
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
