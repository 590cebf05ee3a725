"""pFedLA: the server mixes all clients' models block by block, with learnt weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vjp, vmap

from .. import rng, tree, wire
from ..data import Data
from ..layerwise import Normalisation, init_weigher, mixture, weigh
from ..method import Clients, Method, Outcome, Upload
from ..options import Count, NonNegative
from ..rng import Key, Turn
from ..task import Task, blocks_without
from ..train import Recipe, fit
from ..tree import Params, Tree


def pfedla(
    task: Task,
    *,
    hn_lr: NonNegative = 0.005,
    embed: Count = 100,
    hidden: Count = 100,
    depth: Count = 3,
    normalisation: Normalisation = "softmax",
    recipe: Recipe = Recipe(),
) -> Method:
    """A hypernetwork per client weighs every client's model, block by block.

        α_i = HN_i(v_i) in the simplex over clients, for each block l
        θ̄_i^l = Σ_j α_i^{l,j} θ_j^l     over all N stored models;  sent
        Δ_i = SGD(θ̄_i; E) − θ̄_i         uploaded
        θ_i := θ̄_i + Δ_i;   (v_i, ψ_i) ← (v_i, ψ_i) + η J_iᵀ Δ_i,  J_i = ∂θ̄_i/∂(v_i, ψ_i)

    Adding J ᵀΔ descends the client's loss. Learnt on the server: everyone's latest model, embedding
    and hypernetwork. Clients keep nothing but running statistics. Tested with θ̄_i.

    Args:
      hn_lr: learning rate η of the hypernetworks.
      embed: size of an embedding.
      hidden: width of a hypernetwork's layers.
      depth: how many layers it has.
      normalisation: `softmax`, or `relu_norm` (ReLU, divided by the sum) as in the public code.
      recipe: how a client trains in a round.

    Deviations: Eq. 10 and 11 leave the sign open; both public codes subtract J ᵀΔ and climb the
    loss. All uploads of a round are taken in at once (the public code: one after another). One
    common initial model (the public code gives each client its own).

    Reference: Ma et al., "Layer-wised Model Aggregation for Personalized Federated Learning",
    CVPR 2022, https://arxiv.org/abs/2205.03993
    """
    make = LayerWeights(hn_lr, embed, hidden, depth, normalisation)
    return layer_wise(task, make, recipe, retained=0)


class LayerWeights(NamedTuple):
    """How the hypernetworks look and learn; see the options of `pfedla`."""

    hn_lr: float
    embed: int
    hidden: int
    depth: int
    normalisation: Normalisation


def layer_wise(task: Task, how: LayerWeights, recipe: Recipe, *, retained: int) -> Method:
    """pFedLA whose clients keep `retained` blocks to themselves (HeurpFedLA)."""
    blocks = blocks_without(task.blocks, task.buffers)
    keep = min(retained, len(blocks))

    def init(clients: Clients, initial: Params, key: Key) -> Tree:
        make = lambda k: init_weigher(
            k, clients, len(blocks), how.embed, how.hidden, how.depth, how.normalisation
        )
        keys = rng.fold(key, torch.arange(clients, device=key.device))
        models = tree.tile(tree.drop(initial, task.buffers), clients)
        return {"models": models, "nets": vmap(make)(keys)}

    def written(net: Tree, cid: Tensor, models: Params) -> tuple[Params, Tensor]:
        """θ̄_i, and which blocks the client keeps its own of: those it weighs itself most in."""
        weights = weigh(net, cid, how.normalisation)
        mixed = mixture(weights, models, blocks)
        order = weights[:, cid].detach().argsort(descending=True, stable=True).argsort()
        return mixed, order < keep

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        params, own = written(tree.index(server["nets"], cid), cid, server["models"])
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
        write = vmap(lambda net, cid: written(net, cid, models)[0])
        mixed, pull = vjp(lambda n: write(n, ids), nets)[:2]
        own = vmap(lambda net, cid: written(net, cid, models)[1])(nets, ids)
        flag = {k: own[:, i] for i, block in enumerate(blocks) for k in block}
        # a retained block was the client's own: it tells the hypernetwork nothing
        push = {k: torch.where(_like(flag[k], d), 0.0, -d) for k, d in up.each["delta"].items()}
        (grads,) = pull(push)
        mine = tree.index(models, ids)
        begun = {k: torch.where(_like(flag[k], p), mine[k], p) for k, p in mixed.items()}
        return {
            "models": tree.put(models, ids, tree.add(begun, up.each["delta"])),
            "nets": tree.put(server["nets"], ids, tree.sub(nets, tree.scale(grads, how.hn_lr))),
        }

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return received(msg, state)

    def record(server: Tree) -> Tree:
        clients = next(iter(server["models"].values())).shape[0]
        ids = torch.arange(clients, device=server["nets"]["embed"].device)
        weights = vmap(lambda net, cid: weigh(net, cid, how.normalisation))(server["nets"], ids)
        return {"aggregation_weights": weights.movedim(1, 0)}  # block, client, client

    return Method(init, send, start, client, receive, personal, task.predict, record)


def _like(flag: Tensor, values: Tensor) -> Tensor:
    """One flag per row, shaped to choose among rows of `values`."""
    return flag.view(-1, *[1] * (values.ndim - 1))
