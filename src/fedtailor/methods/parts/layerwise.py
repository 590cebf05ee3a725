"""Block-wise mixtures of all clients' models, with weights that a hypernetwork per client makes.

What pFedLA and its heuristic share.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import Count, NonNegative, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Blocks, Task, blocks_without
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.hypernetwork import apply_linear, linear

Normalisation = Literal["softmax", "relu_norm"]


def init_weigher(
    key: Key, clients: int, blocks: int, embed: int, hidden: int, depth: int, norm: Normalisation
) -> Tree:
    """One client's embedding and hypernetwork: `depth` layers, one head of N logits per block."""
    for_embed, for_body, for_heads = rng.split(key, 3)
    body = {
        str(i): linear(rng.fold(for_body, i), hidden if i else embed, hidden) for i in range(depth)
    }
    heads = {str(i): linear(rng.fold(for_heads, i), hidden, clients) for i in range(blocks)}
    if norm == "relu_norm":  # as in the public code: weights in (0, 1), no bias
        for i in range(blocks):
            at = rng.fold(for_heads, blocks + i)
            heads[str(i)] = {
                "weight": rng.uniform(at, clients, hidden),
                "bias": torch.zeros(clients, device=key.device),
            }
    return {"embed": rng.normal(for_embed, embed), "body": body, "heads": heads}


def weigh(net: Tree, cid: Tensor, trains: Tensor, norm: Normalisation) -> Tensor:
    """α [blocks, clients]: for each block, a weight for every client's model; rows sum to 1.

    A client that never `trains` has a weight in its own row alone.
    """
    own = torch.arange(len(trains), device=trains.device) == cid
    out = ~(trains | own)
    z = net["embed"]
    for layer in net["body"].values():
        z = apply_linear(layer, z).relu()
    logits = torch.stack([apply_linear(head, z) for head in net["heads"].values()])
    if norm == "softmax":
        return logits.masked_fill(out, -torch.inf).softmax(-1)
    positive = logits.relu().masked_fill(out, 0.0)
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / total.clamp(min=1e-30), own.to(logits.dtype))


def mixture(weights: Tensor, models: Params, blocks: Blocks) -> Params:
    """θ̄^l = Σ_j α^{l,j} θ_j^l for every block l; `models` are stacked over clients."""
    return {
        k: torch.tensordot(weights[i].to(models[k].dtype), models[k], 1)
        for i, block in enumerate(blocks)
        for k in block
    }


class LayerWeights(NamedTuple):
    """How the hypernetworks look and learn.

    Attributes:
      hn_lr: learning rate η of the hypernetworks. 0.005, a public code's, leaves the weights near
        1/N: FedAvg; 2 leaves every client alone (docs/defaults.md).
      embed: size of an embedding.
      hidden: width of a hypernetwork's layers.
      depth: how many layers it has.
      normalisation: `softmax`, or `relu_norm` (ReLU, divided by the sum) as in the public code.
    """

    hn_lr: Annotated[NonNegative, Search(0.001, 2, log=True)] = 0.5
    embed: Count = 100
    hidden: Count = 100
    depth: Count = 3
    normalisation: Normalisation = "softmax"


def layer_wise(task: Task, how: LayerWeights, recipe: Recipe, *, retained: int) -> Method:
    """A method whose server mixes everyone's latest models block by block, and learns the weights.

        θ̄_i^l = Σ_j α_i^{l,j} θ_j^l,   α_i = HN_i(v_i);      sent, but for the retained blocks
        (v_i, ψ_i) ← (v_i, ψ_i) + η J_iᵀ Δ_i,   J_i = ∂θ̄_i/∂(v_i, ψ_i),   Δ_i the client's update

    No graph is kept between sending and receiving: the pull-back is made anew from the state.

    Args:
      task: the network.
      how: the hypernetworks' shape and learning rate η.
      recipe: how a client trains in a round.
      retained: how many blocks a client keeps to itself, those with the largest α_i^{l,i}.
    """
    blocks = blocks_without(task.blocks, task.buffers)
    keep = min(retained, len(blocks))

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        make = lambda k: init_weigher(
            k, clients, len(blocks), how.embed, how.hidden, how.depth, how.normalisation
        )
        keys = rng.fold(key, torch.arange(clients, device=key.device))
        models = tree.tile(tree.drop(initial, task.buffers), clients)
        return {"models": models, "trains": clients.may_train, "nets": vmap(make)(keys)}

    def written(net: Tree, cid: Tensor, server: Tree) -> tuple[Params, Tensor]:
        """θ̄_i, and which blocks the client keeps its own of: those it weighs itself most in."""
        weights = weigh(net, cid, server["trains"], how.normalisation)
        mixed = mixture(weights, server["models"], blocks)
        order = weights[:, cid].detach().argsort(descending=True, stable=True).argsort()
        return mixed, order < keep

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        params, own = written(tree.index(server["nets"], cid), cid, server)
        if not keep:
            return {"params": params}
        parts = {str(i): wire.maybe(~own[i], tree.pick(params, b)) for i, b in enumerate(blocks)}
        return {"blocks": parts}

    def received(msg: Tree, state: Tree) -> Params:
        if not keep:
            params: Params = msg["params"] | state["buffers"]
            return params
        out: Params = {}
        for part, block in zip(msg["blocks"].values(), blocks, strict=True):
            out |= tree.where(wire.here(part), wire.value(part), tree.pick(state["own"], block))
        whole: Params = out | state["buffers"]
        return whole

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = {"own": tree.drop(initial, task.buffers)} if keep else {}
        return {"buffers": tree.pick(initial, task.buffers)} | own

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begun = received(msg, state)
        params = fit(task, begun, data, turn, recipe)
        trained = tree.drop(params, task.buffers)
        kept = {"buffers": tree.pick(params, task.buffers)} | ({"own": trained} if keep else {})
        delta = tree.sub(trained, tree.drop(begun, task.buffers))
        return Outcome(kept, Upload(each={"delta": delta}), params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        nets, models = tree.index(server["nets"], ids), server["models"]
        write = vmap(lambda net, cid: written(net, cid, server)[0])
        mixed, pull = vjp(lambda n: write(n, ids), nets)[:2]
        own = vmap(lambda net, cid: written(net, cid, server)[1])(nets, ids)
        flag = {k: own[:, i] for i, block in enumerate(blocks) for k in block}
        # a retained block was the client's own: it tells the hypernetwork nothing
        push = {k: torch.where(_like(flag[k], d), 0.0, -d) for k, d in up.each["delta"].items()}
        (grads,) = pull(push)
        mine = tree.index(models, ids)
        begun = {k: torch.where(_like(flag[k], p), mine[k], p) for k, p in mixed.items()}
        return server | {
            "models": tree.put(models, ids, tree.add(begun, up.each["delta"])),
            "nets": tree.put(server["nets"], ids, tree.sub(nets, tree.scale(grads, how.hn_lr))),
        }

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return received(msg, state)

    def record(server: Tree) -> Tree:
        clients = next(iter(server["models"].values())).shape[0]
        ids = torch.arange(clients, device=server["nets"]["embed"].device)
        each = vmap(lambda net, cid: weigh(net, cid, server["trains"], how.normalisation))
        weights = each(server["nets"], ids)
        return {"aggregation_weights": weights.movedim(1, 0)}  # block, client, client

    return Method(init, send, start, client, receive, personal, task.predict, record)


def _like(flag: Tensor, values: Tensor) -> Tensor:
    """One flag per row, shaped to choose among rows of `values`."""
    return flag.view(-1, *[1] * (values.ndim - 1))
