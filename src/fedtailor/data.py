"""One flat store of examples, and for each client the rows that are its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import rng
from .rng import Key
from .task import Batch


class Data(NamedTuple):
    """One client's view of the store: its training rows and its validation rows, never test rows.

    Attributes:
      x: examples of all clients that share a machine.
      y: their labels.
      rows: numbers of this client's training rows; all but the first `n` are padding.
      n: how many training rows it has.
      val_rows: numbers of its validation rows, padded likewise.
      val_n: how many validation rows it has.
      least: no client that shares this call has fewer training rows; steps below need no mask.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    n: Tensor
    val_rows: Tensor
    val_n: Tensor
    least: int = 0

    @property
    def val(self) -> Data:
        """The validation rows, as data of their own."""
        return self._replace(rows=self.val_rows, n=self.val_n, least=0)

    def shuffle(self, key: Key) -> Data:
        """The training rows in random order, padding last."""
        width = len(self.rows)
        position = torch.arange(width, device=self.rows.device)
        # 63-bit draws: padding gets the largest value there is
        draw = torch.where(position < self.n, rng.bits(key, width), (1 << 63) - 1)
        return self._replace(rows=self.rows[draw.argsort(stable=True)])

    def _part(self, share: float) -> Tensor:
        """How many rows a share is: at least one, if there are any."""
        return (share * self.n + 1e-4).long().clamp(min=1).minimum(self.n)

    def first(self, share: float) -> Data:
        """The first part of the rows, at least one."""
        return self._replace(n=self._part(share), least=0)

    def rest(self, share: float) -> Data:
        """The rows after `first(share)`."""
        skip = self._part(share)
        position = torch.arange(len(self.rows), device=self.rows.device) + skip
        return self._replace(rows=self.rows[position % len(self.rows)], n=self.n - skip, least=0)

    def window(self, share: float, key: Key) -> Data:
        """A random contiguous part of the rows, at least one."""
        n = self._part(share)
        offset = rng.bits(key, 1)[0] % (self.n - n + 1)
        position = torch.arange(len(self.rows), device=self.rows.device) + offset
        return self._replace(rows=self.rows[position % len(self.rows)], n=n, least=0)

    def sample(self, size: int, key: Key) -> Batch:
        """One batch drawn without replacement; a client with fewer rows gives all it has."""
        return next(self.shuffle(key).batches(size or len(self.rows), key))

    def batches(self, size: int, key: Key, last: str = "pad") -> Iterator[Batch]:
        """One pass in row order, in batches of exactly `size` (0: all rows at once).

        There are as many as the client with most rows needs. Past its own end a client's rows
        come round again; they weigh nothing.

        Args:
          size: examples per batch.
          key: each batch gets a key of its own from it.
          last: what becomes of a client's unfinished batch: `pad` uses its real examples,
            `wrap` lets repeated examples count, `drop` skips it.
        """
        width = len(self.rows)
        if size == 0:  # everything at once is never a short batch
            size, last = max(width, 1), "pad"
        for number, low in enumerate(range(0, width, size)):
            position = torch.arange(low, low + size, device=self.rows.device)
            index = self.rows[position % self.n.clamp(min=1)]
            real = torch.ones_like(position) if last == "wrap" else position < self.n
            active = low + size <= self.n if last == "drop" else low < self.n
            weight = real.to(torch.get_default_dtype())
            yield Batch(self.x[index], self.y[index], weight, active, rng.fold(key, number))

    def all_active(self, number: int, size: int, last: str) -> bool:
        """Whether every client that shares this call certainly has batch `number`."""
        if size == 0 or last != "drop":
            return number * size < self.least
        return (number + 1) * size <= self.least
