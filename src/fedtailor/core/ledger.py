"""What DP-SGD takes of a client's rows in one turn: noisy gradients, noted as they are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor


class Entry(NamedTuple):
    """Noisy gradients on the batches of one descent."""

    batches: Tensor  # how many of them the client had
    gradients: int  # how many were taken on each
    rate: Tensor  # with which probability a row was in a batch


@dataclass(eq=False)
class Ledger:
    """The noisy gradients of one turn; whoever plays the turn makes it, `Turn` carries it.

    Descents are counted so that each draws batches and noise of its own.
    """

    entries: list[Entry] = field(default_factory=list)
    descents: int = 0
    secret: bytes = b""  # what noise is drawn with; empty: with the turn's key, as in simulations
    # noisy gradients are those of blank rows: whatever still depends on the rows leaks them
    blind: bool = False


def charged(entries: Sequence[Entry], like: Tensor) -> Tensor:
    """What a client has to account for: a row of `privacy.Spent`, on the device of `like`.

    Example:
      >>> taken = [Entry(torch.tensor(4), 1, torch.tensor(0.1)),
      ...          Entry(torch.tensor(2), 3, torch.tensor(0.2)),
      ...          Entry(torch.tensor(0), 9, torch.tensor(1.0))]  # had none of them
      >>> [round(value, 6) for value in charged(taken, torch.tensor(0)).tolist()]
      [6.0, 3.0, 0.2]
    """
    if not entries:
        return torch.zeros(3, dtype=torch.float64, device=like.device)
    batches = torch.stack([entry.batches for entry in entries]).double()
    rates = torch.stack([entry.rate for entry in entries]).double()
    gradients = batches.new_tensor([entry.gradients for entry in entries])
    had = batches > 0
    return torch.stack([batches.sum(), (had * gradients).amax(), (had * rates).amax()])
