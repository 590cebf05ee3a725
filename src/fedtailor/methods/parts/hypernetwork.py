"""Networks that write other networks' parameters from an embedding per client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.rng import Key
from fedtailor.core.tree import Params, Tree


class Writer(NamedTuple):
    """A network that writes other networks' parameters.

    Attributes:
      init: (number of clients, common initial parameters, key) -> the hypernetwork with everyone's
        embeddings.
      write: (hypernetwork, client id) -> that client's parameters.
      embeddings: the hypernetwork's entries that have a row per client.
    """

    init: Callable[[int, Params, Key], Tree]
    write: Callable[[Tree, Tensor], Params]
    embeddings: tuple[str, ...]

    def only_of(self, ids: Tensor, new: Tree, old: Tree) -> Tree:
        """`new`, but embeddings of clients that are not among `ids` as they were."""
        before, after = (tree.pick(net, self.embeddings) for net in (old, new))
        return new | tree.put(before, ids, tree.index(after, ids))


def linear(key: Key, inputs: int, outputs: int) -> Tree:
    """A fully connected layer, initialised as `nn.Linear` is."""
    for_weight, for_bias = rng.split(key)
    bound = inputs**-0.5
    weight = (2 * rng.uniform(for_weight, outputs, inputs) - 1) * bound
    return {"weight": weight, "bias": (2 * rng.uniform(for_bias, outputs) - 1) * bound}


def apply_linear(layer: Tree, x: Tensor) -> Tensor:
    """The layer's output."""
    out: Tensor = layer["weight"] @ x + layer["bias"]
    return out


def mlp_writer(shapes: dict[str, tuple[int, ...]], hidden: int, depth: int, embed: int) -> Writer:
    """Embedding, `depth` hidden layers of width `hidden` with ReLU, one linear head per parameter.

    Args:
      shapes: of the parameters that are written, by name.
      hidden: width of the hidden layers.
      depth: how many follow the embedding's own layer.
      embed: size of an embedding; 0 takes 1 + a quarter of the number of clients.
    """

    def init(clients: int, like: Params, key: Key) -> Tree:
        size = embed or 1 + clients // 4
        for_embed, for_body, for_heads = rng.split(key, 3)
        return {
            "embed": rng.normal(for_embed, clients, size),
            "body": {
                str(i): linear(rng.fold(for_body, i), hidden if i else size, hidden)
                for i in range(depth + 1)
            },
            "heads": {
                k: linear(rng.fold(for_heads, i), hidden, math.prod(shape))
                for i, (k, shape) in enumerate(shapes.items())
            },
        }

    def write(net: Tree, cid: Tensor) -> Params:
        z = apply_linear(net["body"]["0"], net["embed"][cid])
        for i in range(1, depth + 1):
            z = apply_linear(net["body"][str(i)], z.relu())
        return {k: apply_linear(net["heads"][k], z).view(shapes[k]) for k in shapes}

    return Writer(init, write, ("embed",))


def table_writer(names: tuple[str, ...]) -> Writer:
    """No network at all: a client's embedding is its parameters. A yardstick for the others."""

    def init(clients: int, like: Params, key: Key) -> Tree:
        return tree.tile(tree.pick(like, names), clients)

    def write(net: Tree, cid: Tensor) -> Params:
        return tree.index(net, cid)

    return Writer(init, write, names)
