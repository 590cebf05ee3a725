"""Models that attract each other by likeness: what FedAMP and its heuristic share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Download, Method, Outcome, Upload, beginning
from fedtailor.core.objectives import prox
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def pairwise(models: Params, fn: Callable[[Params, Params], Tensor]) -> Tensor:
    """`fn` of every two models; one row at a time, so that memory is that of the models."""
    count = len(next(iter(models.values())))
    rows = [fn(models, tree.index(models, i)) for i in range(count)]
    return torch.stack(rows)


def _rows(stacked: Tensor) -> Tensor:
    return stacked.reshape(len(stacked), -1)


def squared_distances(models: Params, one: Params) -> Tensor:
    """|w_j − w|² for all j."""
    return torch.stack([_rows(models[k] - one[k]).square().sum(1) for k in one]).sum(0)


def cosines(models: Params, one: Params) -> Tensor:
    """cos(w_j, w) for all j."""
    dot = torch.stack([_rows(models[k] * one[k]).sum(1) for k in one]).sum(0)
    length = torch.stack([_rows(models[k]).square().sum(1) for k in one]).sum(0).sqrt()
    return dot / (length * tree.sq_norm(one).sqrt()).clamp(min=1e-12)


def attentive(
    task: Task,
    weigh: Callable[[Params], Tensor],
    pull: float,
    recipe: Recipe,
) -> Method:
    """A method whose server mixes everyone's latest models with weights made from the models.

    Args:
      task: the network.
      weigh: everyone's models, stacked -> weights [client, client] whose rows sum to 1.
      pull: strength of the pull towards the mixture.
      recipe: how a client trains in a round.
    """
    near = prox(task, pull)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        models = tree.tile(initial, clients)
        return {"models": models, "weights": weigh(tree.drop(models, task.buffers))}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        row = server["weights"][cid]
        mixed = tree.map(lambda p: torch.tensordot(row.to(p.dtype), p, 1), server["models"])
        return {"params": mixed}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = beginning(msg, state["own"])  # not with the mixture, unless a wrapper says so
        given = {"anchor": msg["params"]}
        own = fit(task, begin, data, turn, recipe, loss=near, given=given)
        return Outcome({"own": own}, Upload(each={"params": own}), own)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        models = tree.put(server["models"], ids, up.each["params"])
        return {"models": models, "weights": weigh(tree.drop(models, task.buffers))}

    download = Download("params", client, tested=False)
    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {"own": initial},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: state["own"],
        predict=task.predict,
        record=lambda server: {"attention": server["weights"]},
        download=download,
    )
