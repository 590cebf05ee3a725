"""A client's turn, played in one place: engines map it over clients, a site plays its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.ledger import Ledger, charged
from fedtailor.core.method import Method, Model, Outcome
from fedtailor.core.rng import Turn
from fedtailor.core.tree import Params, Tree


class ClientTurn(NamedTuple):
    """One client's turn, from the message that it received on. Playing it changes nothing here.

    Attributes:
      method: what is played.
      initial: common initial parameters.
      message: what the client received.
      data: its rows.
      turn: as `send` saw it.
      kept: its state after its last turn; None if it was never met.
      fresh: whether it was never met, where clients that share a call differ in that.
      secret: makes the client's random numbers its own secret.
    """

    method: Method
    initial: Params
    message: Tree
    data: Data
    turn: Turn
    kept: Tree | None = None
    fresh: Tensor | None = None
    secret: bytes = b""

    def state(self) -> Tree:
        """The state that the turn begins with: what was kept, or at first contact `start`'s."""
        if self.kept is not None and self.fresh is None:
            return self.kept
        made = self.method.start(self.message, self.initial, self.turn.at_start())
        if self.kept is None or self.fresh is None:
            return made
        return tree.where(self.fresh, made, self.kept)

    def _own(self) -> tuple[Turn, Ledger]:
        """The client's part of the turn, with a new ledger."""
        ledger = Ledger(secret=self.secret)
        number = int.from_bytes(self.secret[:8]) >> 1 if self.secret else None  # has 63 bits
        return self.turn.at_client(number)._replace(ledger=ledger), ledger

    def play(self) -> tuple[Outcome, Tensor]:
        """What the turn ends with, and what noisy gradients it took (a row of `Spent`)."""
        own, ledger = self._own()
        outcome = self.method.client(self.message, self.state(), self.data, own)
        return outcome, charged(ledger.entries, self.data.n)

    def personal(
        self, finetune: Callable[[Model, Turn], Model] | None = None
    ) -> tuple[Model, Tensor]:
        """The model that the client would use now, and what noisy gradients making it took.

        Args:
          finetune: trains the model further.
        """
        own, ledger = self._own()
        before, after = own.split()
        model = self.method.personal(self.message, self.state(), self.data, before)
        if finetune is not None:
            model = finetune(model, after)
        return model, charged(ledger.entries, self.data.n)
