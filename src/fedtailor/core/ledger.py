"""What DP-SGD takes of a client's rows in one turn: noisy gradients, noted as they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Entry(NamedTuple):
    """Noisy gradients on one batch.

    Attributes:
      number: of the batch within a pass.
      size: rows of a batch.
      last: what becomes of a short last batch.
      gradients: how many were taken on it.
    """

    number: int
    size: int
    last: str
    gradients: int = 1

    @property
    def least(self) -> int:
        """How many rows a client must have to have this batch."""
        if self.last == "steps":
            return 0
        return (self.number + 1) * self.size if self.last == "drop" else self.number * self.size + 1


@dataclass(eq=False)
class Ledger:
    """The noisy gradients of one turn; whoever plays the turn makes it, `Turn` carries it.

    Clients that share a call share its entries, one per batch; who has no such batch is not charged
    for it. Descents are counted so that each draws batches and noise of its own.
    """

    entries: list[Entry] = field(default_factory=list)
    descents: int = 0


def charged(entries: Sequence[Entry], rows: Tensor) -> Tensor:
    """What a client with so many training rows has to account for: a row of `privacy.Spent`.

    Example:
      >>> taken = [Entry(0, 10, "pad"), Entry(1, 10, "pad", gradients=2)]
      >>> charged(taken, torch.tensor(10)), charged(taken, torch.tensor(11))
      (tensor([1, 1]), tensor([2, 2]))
    """
    if not entries:
        return torch.zeros(2, dtype=torch.int64, device=rows.device)
    least, gradients = torch.tensor(
        [(entry.least, entry.gradients) for entry in entries], device=rows.device
    ).T
    has = least <= rows
    return torch.stack([has.sum(), (has * gradients).amax()])
