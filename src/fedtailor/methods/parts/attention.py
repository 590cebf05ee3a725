"""Models that attract each other by likeness: what FedAMP and its heuristic share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

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


def squared_distances(models: Params) -> Tensor:
    """|w_i − w_j|² of every two models."""
    # from their mean, so that nothing large is subtracted from something large
    dots = _dots(rows - rows.mean(0) for rows in _flat(models))
    length = dots.diagonal()
    return (length[:, None] + length - 2 * dots).clamp(min=0).to(_kind(models))


def cosines(models: Params) -> Tensor:
    """cos(w_i, w_j) of every two models; 0 where one has no length."""
    dots = _dots(_flat(models))
    length = dots.diagonal().sqrt()
    return (dots / (length[:, None] * length).clamp(min=1e-12)).to(_kind(models))


def _flat(models: Params) -> Iterator[Tensor]:
    """Leaf by leaf, a row for each model.

    In double precision: models that are much alike differ in digits that fast products lack.
    """
    return (leaf.reshape(len(leaf), -1).double() for leaf in models.values())


def _dots(leaves: Iterable[Tensor]) -> Tensor:
    """w_i · w_j of every two models."""
    return torch.stack([rows @ rows.mT for rows in leaves]).sum(0)


def _kind(models: Params) -> torch.dtype:
    return next(leaf.dtype for leaf in models.values() if leaf.is_floating_point())


def attentive(
    task: Task,
    weigh: Callable[[Params, Tensor], Tensor],
    pull: float,
    recipe: Recipe,
) -> Method:
    """A method whose server mixes everyone's latest models with weights made from the models.

    Args:
      task: the network.
      weigh: (everyone's models, stacked; whom each may be drawn to [client, client]) -> weights
        [client, client] whose rows sum to 1. Nobody is drawn to those who never train.
      pull: strength of the pull towards the mixture.
      recipe: how a client trains in a round.
    """
    near = prox(task, pull)

    def weights_of(models: Params, trains: Tensor) -> Tensor:
        others = trains & ~torch.eye(len(trains), device=trains.device, dtype=torch.bool)
        return weigh(tree.drop(models, task.buffers), others)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        models = tree.tile(initial, clients)
        trains = clients.may_train
        return {"models": models, "trains": trains, "weights": weights_of(models, trains)}

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
        return server | {"models": models, "weights": weights_of(models, server["trains"])}

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
