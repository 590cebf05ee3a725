"""CFL: clients are split into clusters when their updates pull apart.

A common model can be stationary for a cluster while no member is content with it: the updates are
long, but cancel each other. Then no model is good for all of them, and the cluster is halved so
that updates within a half point the same way.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import NonNegative, Search, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit_on, trained_names
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.attention import cosines


def cfl(
    task: Task,
    *,
    e1: Annotated[NonNegative, Search(0.05, 2, log=True)] = 0.4,
    e2: Annotated[NonNegative, Search(0.05, 8, log=True)] = 0.2,
    first_split: Whole = 20,
    keep_momentum: bool = True,
    recipe: Recipe = Recipe(),
) -> Method:
    """Everyone begins in one cluster; a cluster whose members disagree at a standstill is halved.

        ΔW_k = SGD(w_c; E) − w_c  for the model w_c of the client's cluster;  uploaded
        t > 20, over 2 members, |mean ΔW| < e₁ and max |ΔW_k| > e₂:  split by cosine(ΔW_i, ΔW_j)
        w_c ← w_c + mean of its members' ΔW_k

    with rounds t = 1 .. T. Learnt on the server: the clusters and one model each. Kept by the
    client: its optimiser's momentum. Tested with the cluster's model.

    Args:
      e1: a mean update shorter than this is a standstill. With 0 no cluster is split: FedAvg with
        equal weights.
      e2: an update longer than this is disagreement. With the authors' 1.6 no cluster is split
        within 30 rounds on digits, MNIST, WISDM or heart disease.
      first_split: no cluster is split up to this round.
      keep_momentum: a client's optimiser goes on with its momentum from round to round, as in the
        authors' code; else it begins anew.
      recipe: how a client trains in a round.

    Deviations: clients that are absent in the round of a split go with the larger half. Halves are
    client ids (two public codes keep positions inside the cluster, and mix clients up).

    Reference: Sattler et al., "Clustered Federated Learning", IEEE TNNLS 2021,
    https://arxiv.org/abs/1910.01991

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = cfl(toy_task(), e1=0.1, first_split=10)
    """

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        # row c is the model of cluster c; as many rows as there could be clusters
        return {
            "models": tree.tile(initial, clients),
            "cluster": torch.zeros(clients, dtype=torch.int64, device=key.device),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"params": tree.index(server["models"], server["cluster"][cid])}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        trained = tree.pick(initial, trained_names(task, initial))
        memory = recipe.make_optimizer(recipe.lr).init(trained)
        return {"memory": memory} if keep_momentum and memory else {}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params, memory = fit_on(task, msg["params"], state.get("memory"), data, turn, recipe)
        upload = Upload(each={"update": tree.sub(params, msg["params"])})
        return Outcome({"memory": memory} if state else {}, upload, params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        before, models, updates = server["cluster"], server["models"], up.each["update"]
        cluster = before
        if int(turn.round) + 1 > first_split:  # rounds are counted from 1
            learnt = tree.drop(updates, task.buffers)
            cluster = refined(before, ids, learnt, still=e1, moving=e2)
        for c in cluster[ids].unique().tolist():
            members = (cluster[ids] == c).nonzero()[:, 0]
            parent = before[ids[members[0]]]
            moved = tree.map(
                lambda m, u, parent=parent, members=members: m[parent] + u[members].mean(0),
                server["models"],  # as sent: a parent's row may have moved on already
                updates,
            )
            at = torch.tensor([c], device=ids.device)
            models = tree.put(models, at, tree.map(lambda p: p[None], moved))
        return {"models": models, "cluster": cluster}

    return Method(
        init=init,
        send=send,
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: msg["params"],
        predict=task.predict,
        record=lambda server: {"cluster": server["cluster"]},
    )


def bipartition(cosine: Tensor) -> np.ndarray:
    """Two groups of clients by complete linkage on −cosine: a 0 or 1 for each."""
    from sklearn.cluster import AgglomerativeClustering

    apart = (1 - cosine.double()).clamp(min=0).cpu().numpy()
    method = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
    found: np.ndarray = method.fit_predict(apart)
    return found


def at_odds(updates: Params, still: float, moving: float) -> bool:
    """Whether the mean update stands still while some member moves on.

        |mean_k ΔW_k| < still   and   max_k |ΔW_k| > moving

    Args:
      updates: stacked over the members.
      still: e₁.
      moving: e₂.
    """
    mean = tree.map(lambda p: p.mean(0), updates)
    if not float(tree.sq_norm(mean).sqrt()) < still:
        return False
    squares = [p.reshape(len(p), -1).square().sum(1) for p in updates.values()]
    longest = torch.stack(squares).sum(0).sqrt().max()
    return float(longest) > moving


def refined(cluster: Tensor, ids: Tensor, updates: Params, still: float, moving: float) -> Tensor:
    """The clusters after those that are at odds were halved; the smaller half gets a new number.

    A cluster of which no more than two are there is left alone. Who is absent stays where it is.

    Args:
      cluster: the number of each client's cluster.
      ids: the clients that are there.
      updates: theirs, stacked.
      still: as for `at_odds`.
      moving: as for `at_odds`.
    """
    out = cluster
    for c in sorted(set(cluster.tolist())):
        members = (cluster[ids] == c).nonzero()[:, 0]
        if len(members) <= 2:
            continue
        mine = tree.index(updates, members)
        if at_odds(mine, still, moving):
            half = bipartition(cosines(mine))
            minority = half == np.argmin(np.bincount(half, minlength=2))
            leaving = ids[members[torch.from_numpy(minority).to(ids.device)]]
            out = out.index_fill(0, leaving, int(out.max()) + 1)
    return out
