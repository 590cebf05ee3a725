"""Parts of a federation for workers: whose clients are whose, and the rows that they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.engine.client_data import ClientData, Rows
from fedtailor.engine.ray.arrays import Arrays, from_arrays, to_arrays

PARTS = ("train", "val", "test")


def assign_clients(groups: Sequence[Tensor], sizes: Tensor, workers: int) -> list[Tensor]:
    """Ids for each worker, ascending.

    Each has about equally many of each group (`groups`: ids by network), with about equally many
    training rows (`sizes`: of every client). There are no more workers than clients.
    """
    order = torch.cat([ids[sizes[ids].argsort(stable=True, descending=True)] for ids in groups])
    turns = torch.arange(len(order))
    slot, lap = turns % workers, turns // workers
    # back and forth, so that nobody always gets the larger one
    slot = torch.where(lap % 2 == 0, slot, workers - 1 - slot)
    return [order[slot == i].sort().values for i in range(workers)]


class Shard(NamedTuple):
    """The data of some clients as plain arrays; ids stay those of the whole federation."""

    store: Arrays
    names: tuple[str, ...]

    def client_data(self, device: torch.device | str) -> ClientData:
        """The federation that a worker sees: all others have no rows."""
        found = from_arrays(self.store, device)
        train, val, test = (
            Rows(*(found[part][name].cpu() for name in Rows._fields)) for part in PARTS
        )
        return ClientData(found["x"], found["y"], train, val, test, self.names)


def shard(client_data: ClientData, ids: Tensor) -> Shard:
    """What a worker needs for the clients `ids`, ascending."""
    here = torch.zeros(client_data.clients, dtype=torch.bool)
    here[ids] = True
    flat, kept = {}, {}
    for name in PARTS:
        rows: Rows = getattr(client_data, name)
        own = torch.split(rows.flat.cpu(), rows.n.tolist())
        flat[name] = torch.cat([own[i] for i in ids.tolist()])
        n = torch.where(here, rows.n, 0)
        kept[name] = {"offset": n.cumsum(0) - n, "n": n}
    used = torch.from_numpy(np.unique(torch.cat(list(flat.values())).numpy()))
    store = {
        "x": client_data.x.cpu()[used],
        "y": client_data.y.cpu()[used],
        **{p: {"flat": torch.searchsorted(used, flat[p]), **kept[p]} for p in PARTS},
    }
    return Shard(to_arrays(store), client_data.names)
