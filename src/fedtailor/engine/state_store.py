"""Where the clients' states are kept between their turns."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree
from fedtailor.engine.memory import free_memory
from fedtailor.engine.transfer import Prefetch, Writeback, new_stream

StatePlace = Literal["device", "host", "disk"]


def choose_place(row_bytes: int, clients: int, device: torch.device) -> StatePlace:
    """The nearest place that holds all states and leaves room to work."""
    need = row_bytes * clients
    if need < 0.4 * free_memory(device):
        return "device"
    return "host" if need < 0.6 * free_memory(torch.device("cpu")) else "disk"


class StateStore:
    """One row of state per client, made when the client is first met.

    What a round costs depends on the clients that take part, not on how many there are: rows that
    nobody touched take no memory on the host or on disk, and nothing ever walks over all of them.

    Args:
      clients: how many rows.
      like: one client's state, for names, shapes and types.
      device: where states are needed.
      place: where they are kept: on that `device`, in `host` memory, or in files on `disk`.
      folder: for files; a temporary folder if none is given.
    """

    def __init__(
        self,
        clients: int,
        like: Tree,
        device: torch.device,
        place: StatePlace = "device",
        folder: Path | None = None,
    ) -> None:
        self.device, self.place = device, place
        self.met = torch.zeros(clients, dtype=torch.bool)
        self._files = Path(tempfile.mkdtemp(dir=folder)) if place == "disk" else None
        self._count = 0
        self.rows: Tree = tree.map(lambda p: self._allocate(clients, p), like)
        apart = place != "device" and device.type == "cuda"
        self._copying = new_stream(device) if apart else None
        self._ahead: Prefetch | None = None

    def _allocate(self, clients: int, like: Tensor) -> Tensor:
        shape = (clients, *like.shape)
        if self._files is None:
            where = self.device if self.place == "device" else torch.device("cpu")
            return torch.zeros(shape, dtype=like.dtype, device=where)
        self._count += 1
        numel = max(clients * like.numel(), 1)
        flat = torch.from_file(
            str(self._files / f"{self._count}.bin"), shared=True, size=numel, dtype=like.dtype
        )
        return flat[: clients * like.numel()].view(shape)

    def get(self, ids: Tensor) -> Tree:
        """The rows of some clients, on the compute device; a client not yet met has zeros."""
        if self._copying is None:
            return tree.map(lambda p: p[ids.to(p.device)], self.rows)
        ahead, self._ahead = self._ahead, None
        if ahead is None or not torch.equal(ahead.ids, ids):
            ahead = Prefetch(self.rows, ids, self.device, self._copying)
        return ahead.rows()

    def expect(self, ids: Tensor) -> None:
        """Says who comes next: the device can have their rows by the time they are asked for."""
        self._ahead = None
        if self._copying is not None and len(ids):
            try:
                self._ahead = Prefetch(self.rows, ids, self.device, self._copying)
            except torch.OutOfMemoryError:
                self._ahead = None  # they come when they are asked for

    def land(self, rows: Tree) -> Callable[[], Tree]:
        """Begins to bring new rows from the device to where they are kept.

        Returns:
          What gives the rows there, once they have arrived. They are not kept yet.
        """
        if self._copying is None:
            return lambda: rows
        return Writeback(rows, self._copying).rows

    def put(self, ids: Tensor, rows: Tree) -> None:
        """Keeps new rows for some clients."""
        if self._ahead is not None and bool(torch.isin(self._ahead.ids, ids.cpu()).any()):
            self._ahead = None  # it is what these clients had before
        tree.map(
            lambda old, new: old.index_copy_(0, ids.to(old.device), new.to(old.device)),
            self.rows,
            rows,
        )
        self.met[ids.cpu()] = True

    def close(self) -> None:
        """Removes the files, if there are any."""
        self._ahead = None
        if self._files is not None:
            self.rows = {}
            shutil.rmtree(self._files, ignore_errors=True)
