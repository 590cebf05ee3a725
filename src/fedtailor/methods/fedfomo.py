"""FedFomo: each client downloads the models that help it and adds them up by how much."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from .. import rng, tree, wire
from ..candidates import cluster_means, normalised
from ..data import Data
from ..method import Clients, Method, Outcome, Upload
from ..options import Count, NonNegative, Share
from ..rng import Key, Turn
from ..task import Task
from ..train import Recipe, fit, mean_loss
from ..tree import Params, Tree


def fedfomo(
    task: Task,
    *,
    M: Count = 5,
    eps0: Share = 0.3,
    decay: NonNegative = 0.05,
    count_self: bool = True,
    norm: Literal["l2", "l1"] = "l2",
    p_update: Literal["raw", "normalised"] = "raw",
    rollback: bool = True,
    extra_candidates: bool = False,
    federations: Count = 5,
    recipe: Recipe = Recipe(),
) -> Method:
    """First-order model optimisation: a client's next model is a step towards useful other models.

        w_n = (L_i(θ_base) − L_i(θ_n)) / |θ_n − θ_base|,    P[i, n] += w_n
        θ_new = θ_base + Σ_n w*_n (θ_n − θ_base),           w* = max(w, 0) / Σ max(w, 0)

    L_i is the mean loss on the client's validation rows; θ_base its model after the last federated
    update, before the training that followed. Candidates are its own trained model θ_cur and others
    uploaded in the previous round: per slot, with probability ε_t = max(0, ε₀ − t·decay) a random
    one, else the unused one with the largest P[i, ·]. With no w_n > 0, θ_new = θ_base. Then
    θ_cur = SGD(θ_new; E) is uploaded with the weights w. Tested with θ_new.

    Learnt on the server: the affinity matrix P and everyone's last upload. Learnt on the client:
    θ_base and θ_cur.

    Args:
      M: candidates per client and round, its own model included.
      eps0: probability ε₀ of a random candidate in round 0.
      decay: what that probability loses per round (subtracted: exploring ends after six rounds).
      count_self: whether M counts the own model; if not, M others are downloaded.
      norm: distance between models: `l2`, or `l1` as in the authors' code.
      p_update: what is added to P: `raw` weights, or `normalised` by |Σ w| (the authors' code).
      rollback: with no helpful candidate go back to θ_base (paper); if not, keep θ_cur.
      extra_candidates: also send averages of clusters of clients and of all, as the authors' code
        does without saying so; the bytes then exceed the paper's.
      federations: how many clusters.
      recipe: how a client trains in a round.

    Deviations: the paper leaves the norm open (l2 here). P starts as the identity (paper; the code
    has 0.1 on the diagonal). A candidate that is θ_base itself weighs 0. Rounds never reseed the
    draw of clients (the code does, so that the same ones are always active).

    Reference: Zhang et al., "Personalized Federated Learning with First Order Model Optimization",
    ICLR 2021, https://arxiv.org/abs/2012.08565
    """
    others = M - 1 if count_self else M
    extra = federations + 1 if extra_candidates else 0

    def choose(server: Tree, cid: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        """Ids of the candidates, and which slots could be filled."""
        affinity = server["affinity"][cid]
        number = torch.arange(len(affinity), device=affinity.device)
        free = server["fresh"] & (number != cid)
        explore = rng.uniform(turn.key, others) < (eps0 - decay * turn.round).clamp(min=0)
        ids, filled = [], []
        for slot in range(others):
            best = affinity.masked_fill(~free, -torch.inf).max()
            eligible = free & (explore[slot] | (affinity == best))
            luck = rng.uniform(rng.fold(turn.key, slot), len(affinity))
            taken = luck.masked_fill(~eligible, -1).argmax()
            ids.append(taken)
            filled.append(eligible.any())
            free = free & (number != taken)
        if not ids:
            return number[:0], free[:0]
        return torch.stack(ids), torch.stack(filled)

    def init(clients: Clients, initial: Params, key: Key) -> Tree:
        more = {"extra": tree.tile(initial, extra)} if extra else {}
        return {
            "models": tree.tile(initial, clients),
            "affinity": torch.eye(clients, device=key.device),
            "fresh": torch.zeros(clients, dtype=torch.bool, device=key.device),
        } | more

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        ids, filled = choose(server, cid, turn)
        message = {"models": wire.maybe(filled, tree.index(server["models"], ids))}
        if extra:
            known = server["fresh"].any().expand(extra)
            message["extra"] = wire.maybe(known, server["extra"])
        return message

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"base": initial, "cur": initial}

    def distance(a: Params, b: Params) -> Tensor:
        apart = tree.drop(tree.sub(a, b), task.buffers)
        if norm == "l1":
            return torch.stack([p.abs().sum() for p in tree.leaves(apart)]).sum()
        return tree.sq_norm(apart).sqrt()

    def update(msg: Tree, state: Tree, data: Data) -> tuple[Params, Tensor]:
        """The new base, and the weights of the candidates (own model first)."""
        base, cur = state["base"], state["cur"]
        here = mean_loss(task, base, data.val)

        def gain(model: Params) -> Tensor:
            # a model that is θ_base itself has nothing to give; 0/1e-12 would be rounding noise
            far = distance(model, base)
            slope = (here - mean_loss(task, model, data.val)) / (far + 1e-12)
            return torch.where(far > 0, slope, 0.0)

        parts = list(msg.values())
        models = tree.cat([tree.map(lambda p: p[None], cur), *(wire.value(p) for p in parts)])
        missing = ~torch.cat([wire.here(p) for p in parts])
        weights = vmap(gain)(models).masked_fill(torch.cat([missing.new_zeros(1), missing]), 0.0)
        share, any_helps = normalised(weights)
        new = tree.map(lambda b, m: b + torch.tensordot(share.to(m.dtype), m - b, 1), base, models)
        return new if rollback else tree.where(any_helps, new, cur), weights

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        base, weights = update(msg, state, data)
        cur = fit(task, base, data, turn, recipe)
        upload = Upload(each={"model": cur, "weights": weights[: others + 1]})
        return Outcome({"base": base, "cur": cur}, upload, cur, {"candidate_weight": weights})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        candidates, filled = vmap(choose, (None, 0, Turn(0, None, None)))(  # type: ignore[arg-type]
            server, ids, turn.of(ids)
        )
        weights = up.each["weights"]
        if p_update == "normalised":
            weights = weights / weights.sum(1, keepdim=True).abs().clamp(min=1e-12)
        affinity = server["affinity"]
        rows = torch.zeros(len(ids), len(affinity), device=ids.device, dtype=weights.dtype)
        rows = rows.scatter(1, ids[:, None], weights[:, :1])
        rows = rows.scatter_add(1, candidates, weights[:, 1:] * filled)
        affinity = affinity.index_add(0, ids, rows.to(affinity.dtype))
        more = {}
        if extra:
            more["extra"] = cluster_means(up.each["model"], affinity[ids][:, ids], federations)
        return {
            "models": tree.put(server["models"], ids, up.each["model"]),
            "affinity": affinity,
            "fresh": torch.zeros_like(server["fresh"]).index_fill(0, ids, True),
        } | more

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        return update(msg, state, data)[0]

    def record(server: Tree) -> Tree:
        return {"affinity": server["affinity"]}

    return Method(init, send, start, client, receive, personal, task.predict, record)
