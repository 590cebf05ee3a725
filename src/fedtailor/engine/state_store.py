"""Where the clients' states are kept between their turns."""

from __future__ import annotations

import itertools
import math
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree
from fedtailor.engine.memory import free_memory
from fedtailor.engine.transfer import Prefetch, land, new_stream, upload

StatePlace = Literal["device", "host", "disk"]
STATES = "client-states"  # a run's folder for states on disk, there while it is played


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
    Files are made when the first row is asked for, so that a run which is refused leaves none.

    Args:
      clients: how many rows.
      like: one client's state, for names, shapes and types.
      device: where states are needed.
      place: where they are kept: on that `device`, in `host` memory, or in files on `disk`.
      folder: for its files alone, made and removed here; a temporary folder if none is given.
    """

    def __init__(
        self,
        clients: int,
        like: Tree,
        device: torch.device,
        place: StatePlace = "device",
        folder: Path | None = None,
    ) -> None:
        self.device, self.place, self.folder = device, place, folder
        self.met = torch.zeros(clients, dtype=torch.bool)
        self.like: Tree = tree.map(lambda p: p.new_zeros(0, *p.shape), like)
        self._remove: weakref.finalize[..., StateStore] | None = None
        self._rows = None if place == "disk" else tree.map(self._allocate, self.like)
        apart = place != "device" and device.type == "cuda"
        self._copying = new_stream(device) if apart else None
        self._ahead: Prefetch | None = None

    @property
    def _where(self) -> torch.device:
        return self.device if self.place == "device" else torch.device("cpu")

    def _allocate(self, like: Tensor) -> Tensor:
        return like.new_zeros(len(self.met), *like.shape[1:], device=self._where)

    def _make_files(self) -> Tree:
        folder = self.folder or Path(tempfile.mkdtemp(prefix="fedtailor-states-"))
        _remove_files(folder)  # of a run that was killed
        # also where nobody closes the store: after an error, or when the process ends
        self._remove = weakref.finalize(self, _remove_files, folder)
        folder.mkdir(parents=True, exist_ok=True)
        number = itertools.count(1)

        def make(like: Tensor) -> Tensor:
            shape = (len(self.met), *like.shape[1:])
            path, size = folder / f"{next(number)}.bin", math.prod(shape)
            flat = torch.from_file(str(path), shared=True, size=max(size, 1), dtype=like.dtype)
            return flat[:size].view(shape)

        return tree.map(make, self.like)

    @property
    def rows(self) -> Tree:
        """All rows, where they are kept."""
        if self._rows is None:
            self._rows = self._make_files()
        return self._rows

    def _upload(self, ids: Tensor) -> Tensor:
        """Numbers of rows, where the rows are; many methods' clients keep none."""
        return upload(self._where, ids)[0] if tree.leaves(self.like) else ids

    def get(self, ids: Tensor) -> Tree:
        """The rows of some clients, on the compute device; a client not yet met has zeros."""
        if self._copying is None:
            there = self._upload(ids)
            return tree.map(lambda p: p[there], self.rows)
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

    def put(self, ids: Tensor, rows: Tree) -> None:
        """Keeps new rows for some clients."""
        if self._ahead is not None and bool(torch.isin(self._ahead.ids, ids).any()):
            self._ahead = None  # it is what these clients had before
        there = self._upload(ids)
        tree.map(
            lambda old, new: old.index_copy_(0, there, new.to(old.device)),
            self.rows,
            rows,
        )
        self.met[ids] = True

    def stage(self, ids: Tensor, rows: Tree) -> Callable[[], Tree]:
        """Holds new rows until a round is whole, for `commit`.

        On disk there may be more than fits in memory: such rows are put there at once (a round
        that breaks ends the run, and the last checkpoint counts).
        """
        landing = land(rows, self._copying)
        if self.place != "disk":
            return landing
        self.put(ids, landing())
        return dict

    def commit(self, ids: Tensor, rows: Tree) -> None:
        """Keeps what was staged."""
        if self.place != "disk":
            self.put(ids, rows)

    def close(self) -> None:
        """Removes the files, if there are any."""
        self._ahead = None
        if self._remove is not None:
            self._rows = {}
            self._remove()


def _remove_files(folder: Path) -> None:
    """Removes what a store makes, and folders of stores that are empty then; nothing else."""
    with suppress(OSError):
        for path in folder.glob("*.bin"):
            path.unlink()
        folder.rmdir()
        if folder.parent.name == STATES:
            folder.parent.rmdir()
