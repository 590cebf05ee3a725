"""One flat store of examples, and for each client the rows that are its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.rng import Key
from fedtailor.core.steps.scan import HostMask, Steps
from fedtailor.core.task import Batch

DRAWN = 1 << 18  # numbers at a time: a pass draws one for every row and step


@dataclass(frozen=True, eq=False)
class Counts:
    """How many rows each client that shares a call has, on the host.

    `vmap` leaves it alone, so engines can plan without asking the device.
    """

    n: Tensor
    val_n: Tensor


def _part(n: Tensor, share: float) -> Tensor:
    """How many rows a share is: at least one, if there are any."""
    return (share * n + 1e-4).long().clamp(min=1).minimum(n)


def _has(low: Tensor, size: int, last: str, n: Tensor) -> Tensor:
    """Whether a client with `n` rows has the batches that begin at rows `low`."""
    return low + size <= n if last == "drop" else low < n


class Data(NamedTuple):
    """One client's view of the store: its training rows and its validation rows, never test rows.

    Attributes:
      x: examples of all clients that share a machine.
      y: their labels.
      rows: numbers of this client's training rows; all but the first `n` are padding.
      n: how many training rows it has.
      val_rows: numbers of its validation rows, padded likewise.
      val_n: how many validation rows it has.
      counts: the same counts for all clients that share the call, where they are known.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    n: Tensor
    val_rows: Tensor
    val_n: Tensor
    counts: Counts | None = None

    @classmethod
    def of(cls, x: Tensor, y: Tensor, val: int = 0) -> Data:
        """One client that has these rows, of which the last `val` are for validation.

        Example:
          >>> data = Data.of(torch.zeros(10, 2), torch.zeros(10).long(), val=3)
          >>> int(data.n), data.val.rows.tolist()
          (7, [7, 8, 9])
        """
        rows = torch.arange(len(y), device=x.device)
        n, val_n = rows.new_tensor(len(y) - val), rows.new_tensor(val)
        return cls(x, y, rows[: len(y) - val], n, rows[len(y) - val :], val_n)

    @property
    def val(self) -> Data:
        """The validation rows, as data of their own."""
        counts = self.counts and Counts(self.counts.val_n, self.counts.val_n)
        return self._replace(rows=self.val_rows, n=self.val_n, counts=counts)

    def _with(self, rows: Tensor, n: Tensor, known: Tensor | None) -> Data:
        counts = None if known is None or self.counts is None else Counts(known, self.counts.val_n)
        return self._replace(rows=rows, n=n, counts=counts)

    def shuffle(self, key: Key) -> Data:
        """The training rows in random order, padding last."""
        width = len(self.rows)
        position = torch.arange(width, device=self.rows.device)
        # 63-bit draws: padding gets the largest value there is
        draw = torch.where(position < self.n, rng.bits(key, width), (1 << 63) - 1)
        return self._replace(rows=self.rows[draw.argsort(stable=True)])

    def first(self, share: float) -> Data:
        """The first part of the rows, at least one."""
        known = None if self.counts is None else _part(self.counts.n, share)
        return self._with(self.rows, _part(self.n, share), known)

    def rest(self, share: float) -> Data:
        """The rows after `first(share)`."""
        skip = _part(self.n, share)
        position = torch.arange(len(self.rows), device=self.rows.device) + skip
        known = None if self.counts is None else self.counts.n - _part(self.counts.n, share)
        return self._with(self.rows[position % len(self.rows)], self.n - skip, known)

    def window(self, share: float, key: Key) -> Data:
        """A random contiguous part of the rows, at least one."""
        n = _part(self.n, share)
        offset = rng.bits(key, 1)[0] % (self.n - n + 1)
        position = torch.arange(len(self.rows), device=self.rows.device) + offset
        known = None if self.counts is None else _part(self.counts.n, share)
        return self._with(self.rows[position % len(self.rows)], n, known)

    def steps(self, size: int, key: Key, last: str = "pad") -> Steps:
        """One pass in row order, in batches of exactly `size` (0: all rows at once).

        There are as many as the client with most rows needs. Past its own end a client's rows
        come round again; they weigh nothing.

        Args:
          size: examples per batch.
          key: each batch gets a key of its own from it.
          last: what becomes of a client's unfinished batch: `pad` uses its real examples,
            `wrap` lets repeated examples count, `drop` skips it.
        """
        width, device = len(self.rows), self.rows.device
        if size == 0:  # everything at once is never a short batch
            size, last = max(width, 1), "pad"
        numbers = range(-(-width // size))
        low = torch.arange(len(numbers), device=device) * size
        position = low[:, None] + torch.arange(size, device=device)
        real = torch.ones_like(position) if last == "wrap" else position < self.n
        known = None
        if self.counts is not None:
            begins = torch.arange(len(numbers)) * size
            known = HostMask(_has(begins, size, last, self.counts.n[:, None]))
        return Steps(
            self.rows[position % self.n.clamp(min=1)],
            real.to(torch.get_default_dtype()),
            _has(low, size, last, self.n),
            rng.fold(key, torch.arange(len(numbers), device=device)),
            tuple(numbers),
            known,
        )

    def draws(self, size: int, keys: Tensor) -> Steps:
        """One batch per key, each drawn without replacement (size 0: all rows).

        A client with fewer rows gives all it has.
        """

        def draw(key: Key) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            one = self.shuffle(key).steps(size, key)
            return one.rows[0], one.weight[0], one.active[0], one.key[0]

        known = None
        if self.counts is not None:
            known = HostMask((self.counts.n > 0)[:, None].expand(-1, len(keys)))
        return Steps(*vmap(draw)(keys), (0,) * len(keys), known)

    def sampled(self, steps: Steps, size: int, most: int) -> Steps:
        """The same steps, each on a Poisson sample: every row by itself, `size` of them on average.

        Steps have room for `most` rows; the rest of a larger sample is lost.

        Args:
          steps: when, and with which keys.
          size: expected rows of a sample; 0 takes all rows.
          most: places of a step.
        """
        width, places = len(self.rows), min(most, len(self.rows)) if size else len(self.rows)
        position = torch.arange(width, device=self.rows.device)
        blank = self.rows[:1].expand(places + 1)  # the last place takes what is not drawn

        def draw(key: Key) -> tuple[Tensor, Tensor]:
            taken = position < self.n
            if size:
                luck = rng.bits(rng.fold(key, -3), width)
                taken = taken & (luck % self.n.clamp(min=1) < size)
            place = torch.where(taken, taken.cumsum(0) - 1, places).clamp(max=places)
            return blank.scatter(0, place, self.rows)[:places], position[:places] < taken.sum()

        at_a_time = max(1, DRAWN // max(width, 1))
        rows, real = vmap(draw, chunk_size=at_a_time)(steps.key)
        return steps._replace(rows=rows, weight=real.to(torch.get_default_dtype()))

    def batches(self, size: int, key: Key, last: str = "pad") -> Iterator[Batch]:
        """The batches of `steps`, with their examples."""
        yield from self.filled(self.steps(size, key, last))

    def filled(self, steps: Steps) -> Iterator[Batch]:
        """The batches of some steps, with their examples."""
        for index, weight, active, key in zip(*steps.tensors, strict=True):
            yield Batch(self.x[index], self.y[index], weight, active, key)
