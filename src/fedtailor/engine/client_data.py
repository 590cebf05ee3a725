"""All clients' data on one machine: a flat store, and whose the rows are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.data import Counts, Data
from fedtailor.engine.loops.torch_internals import changes_of
from fedtailor.engine.transfer import upload


class Rows(NamedTuple):
    """Row numbers of every client, one after the other, on the host."""

    flat: Tensor  # all row numbers
    offset: Tensor  # where each client's begin
    n: Tensor  # how many each client has

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> Rows:
        """From one array of row numbers per client."""
        n = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        flat = torch.from_numpy(np.concatenate([np.asarray(r, dtype=np.int64) for r in rows]))
        return cls(flat, torch.cat([n.new_zeros(1), n.cumsum(0)[:-1]]), n)

    def each(self) -> list[Tensor]:
        """Every client's row numbers."""
        return list(torch.split(self.flat, self.n.tolist()))

    def at(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(padded row numbers, counts) of some clients.

        Padding repeats a client's own rows; a client without any is padded with row 0 of the store.
        """
        n = self.n[ids]
        least, most = (int(count) for count in n.aminmax())
        if not most:
            return n.new_zeros(len(ids), 1), n
        begin, position = self.offset[ids, None], torch.arange(most)
        if least == most:
            return self.flat[begin + position], n
        where = begin + position % n.clamp(min=1)[:, None]
        rows = self.flat[where.clamp(max=len(self.flat) - 1)]
        return torch.where(n[:, None] > 0, rows, 0), n


class ClientData(NamedTuple):
    """The rows of all clients on one machine: one store, and whose its rows are.

    Attributes:
      x: examples of all clients.
      y: labels of all clients.
      train: rows to learn from.
      val: rows that methods may look at to choose (weights, best round).
      test: rows that only evaluation sees.
      names: the clients' names.

    Example:
      >>> rows = [np.array([0, 1]), np.array([2])]
      >>> data = ClientData.of(torch.zeros(3, 4), torch.tensor([0, 1, 1]), rows, rows, rows)
      >>> data.clients, data.names, data.train.n.tolist()
      (2, ('client-0', 'client-1'), [2, 1])
    """

    x: Tensor
    y: Tensor
    train: Rows
    val: Rows
    test: Rows
    names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        train: Sequence[np.ndarray],
        val: Sequence[np.ndarray],
        test: Sequence[np.ndarray],
        names: Sequence[str] | None = None,
    ) -> ClientData:
        """From a store and one array of row numbers per client and part."""
        names = names or [f"client-{i}" for i in range(len(train))]
        rows = [Rows.of(part) for part in (train, val, test)]
        return cls(x, y, rows[0], rows[1], rows[2], tuple(names))

    def pooled(self, share: float, seed: int, outside: Collection[int] = ()) -> PooledData:
        """The data after every client gave a share of its training rows to a common pool.

        Everyone trains on its own rows and those of the others in the pool; nothing else changes.
        Clients `outside` neither give nor get any.
        """
        own = self.train.each()
        given = []
        for i, rows in enumerate(own):
            order = rng.permutation(rng.key(seed, rng.POOL, i), len(rows))
            count = 0 if i in outside else max(1, round(share * len(rows)))
            given.append(rows[order[:count]])
        pool = torch.cat(given)
        all_rows = [
            mine.numpy() if i in outside else np.union1d(mine.numpy(), pool.numpy())
            for i, mine in enumerate(own)
        ]
        each = self.row_bytes
        gave = torch.tensor([len(g) for g in given])
        got = torch.tensor([0 if i in outside else len(pool) for i in range(len(own))])
        with_pool = self._replace(train=Rows.of(all_rows))
        return PooledData(with_pool, (got - gave) * each, gave * each)

    def gathered(self, outside: Collection[int] = ()) -> ClientData:
        """One client that has the training rows of all but those `outside`, and no others.

        Example:
          >>> rows = [np.array([0, 1]), np.array([2]), np.array([3])]
          >>> data = ClientData.of(torch.zeros(4, 2), torch.zeros(4).long(), rows, rows, rows)
          >>> data.gathered(outside={1}).train.flat.tolist()
          [0, 1, 3]
        """
        own = self.train.each()
        rows = torch.cat([mine for i, mine in enumerate(own) if i not in outside]).numpy()
        none = rows[:0]
        return ClientData.of(self.x, self.y, [rows], [none], [none], ["all clients"])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row with its label."""
        return sum(part[0].numel() * part.element_size() for part in (self.x, self.y))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.names)

    def data(self, ids: Tensor) -> Data:
        """What methods see of some clients: training and validation rows."""
        train, val = self.train.at(ids), self.val.at(ids)
        rows, n, val_rows, val_n = upload(self.x.device, *train, *val)
        return Data(self.x, self.y, rows, n, val_rows, val_n, Counts(train[1], val[1]))

    def labels(self, ids: Tensor, which: str) -> tuple[Tensor, Tensor]:
        """(labels, weights) of a part of some clients: padding weighs 0, real rows 1."""
        rows, n = upload(self.x.device, *getattr(self, which).at(ids))
        real = torch.arange(rows.shape[1], device=n.device) < n[:, None]
        return self.y[rows], real.float()

    def part(self, ids: Tensor, which: str) -> Data:
        """One part (`train`, `val` or `test`) of some clients, for evaluation."""
        part: Rows = getattr(self, which)
        rows, n = part.at(ids)
        counts = Counts(n, torch.zeros_like(n))
        rows, n, val_n = upload(self.x.device, rows, n, counts.val_n)
        return Data(self.x, self.y, rows, n, rows[:, :1], val_n, counts)


class LaidRows:
    """Rows of clients on their device, kept for whoever asks for the same clients again.

    Where all clients take part, that is every round. What somebody changed in place is laid anew.

    Example:
      >>> rows = [np.array([0, 1]), np.array([2])]
      >>> world = ClientData.of(torch.zeros(3, 4), torch.arange(3), rows, rows, rows)
      >>> laid, ids = LaidRows(), torch.tensor([0, 1])
      >>> laid.of(world, ids) is laid.of(world, ids.clone())
      True
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[ClientData, Tensor, Data, dict[str, int]]] = {}

    def of(self, client_data: ClientData, ids: Tensor, part: str = "") -> Data:
        """What methods see of some clients, or one part of them, for evaluation."""
        if known := self._last.get(part):
            world, whose, data, before = known
            if world is client_data and torch.equal(whose, ids) and _changes(data) == before:
                return data
        data = client_data.part(ids, part) if part else client_data.data(ids)
        self._last[part] = client_data, ids, data, _changes(data)
        return data


def _changes(data: Data) -> dict[str, int]:
    """How often what is laid for these clients alone was changed in place."""
    return changes_of(
        {"rows": data.rows, "n": data.n, "val_rows": data.val_rows, "val_n": data.val_n}
    )


class PooledData(NamedTuple):
    """Clients' rows after everyone gave some of them to a common pool."""

    client_data: ClientData  # with everyone's training rows after pooling
    down: Tensor  # bytes of the pool that each client downloads, once
    up: Tensor  # bytes that each client gave, once
