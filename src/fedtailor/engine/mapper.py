"""How a function of one client meets many. Results are the same; only the time differs.

A mapper takes a function of (server, client id, state, data, test data, turn, fresh) and gives one
of the same arguments stacked over clients (the server is shared).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from .. import tree
from ..data import Data
from ..rng import Turn

Mapper = Callable[[Callable[..., Any]], Callable[..., Any]]

_DATA = Data(None, None, 0, 0, 0, 0, None)  # type: ignore[arg-type]  # axes, not data
_TURN = Turn(0, None, None)  # type: ignore[arg-type]


def vectorised(fn: Callable[..., Any]) -> Callable[..., Any]:
    """All clients at once."""
    return vmap(fn, in_dims=(None, 0, 0, _DATA, _DATA, _TURN, 0), randomness="different")


def _stack(results: list[Any]) -> Any:
    """Results of one client each, joined along a new first axis."""
    first = results[0]
    if isinstance(first, Tensor):
        return torch.stack(results)
    if isinstance(first, dict):
        return {k: _stack([r[k] for r in results]) for k in first}
    return type(first)(*(_stack([r[i] for r in results]) for i in range(len(first))))


def join(parts: list[Any], order: Tensor) -> Any:
    """Stacked results of several chunks, joined on the host and put in order."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([p.cpu() for p in parts])[order]
    return type(first)(*(join([p[i] for p in parts], order) for i in range(len(first))))


def _one(data: Data, i: int) -> Data:
    """One client's data out of a stack, its padding cut off."""
    n, val_n = int(data.n[i]), int(data.val_n[i])
    # a client without rows keeps one of padding, which weighs nothing
    rows, val_rows = data.rows[i, : max(n, 1)], data.val_rows[i, : max(val_n, 1)]
    return Data(data.x, data.y, rows, data.n[i], val_rows, data.val_n[i], n)


def sequential(fn: Callable[..., Any]) -> Callable[..., Any]:
    """One client after another: the plain reference that the fast engines must equal."""

    def run(
        server: Any, ids: Tensor, states: Any, data: Data, test: Data, turns: Turn, fresh: Tensor
    ) -> Any:
        return _stack(
            [
                fn(
                    server,
                    ids[i],
                    tree.index(states, i),
                    _one(data, i),
                    _one(test, i),
                    turns._replace(key=turns.key[i]),
                    fresh[i],
                )
                for i in range(len(ids))
            ]
        )

    return run


MAPPERS: dict[str, Mapper] = {"sequential": sequential, "vectorised": vectorised}
