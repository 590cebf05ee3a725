"""Rows on their way between the host and a GPU, while the GPU goes on working.

Only what is on its way lies in pinned memory: a chunk or two, which torch keeps for the next ones.
The rows themselves stay in ordinary memory, which costs nothing before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream for copies, beside the one that computes."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def results_of_now(
    device: torch.device, stream: torch.cuda.Stream | None
) -> Callable[[], AbstractContextManager[Any]]:
    """Lets results of now be looked at, on a stream, while a GPU goes on with what it gets next.

    Returns:
      What makes such a context. Who asks for a number within waits for these results alone.
    """
    if stream is None:
        return nullcontext
    done = torch.cuda.current_stream(device).record_event()

    def looking() -> AbstractContextManager[Any]:
        stream.wait_event(done)
        return torch.cuda.stream(stream)

    return looking


def _pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory that a GPU can reach by itself, or ordinary memory where there is no more of it."""
    with suppress(RuntimeError):
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    return torch.empty(shape, dtype=dtype)


def upload(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Whole numbers of the host on a device, in one copy, for which the caller does not wait.

    A copy out of ordinary memory would wait for all that a GPU still has to do.
    """
    if device.type != "cuda":
        return list(tensors)
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    there = _pinned(tuple(flat.shape), flat.dtype).copy_(flat).to(device, non_blocking=True)
    parts = torch.split(there, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _upload(kept: Tensor, ids: Tensor, device: torch.device) -> Tensor:
    some = _pinned((len(ids), *kept.shape[1:]), kept.dtype)
    torch.index_select(kept, 0, ids, out=some)
    # torch gives the pinned memory away only after the copy is over
    return some.to(device, non_blocking=True)


class Prefetch:
    """Those rows `ids` of `kept` that are being copied from the host to a GPU, on a stream."""

    def __init__(
        self, kept: Tree, ids: Tensor, device: torch.device, stream: torch.cuda.Stream
    ) -> None:
        self.ids = ids
        with torch.cuda.stream(stream):
            self._rows = tree.map(lambda p: _upload(p, ids, device), kept)
        self._arrived = stream.record_event()

    def rows(self) -> Tree:
        """The rows; what is computed with them waits for them, the caller does not."""
        now = torch.cuda.current_stream(self._arrived.device)
        now.wait_event(self._arrived)
        for leaf in tree.leaves(self._rows):
            leaf.record_stream(now)  # their memory belongs to the other stream
        return self._rows


class Writeback:
    """Rows that are being copied from a GPU to the host, on a stream."""

    def __init__(self, rows: Tree, stream: torch.cuda.Stream) -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            self._rows = tree.map(self._download, rows)
        for leaf in tree.leaves(rows):
            if leaf.is_cuda:
                leaf.record_stream(stream)
        self._arrived: torch.cuda.Event | None = stream.record_event()

    @staticmethod
    def _download(leaf: Tensor) -> Tensor:
        if not leaf.is_cuda:
            return leaf
        return _pinned(tuple(leaf.shape), leaf.dtype).copy_(leaf, non_blocking=True)

    def rows(self) -> Tree:
        """The rows in ordinary memory, once they are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._rows = tree.map(torch.clone, self._rows)
            self._arrived = None
        return self._rows


def land(rows: Tree, stream: torch.cuda.Stream | None) -> Callable[[], Tree]:
    """Begins to bring rows to the host, on a stream; gives them when they have arrived.

    Without a stream they are where they have to be.
    """
    return (lambda: rows) if stream is None else Writeback(rows, stream).rows
