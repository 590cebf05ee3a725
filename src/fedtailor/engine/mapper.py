"""How a function of one client meets many. Results are the same; only the time differs.

A mapper takes a function of one client's `ClientContext` and gives one of the contexts of several
clients, stacked (they share the server).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Counts, Data
from fedtailor.core.rng import Turn
from fedtailor.core.steps.run_numbers import with_run_numbers
from fedtailor.core.tree import Tree
from fedtailor.engine.culprit import culprit, may_go_plainer
from fedtailor.engine.loops.torch_internals import map_rows, one_client
from fedtailor.engine.transfer import upload

Found = TypeVar("Found")
log = logging.getLogger("fedtailor")


class ClientContext(NamedTuple):
    """All that is at hand when something is done for a client."""

    server: Tree  # the server's state
    cid: Tensor  # the client's id
    state: Tree  # what it kept from its last turn; zeros if it was never met
    data: Data  # its training and validation rows
    test: Data  # the rows that only evaluation sees
    turn: Turn  # round and the client's random key
    fresh: Tensor  # whether it is met for the first time
    # what the server sends it, where that was made beforehand, for clients of several servers; then
    # `state` is the one that its turn begins with, also if it is met for the first time
    message: Tree | None = None
    numbers: Tree | None = None  # its run's values of options, where runs with several share a call


Mapper = Callable[[Callable[[ClientContext], Any]], Callable[[ClientContext], Any]]


def _own(client: ClientContext) -> ClientContext:
    """What each client has of its own: a context without what all of them share."""
    nobody: Any = None
    shared = {"x": nobody, "y": nobody, "counts": None}
    data, test = client.data._replace(**shared), client.test._replace(**shared)
    turn = client.turn._replace(round=nobody, rounds=nobody, ledger=None)
    return client._replace(server=nobody, data=data, test=test, turn=turn)


def _with_shared(own: ClientContext, client: ClientContext) -> ClientContext:
    """The whole context again."""
    data, test = (
        part._replace(x=whole.x, y=whole.y, counts=whole.counts)
        for part, whole in ((own.data, client.data), (own.test, client.test))
    )
    turn = client.turn._replace(key=own.turn.key, lr=own.turn.lr)
    return own._replace(server=client.server, data=data, test=test, turn=turn)


def flat_parts(value: Any) -> list[Any]:
    """All that stands in trees and tuples, in order."""
    if isinstance(value, (dict, tuple)):
        parts = value.values() if isinstance(value, dict) else value
        return [leaf for part in parts for leaf in flat_parts(part)]
    return [] if value is None else [value]


def with_parts(like: Any, left: Iterator[Any]) -> Any:
    """What `flat_parts` was given, with other values in it."""
    if isinstance(like, dict):
        return {name: with_parts(part, left) for name, part in like.items()}
    if isinstance(like, tuple):
        parts = [with_parts(part, left) for part in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return None if like is None else next(left)


def _with_own_numbers(fn: Callable[[ClientContext], Any]) -> Callable[[ClientContext], Any]:
    def own(client: ClientContext) -> Any:
        with with_run_numbers(client.numbers or {}):
            return fn(client)

    return own


def vectorised(fn: Callable[[ClientContext], Any]) -> Callable[[ClientContext], Any]:
    """All clients at once."""
    own = _with_own_numbers(fn)

    def everyone(client: ClientContext) -> Any:
        # a flat list of tensors: torch's walks over trees take longer than a small step
        parts, found = _own(client), []

        def of_flat(*tensors: Tensor) -> tuple[Any, ...]:
            found.append(own(_with_shared(with_parts(parts, iter(tensors)), client)))
            return tuple(flat_parts(found[0]))

        mapped = map_rows(of_flat, flat_parts(parts))
        return with_parts(found[0], iter(mapped))

    return everyone


def _stack(results: list[Any]) -> Any:
    """Results of one client each, joined along a new first axis."""
    leaves = zip(*map(flat_parts, results), strict=True)
    return with_parts(results[0], (torch.stack(_alike(same, 0)) for same in leaves))


def concatenate(parts: list[Any], order: Tensor, device: torch.device | str = "cpu") -> Any:
    """Stacked results of several chunks, joined on a device and put in order."""
    (place,) = upload(torch.device(device), order)

    def whole(same: tuple[Tensor, ...]) -> Tensor:
        here = tuple(leaf.to(device) for leaf in same)
        return (here[0] if len(here) == 1 else torch.cat(_alike(here, 1)))[place]

    return with_parts(parts[0], map(whole, zip(*map(flat_parts, parts), strict=True)))


def _alike(tensors: tuple[Tensor, ...], axis: int) -> tuple[Tensor, ...]:
    """Tensors padded with zeros along an axis of rows, of which some clients have fewer."""
    if tensors[0].ndim <= axis or len({t.shape for t in tensors}) == 1:
        return tensors
    most = max(t.shape[axis] for t in tensors)
    after = tensors[0].ndim - axis - 1
    return tuple(F.pad(t, (0, 0) * after + (0, most - t.shape[axis])) for t in tensors)


def common_notes(chunks: list[Tree], order: Tensor) -> Tree:
    """Notes of all chunks, joined; groups that note other things are left out of each other's."""
    if not chunks:
        return {}
    common = set.intersection(*(set(tree.flatten(chunk)) for chunk in chunks))
    flat = [{k: v for k, v in tree.flatten(chunk).items() if k in common} for chunk in chunks]
    shaped = {k for k in common if len({chunk[k].shape[1:] for chunk in flat}) == 1}
    return {
        k: torch.cat([chunk[k].detach().cpu() for chunk in flat])[order] for k in sorted(shaped)
    }


def _one(data: Data, i: int) -> Data:
    """One client's data out of a stack, its padding cut off."""
    n, val_n = int(data.n[i]), int(data.val_n[i])
    # a client without rows keeps one of padding, which weighs nothing
    rows, val_rows = data.rows[i, : max(n, 1)], data.val_rows[i, : max(val_n, 1)]
    counts = Counts(torch.tensor([n]), torch.tensor([val_n]))
    return Data(data.x, data.y, rows, data.n[i], val_rows, data.val_n[i], counts)


def _alone(client: ClientContext, i: int) -> ClientContext:
    """One client's context out of a stack."""
    turn, message, numbers = client.turn, client.message, client.numbers
    return ClientContext(
        client.server,
        client.cid[i],
        tree.index(client.state, i),
        _one(client.data, i),
        _one(client.test, i),
        turn._replace(key=turn.key[i], lr=None if turn.lr is None else turn.lr[i]),
        client.fresh[i],
        None if message is None else tree.index(message, i),
        None if numbers is None else tree.index(numbers, i),
    )


def sequential(fn: Callable[[ClientContext], Any]) -> Callable[[ClientContext], Any]:
    """One client after another: the plain reference that the fast engines must equal."""
    own = _with_own_numbers(fn)

    def everyone(client: ClientContext) -> Any:
        with one_client():
            return _stack([own(_alone(client, i)) for i in range(len(client.cid))])

    return everyone


MAPPERS: dict[str, Mapper] = {"sequential": sequential, "vectorised": vectorised}


class EngineMapper:
    """Maps with one engine: all clients at once, or, where that is not possible, one by one."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._one_by_one: set[Any] = set()  # what cannot be mapped over clients

    def __call__(self, fn: Callable[[ClientContext], Found], stacked: ClientContext) -> Found:
        """`fn` of every client; what cannot be mapped is done one after another, for good."""
        what = getattr(fn, "__code__", fn)  # functions are made anew for every chunk
        if self._engine == "sequential" or what in self._one_by_one:
            return MAPPERS["sequential"](fn)(stacked)  # type: ignore[no-any-return]
        try:
            return MAPPERS["vectorised"](fn)(stacked)  # type: ignore[no-any-return]
        except Exception as error:  # operators refuse to be mapped in any way
            if not may_go_plainer(error):
                raise
            reason = culprit(error)
        # fails in the same way if it is nobody's mapping
        found: Found = MAPPERS["sequential"](fn)(stacked)
        self._one_by_one.add(what)
        log.warning(
            "clients are played one after another, which is slower: what they do cannot be mapped "
            "over all of them: %s",
            reason,
        )
        return found
