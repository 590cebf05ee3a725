"""Partial sharing: some parameters are learnt together, the others stay with their client.

FedRep, FedAlt, FedSim, FedPer and their like differ in what is personal and in which phases a
client trains; the rest is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Download, Method, Outcome, Upload, beginning, by_size
from fedtailor.core.objectives import Gradient, as_is
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.moves import part_way

Weighting = Literal["data", "uniform", "batches"]


class Phase(NamedTuple):
    """A stretch of local training in which some parameters are fixed.

    Attributes:
      train: names that are trained while all others are fixed.
      epochs: for how long.
      gradient: how a step's direction comes from the gradient.
      steps: if not 0, this many random batches instead of epochs.
    """

    train: Sequence[str]
    epochs: int
    gradient: Gradient = as_is
    steps: int = 0


def all_names(task: Task) -> tuple[str, ...]:
    """Every name of a task, from input to output."""
    return tuple(name for block in task.blocks for name in block)


def lower_blocks(task: Task, count: int) -> tuple[str, ...]:
    """The names of the `count` blocks next to the input; 0 means the lower half."""
    count = count or max(1, len(task.blocks) // 2)
    return tuple(name for block in task.blocks[:count] for name in block)


def head_names(task: Task, head_blocks: int) -> tuple[str, ...]:
    """The names of a head that is so many blocks next to the output.

    Raises:
      BadInput: the network has fewer.
    """
    if head_blocks > len(task.blocks):
        raise BadInput(
            f"head_blocks is {head_blocks}, but the network has {len(task.blocks)} blocks: "
            f"give {max(len(task.blocks) - 1, 1)} or fewer"
        )
    return task.top(head_blocks)


def upper_on_server(task: Task, whole: Task, count: int) -> dict[str, str]:
    """What the server calls the upper blocks of a client whose network is another one.

    Args:
      task: the client's network.
      whole: the server's.
      count: how many blocks next to the output are one for all.

    Raises:
      BadInput: they do not look alike.
    """
    names = [t.top(count) for t in (task, whole)]
    if task is whole:
        return dict(zip(*names, strict=True))
    mine, theirs = (
        [tuple(v.shape) for v in tree.pick(t.init(rng.key(0)), of).values()]
        for t, of in zip((task, whole), names, strict=True)
    )
    if mine != theirs:
        raise BadInput(
            f"one head for all, but heads of clients have shapes {mine} and {theirs}: "
            "choose networks with equal last layers"
        )
    return dict(zip(*names, strict=True))


def matched(task: Task, whole: Task) -> dict[str, str]:
    """Names of a client's network and those in the server's: block i with block i, if alike.

    Args:
      task: the client's network.
      whole: the server's.

    Example:
      >>> from torch import nn
      >>> from fedtailor.core.task import classification
      >>> small = classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)))
      >>> large = classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
      >>> matched(small, large)
      {'0.weight': '0.weight', '0.bias': '0.bias'}
    """
    mine, theirs = (t.init(rng.key(0)) for t in (task, whole))
    names: dict[str, str] = {}
    for own, other in zip(task.blocks, whole.blocks, strict=False):
        shapes = [[p[k].shape for k in block] for p, block in ((mine, own), (theirs, other))]
        if shapes[0] == shapes[1]:
            names |= dict(zip(own, other, strict=True))
    return names


def shared_by_all(task: Task, count: int, networks: Sequence[Task]) -> dict[str, str]:
    """What is learnt together, and what the server calls it: lower blocks, or common ones.

    Args:
      task: the client's network.
      count: how many blocks from the input on are shared; 0 takes the lower half or, where
        networks differ, every block that all of them have.
      networks: those of all clients, the server's first, where they differ.

    Raises:
      BadInput: networks differ and have not so much in common, or nothing else.
    """
    if not networks:
        return {name: name for name in lower_blocks(task, count)}
    there = [set(matched(network, networks[0]).values()) for network in networks]
    common = set.intersection(*there)
    names = {k: v for k, v in matched(task, networks[0]).items() if v in common}
    if not names:
        raise BadInput(
            "the clients' networks have no block in common, so nothing is left to share: choose "
            "networks that begin alike, such as mlp and mlp-2"
        )
    if all(len(all_names(network)) == len(common) for network in networks):
        raise BadInput("the clients' networks are all alike: leave --models out")
    if count:
        lower = lower_blocks(task, count)
        names = {k: v for k, v in names.items() if k in lower}
        alike = sum(set(block) <= names.keys() for block in task.blocks[:count])
        if alike < count:
            raise BadInput(
                f"shared_blocks is {count}, but of the first {count} blocks {alike} are alike in "
                "all networks: give fewer, or 0 for all that are"
            )
    return names


def _weight(data: Data, weighting: Weighting, recipe: Recipe) -> Tensor:
    if weighting == "batches":
        size = recipe.batch or len(data.rows)
        return ((data.n + size - 1) // size).to(torch.get_default_dtype())
    return by_size(data, weighting)


def partial(
    task: Task,
    personal: Sequence[str],
    phases: Sequence[Phase],
    *,
    recipe: Recipe,
    weighting: Weighting = "data",
    server_lr: float = 1.0,
    stateless: bool = False,
    on_server: dict[str, str] | None = None,
) -> Method:
    """A method whose clients keep the parameters `personal` and share the others.

        (u, v_k) ← the phases, from the received u and the client's own v_k
        u ← u − η_s Σ_k Ω_k (u − u_k)

    Running statistics in u are averaged, whatever η_s is.

    Args:
      task: the network.
      personal: names that never travel.
      phases: what a client trains, one after the other, on the same batch orders.
      recipe: how it trains; a phase's epochs replace the recipe's.
      weighting: a client's weight: `data` rows, `uniform`, or number of local `batches`.
      server_lr: η_s.
      stateless: every round the personal part starts again from its first value.
      on_server: what the server calls a shared parameter, where that is another name.

    Raises:
      BadInput: the network is one block, and it would be personal.
    """
    mine = set(personal)
    shared = [name for name in all_names(task) if name not in mine]
    there = on_server or {name: name for name in shared}
    if not shared and len(task.blocks) == 1:
        raise BadInput(
            "nothing is left to share: the network is one block, and that is personal: choose a "
            "network of several, or another method"
        )

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {"shared": tree.pick(initial, shared)}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"shared": {name: server["shared"][there[name]] for name in shared}}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = tree.pick(initial, personal)
        return {"personal": own} | ({"first": own} if stateless else {})

    def trained_with(state: Tree, training: bool) -> Params:
        own: Params = state["first"] if stateless and training else state["personal"]
        return own

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params = beginning(msg, msg["shared"]) | trained_with(state, True)
        for phase in phases:
            if phase.epochs:
                params = fit(
                    task,
                    params,
                    data,
                    turn,
                    replace(recipe, epochs=phase.epochs, steps=phase.steps or recipe.steps),
                    train=phase.train,
                    gradient=phase.gradient,
                    given=msg.get("given"),
                )
        trained = tree.pick(params, shared)
        kept = state | {"personal": tree.pick(params, personal)}
        upload = Upload({"shared": trained}, _weight(data, weighting, recipe))
        return Outcome(kept, upload, params)

    def renamed(msg: Tree, upload: Upload) -> Upload:
        named = {there[k]: v for k, v in upload.mean["shared"].items()}
        return upload._replace(mean={"shared": named})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        new = up.mean["shared"]
        old = tree.pick(server["shared"], new)
        return {"shared": server["shared"] | part_way(task, old, new, server_lr)}

    def personal_model(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return beginning(msg, msg["shared"]) | trained_with(state, False)

    method = Method(
        init,
        send,
        start,
        client,
        receive,
        personal_model,
        task.predict,
        download=Download("shared", client, trained_with),
        common="shared",
    )
    return method._replace(admit=renamed) if on_server else method
