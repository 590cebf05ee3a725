"""Clients that have the same network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.ledger import charged
from fedtailor.core.method import Method, Model
from fedtailor.core.scoring import outputs_on
from fedtailor.core.task import Task
from fedtailor.core.tree import Params
from fedtailor.core.turn import ClientTurn, predict_general
from fedtailor.core.uploads.watch import UploadWatch
from fedtailor.engine.clients import ModelChoice, Outputs, Point
from fedtailor.engine.mapper import ClientContext


@dataclass(frozen=True, eq=False)
class ClientGroup:
    """Clients that have the same network, and the method built for it."""

    method: Method  # what these clients play
    task: Task  # their network
    members: Tensor  # their ids, ascending
    initial: Params  # the parameters that the network begins with
    watch: UploadWatch  # looks at what they upload
    _width: list[int] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, method: Method, task: Task, members: Tensor, seed: int) -> ClientGroup:
        """With the initial parameters of a run's seed."""
        initial = task.init(rng.key(seed, rng.INITIAL))
        return cls(method, task, members, initial, UploadWatch(task.buffers))

    def rows(self, ids: Tensor) -> Tensor:
        """The places of some members among all."""
        return torch.searchsorted(self.members, ids)

    def width(self, x: Tensor) -> int:
        """How many numbers a model gives for a row of such a store; found out once."""
        if not self._width:
            with torch.no_grad():
                said = self.task.predict(self.initial, x[:1])
            self._width.append(said.shape[-1])
        return self._width[0]

    def predict(self, general: bool) -> Callable[[Model, Tensor], Tensor]:
        """(model, x) -> outputs of personal models, or of the `general` one."""
        return predict_general(self.method, self.task) if general else self.method.predict

    def said(self, model: Model, client: ClientContext, point: Point) -> Outputs:
        """What a client's model says of its rows."""
        predict, width = self.predict(point == "general"), self.width(client.data.x)
        test = outputs_on(predict, model, client.test, width)
        # nothing is chosen by what a model says that its client will not use
        none = test[:0]
        val = none if point == "post" else outputs_on(predict, model, client.data.val, width)
        return Outputs(test, val, torch.zeros_like(client.cid))

    def turn(self, client: ClientContext) -> ClientTurn:
        """A client's turn, with the message that it is sent."""
        if client.message is not None:
            return ClientTurn(
                self.method, self.initial, client.message, client.data, client.turn, client.state
            )
        message = self.method.send(client.server, client.cid, client.turn)
        return ClientTurn(
            self.method, self.initial, message, client.data, client.turn, client.state, client.fresh
        )

    def model(self, client: ClientContext, choice: ModelChoice) -> tuple[Model, Tensor]:
        """A model of a client, and what noisy gradients making it took."""
        own, recipe = self.turn(client), choice.finetune
        if choice.point == "post":
            outcome, noisy = own.play()
            return outcome.model, noisy
        if choice.point == "general":
            return own.general(), charged((), client.cid)
        return own.personal(self.task, recipe)
