"""pFedGraph: the server infers from models whom to average with."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import Above, NonNegative, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.attention import cosines
from fedtailor.methods.parts.simplex import onto_simplex

ALIKE = 0.9  # a cosine above it counts as 1


def _weighed(weights: Tensor, models: Params) -> Params:
    """Sums of stacked models, one for each row of weights."""
    found: Params = tree.map(lambda p: torch.tensordot(weights.to(p.dtype), p, 1), models)
    return found


def pfedgraph(
    task: Task,
    *,
    alpha: Annotated[Above, Search(0.05, 5, log=True)] = 0.8,
    lam: Annotated[NonNegative, Search(0.001, 1, log=True)] = 0.01,
    reference: Literal["cosine", "approx"] = "cosine",
    sign: Literal["towards", "published"] = "towards",
    difference: Annotated[Literal["all", "head"], Search()] = "all",
    recipe: Recipe = Recipe(),
) -> Method:
    """Inferred collaboration graphs: a client averages with those whose models moved like its own.

        S_ij = cos(w_i − w⁰, w_j − w⁰), above 0.9 it is 1;    q_j = n_j / Σ_{S_t} n
        g_i = argmin over the simplex of α |g − q|² − ⟨S_i, g⟩ = project(q + S_i / (2α))
        w̄_i = Σ_j g_ij w_j is sent;   w_i ← SGD on F_i(w) − λ ⟨c_i, w⟩ / |w|, from w̄_i
        c_i = Σ_j g_ij w_j / |w_j|

    The graph is over the cohort of a round; absent clients keep w̄_i and c_i. In a client's first
    turn there is no c_i, and it trains on F_i alone.

    Learnt on the server: w̄_i and c_i of everybody. Tested with w̄_i; a client that was in no cohort
    yet with the mean of the last one, weighted by q.

    Args:
      alpha: how much the graph keeps to the sizes q; large values are FedAvg, small ones leave a
        client with those most like it.
      lam: strength λ of the pull to models of its neighbours.
      reference: `cosine`, c_i as above, which doubles the download; `approx`, w̄_i / |w̄_i|.
      sign: `towards` the neighbours, as the paper's objective has it; `published`: away from them,
        as in the authors' codes, to replicate them.
      difference: which parameters S_ij compares: `all`, or those of the `head` alone (both are in
        the authors' code).
      recipe: how a client trains in a round.

    Deviations: the graph's quadratic program is solved by a projection, which is exact (the authors
    call a solver). A client that was absent keeps its reference (in the authors' code the lack of
    one stops the run). Running statistics of BatchNorm are no part of models' directions; they are
    mixed as w̄_i is.

    Reference: Ye et al., "Personalized Federated Learning with Inferred Collaboration Graphs", ICML
    2023, https://proceedings.mlr.press/v202/ye23b.html

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = pfedgraph(toy_task(), alpha=0.5)
    """
    pull = lam if sign == "towards" else -lam

    def aligned(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        value, buffers = task.loss(params, batch)
        towards = given["towards"]
        own = tree.pick(params, towards)
        dots = tree.leaves(tree.map(lambda w, c: (w * c).sum(), own, towards))
        length = (tree.sq_norm(own) + 1e-12).sqrt()
        return value - pull * torch.stack(dots).sum() / length, buffers

    def learnt(params: Params) -> Params:
        return tree.drop(params, task.buffers)

    def unit(models: Params) -> Params:
        """Models of length 1, stacked as they are."""
        squares = [p.reshape(len(p), -1).square().sum(1) for p in models.values()]
        length = torch.stack(squares).sum(0).sqrt().clamp(min=1e-12)
        return {k: p / length.view(-1, *[1] * (p.ndim - 1)).to(p.dtype) for k, p in models.items()}

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        server = {
            "initial": initial,
            "mixed": tree.tile(initial, clients),
            "mean": initial,
            "met": torch.zeros(clients, device=key.device),
            "sizes": clients.sizes.to(torch.get_default_dtype()).to(key.device),
            "graph": torch.eye(clients, device=key.device),
        }
        if reference == "cosine":
            zeros = tree.map(torch.zeros_like, learnt(initial))
            server["towards"] = tree.tile(zeros, clients)
        return server

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        met = server["met"][cid] > 0
        message = {"params": tree.where(met, tree.index(server["mixed"], cid), server["mean"])}
        if reference == "cosine":
            message["towards"] = tree.index(server["towards"], cid)
        return message

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {} if reference == "cosine" else {"met": torch.zeros((), device=key.device)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = msg["params"]
        if reference == "cosine":
            towards = msg["towards"]  # 0 in the first turn
        else:
            own = learnt(begin)
            length = (tree.sq_norm(own) + 1e-12).sqrt()
            towards = tree.scale(own, state["met"] / length)
        loss = aligned if lam else None
        own = fit(task, begin, data, turn, recipe, loss=loss, given={"towards": towards})
        return Outcome(tree.map(torch.ones_like, state), Upload(each={"params": own}), own)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        models = up.each["params"]
        size = server["sizes"][ids]
        q = size / size.sum()
        moves = learnt(tree.map(torch.sub, models, server["initial"]))
        compared = moves if difference == "all" else tree.pick(moves, task.head)
        likeness = cosines(compared)
        likeness = torch.where(likeness > ALIKE, 1.0, likeness)
        graph = onto_simplex(q + likeness / (2 * alpha))
        rows = torch.zeros_like(server["graph"][ids]).index_copy(1, ids, graph)
        new = {
            "mixed": tree.put(server["mixed"], ids, _weighed(graph, models)),
            "mean": _weighed(q, models),
            "met": server["met"].index_fill(0, ids, 1.0),
            "graph": server["graph"].index_copy(0, ids, rows),
        }
        if reference == "cosine":
            found = _weighed(graph, unit(learnt(models)))
            new["towards"] = tree.put(server["towards"], ids, found)
        return server | new

    return Method(
        init=init,
        send=send,
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: msg["params"],
        predict=task.predict,
        record=lambda server: {"graph": server["graph"]},
    )
