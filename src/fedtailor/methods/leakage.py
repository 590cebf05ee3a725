"""What tells of a client's rows otherwise than through noisy gradients.

A method is played with DP-SGD whose gradients are those of blank rows: with a client's rows as they
are, and with others. Noise and samples are the same. So whatever differs tells of the rows, and no
noise covers it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome
from fedtailor.core.rng import Turn
from fedtailor.core.task import Task
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientData, Simulation

CLIENTS, ROWS, ROUNDS = 3, 4, 2  # what was kept of rows is sent a round later
PublicRows = Literal["nothing", "validation"]  # which rows need no protection


class Leaks(NamedTuple):
    """Names of what depends on rows: `sent.…` (uploads), `noted.…` (records), `model.…`."""

    train: tuple[str, ...] = ()
    val: tuple[str, ...] = ()


def leaks_of(method: Method, task: Task, client_data: ClientData) -> Leaks:
    """What of a method, built with noise, would not be protected by it.

    Args:
      method: built with a recipe that has `dp_clip` and `dp_noise`.
      task: its network.
      client_data: some rows of it are played with.

    Example:
      >>> from fedtailor.core.training import Recipe
      >>> from fedtailor.methods import fedavg
      >>> from fedtailor.methods.check import toy_federation, toy_task
      >>> task, recipe = toy_task(), Recipe(batch=4, dp_clip=1.0, dp_noise=1.0)
      >>> leaks_of(fedavg(task, recipe=recipe), task, toy_federation())
      Leaks(train=(), val=())
    """
    plain = _played(method, task, _world(client_data))

    def found(*changed: str) -> tuple[str, ...]:
        return _different(plain, _played(method, task, _world(client_data, *changed)))

    return Leaks(found("train"), found("val")) if found("train", "val") else Leaks()


def refuse_leaks(name: str, method: Method, leaks: Leaks, public: PublicRows) -> None:
    """Refuses a method that would tell of rows that its noise does not cover.

    Raises:
      BadInput: with what leaks.
    """
    if leaks.train:
        raise BadInput(
            f"DP-SGD with '{name}': {_some(leaks.train)} depends on training rows without noise, "
            "so there is no guarantee: choose another method"
        )
    if (method.validates or leaks.val) and public != "validation":
        what = f"{_some(leaks.val)} depends" if leaks.val else "what it learns depends"
        raise BadInput(
            f"DP-SGD with '{name}': {what} on validation rows without noise: choose another "
            "method, or say --dp-public validation if these rows need no protection"
        )


def _some(names: tuple[str, ...]) -> str:
    """The first of some names, and how many there are besides."""
    return f"'{names[0]}'" + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _world(data: ClientData, *changed: str) -> ClientData:
    """A few rows of a few clients; the first client has others where that is asked for.

    There are no other rows: what is made of all of them differs, too.
    """
    parts: dict[str, list[Any]] = {}
    stored: list[Tensor] = []
    for name in ("train", "val"):
        flat = getattr(data, name).flat
        each = min(ROWS, len(flat) // (CLIENTS + 1))
        dealt = [flat[i * each : (i + 1) * each] for i in range(CLIENTS + 1)]
        stored += [dealt[CLIENTS if name in changed else 0], *dealt[1:CLIENTS]]
        begin = sum(map(len, stored[:-CLIENTS]))
        parts[name] = [np.arange(begin + i * each, begin + (i + 1) * each) for i in range(CLIENTS)]
    train, val, rows = parts["train"], parts["val"], torch.cat(stored)
    return ClientData.of(data.x[rows], data.y[rows], train, val, val)


def _played(method: Method, task: Task, world: ClientData) -> list[Tree]:
    """All that leaves the clients, is recorded of them, or is what they predict with."""

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        out = method.client(msg, state, data, _blind(turn))
        weight = torch.as_tensor(out.upload.weight) + torch.zeros_like(data.n)
        sent = out.upload.mean | out.upload.each | {"weight": weight}
        return out._replace(notes=_named(sent=sent, noted=out.notes, model=out.model))

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Any:
        return method.personal(msg, state, data, _blind(turn))

    watched = method._replace(client=client, personal=personal)
    sim = Simulation(watched, world, task, rounds=ROUNDS)
    found: list[Tree] = []
    for _ in range(ROUNDS):
        found.append(sim.step(torch.arange(CLIENTS), on_nan="skip").notes)
    found += [_named(model=model) for _, model in sim.models()]
    sim.close()
    return found


def _named(**parts: Tree) -> Tree:
    """Leaves of several trees by dotted names."""
    flat = tree.flatten(parts)
    return {k.replace("/", "."): leaf for k, leaf in flat.items() if not k.endswith("/")}


def _blind(turn: Turn) -> Turn:
    assert turn.ledger is not None
    turn.ledger.blind = True
    return turn


def _different(one: list[Tree], two: list[Tree]) -> tuple[str, ...]:
    """The names that differ where first something sent does, or else anything."""
    found = [
        tuple(sorted((k for k in a if not _same(a[k], b[k])), key=_worst))
        for a, b in zip(one, two, strict=True)
    ]
    where = [names for names in found if names]
    sent = [names for names in where if names[0].startswith("sent.")]
    return (sent or where or [()])[0]


def _worst(name: str) -> bool:
    return not name.startswith("sent.")


def _same(a: Tensor, b: Tensor) -> bool:
    if a.device.type == "cpu":
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-5, atol=1e-8)  # sums may be in any order
