"""pFedSim: bodies are mixed by how alike the heads are."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.representation import head_split

SELF = 0.9999  # a client's likeness to itself, and the most that another's may be


def pfedsim(
    task: Task,
    *,
    warmup: Annotated[NonNegative, Search(0.1, 0.9)] = 0.5,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg first; then each client's body is a mean of bodies, weighted by likeness of heads.

        rounds t < ⌊warmup · T⌋:  FedAvg.  Then every client goes on from w, and
        s_ij = max(0, mean_c cos(W_i[c], W_j[c])) for i ≠ j of the cohort, s_ii = 0.9999
        a_ij = −log(1 − s_ij) / Σ_j,    body_i = Σ_j a_ij body_j,  the head is the client's own

    W is the last layer's weight, a row for each class. Pairs that never met in a cohort have
    s_ij = 0; absent clients count with their latest model. Rows of classes that two clients lack
    stay near those of the warm-up, and make them look alike.

    Learnt on the server: w, everybody's latest model, and the likenesses. Learnt on the client: its
    head, which it uploads and is not sent back. Tested with body_i and the own head; a client that
    was in no cohort since the warm-up with w.

    Args:
      warmup: share of the rounds that are FedAvg; with 1 all are. Above 1 it is their number.
      weighting: a client's weight in FedAvg's mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: s_ij counts as at most 0.9999: with 1 the authors' weights are not numbers, and
    between 0.9999 and 1 a neighbour would outweigh the client itself; right after the warm-up that
    is the rule, not the exception.

    Reference: Tan et al., "pFedSim: Similarity-Aware Model Aggregation Towards Personalized
    Federated Learning", 2023, https://arxiv.org/abs/2305.15706

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = pfedsim(toy_task(), warmup=0.3)
    """
    head_split(task, "pFedSim compares heads")
    shapes = tree.shapes(task.init(rng.key(0)))
    last = [name for name in task.head if len(shapes[name]) == 2][-1]

    def warm(turn: Turn) -> Tensor:
        of = turn.rounds.double() if warmup <= 1 else torch.ones_like(turn.rounds).double()
        return turn.round < (warmup * of + 1e-9).floor()

    def alike(models: Params) -> Tensor:
        """Likeness of every two of some models, by their heads' rows."""
        rows = F.normalize(models[last], dim=-1, eps=1e-12)
        cosines = torch.einsum("ick,jck->ij", rows, rows) / rows.shape[1]
        found = cosines.clamp(0, SELF)
        return torch.where(_diagonal(found), SELF, found)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        return {
            "params": initial,
            "models": tree.tile(initial, clients),
            "likeness": SELF * torch.eye(clients, device=key.device),
            "met": torch.zeros(clients, device=key.device),
            "sizes": clients.sizes.to(torch.get_default_dtype()).to(key.device),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        weights = -(1 - server["likeness"][cid].double()).log()
        share = weights / weights.sum()
        body = tree.drop(server["models"], task.head)
        mixed = tree.map(lambda p: torch.tensordot(share.to(p.dtype), p, 1), body)
        met, w = server["met"][cid] > 0, server["params"]
        return {
            "body": tree.where(met, mixed, tree.drop(w, task.head)),
            "head": wire.maybe(~met, tree.pick(w, task.head)),
        }

    def model(msg: Tree, state: Tree) -> Params:
        new, head = wire.here(msg["head"]), wire.value(msg["head"])
        params = msg["body"] | tree.where(new, head, state["head"])
        return {k: params[k] for k in shapes}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own = fit(task, model(msg, state), data, turn, recipe)
        return Outcome({"head": tree.pick(own, task.head)}, Upload(each={"params": own}), own)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        models, size, early = up.each["params"], server["sizes"][ids], warm(turn)
        share = torch.ones_like(size) if weighting == "uniform" else size
        share = share / share.sum()
        mean = tree.map(lambda p: torch.tensordot(share.to(p.dtype), p, 1), models)
        known = server["likeness"]
        rows = known[ids].index_copy(1, ids, alike(models).to(known.dtype))
        return server | {
            "params": tree.where(early, mean, server["params"]),
            "models": tree.put(server["models"], ids, models),
            "likeness": torch.where(early, known, known.index_copy(0, ids, rows)),
            "met": torch.where(early, server["met"], server["met"].index_fill(0, ids, 1.0)),
        }

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {"head": tree.pick(initial, task.head)},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: model(msg, state),
        predict=task.predict,
        record=lambda server: {"likeness": server["likeness"]},
    )


def _diagonal(square: Tensor) -> Tensor:
    return torch.eye(len(square), dtype=torch.bool, device=square.device)
