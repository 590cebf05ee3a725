"""FedFomo: each client downloads the models that help it and adds them up by how much."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor
from torch.func import vmap

from fedtailor.core import tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import Count, NonNegative, Search, Share
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.candidates import (
    Norm,
    acquainted,
    choose_candidates,
    cluster_means,
    gain_per_distance,
    normalised,
    offered,
    strangers,
    towards,
)


def fedfomo(
    task: Task,
    *,
    M: Annotated[Count, Search(2, 15)] = 5,
    eps0: Annotated[Share, Search(0, 0.8)] = 0.3,
    decay: Annotated[NonNegative, Search(0.005, 0.2, log=True)] = 0.05,
    count_self: bool = True,
    norm: Norm = "l2",
    p_update: Annotated[Literal["raw", "normalised"], Search()] = "raw",
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

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedfomo(toy_task(), M=3, norm="l1")
    """
    others = M - 1 if count_self else M
    extra = federations + 1 if extra_candidates else 0

    def candidates(server: Tree, cid: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        chance = (eps0 - decay * turn.round).clamp(min=0)
        return choose_candidates(server, cid, others, chance, turn.key)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        more = {"extra": tree.tile(initial, extra)} if extra else {}
        return {"models": tree.tile(initial, clients)} | strangers(clients, key.device) | more

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        ids, filled = candidates(server, cid, turn)
        message = {"models": wire.maybe(filled, tree.index(server["models"], ids))}
        if extra:
            known = server["fresh"].any().expand(extra)
            message["extra"] = wire.maybe(known, server["extra"])
        return message

    def update(msg: Tree, state: Tree, data: Data) -> tuple[Params, Tensor]:
        """The new base, and the weights of the candidates (own model first)."""
        base, cur = state["base"], state["cur"]
        models, there = offered(cur, msg)
        weights = gain_per_distance(task, data.val, base, models, norm).masked_fill(~there, 0.0)
        share, any_helps = normalised(weights)
        new = towards(base, models, share)
        return new if rollback else tree.where(any_helps, new, cur), weights

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        base, weights = update(msg, state, data)
        cur = fit(task, base, data, turn, recipe)
        upload = Upload(each={"model": cur, "weights": weights[: others + 1]})
        return Outcome({"base": base, "cur": cur}, upload, cur, {"candidate_weight": weights})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        for_each = vmap(candidates, (None, 0, Turn(0, None, None)))  # type: ignore[arg-type]
        weights = up.each["weights"]
        if p_update == "normalised":
            weights = weights / weights.sum(1, keepdim=True).abs().clamp(min=1e-12)
        known = acquainted(server, ids, *for_each(server, ids, turn.of(ids)), weights)
        models, more = up.each["model"], {}
        if extra:
            more["extra"] = cluster_means(models, known["affinity"][ids][:, ids], federations)
        return {"models": tree.put(server["models"], ids, models)} | known | more

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {"base": initial, "cur": initial},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: update(msg, state, data)[0],
        predict=task.predict,
        record=lambda server: {"affinity": server["affinity"]},
        validates=True,
    )
