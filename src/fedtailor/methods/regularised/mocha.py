"""MOCHA for deep networks: models that are related through a penalty on all of them together."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.options import NonNegative, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def mocha(
    task: Task,
    *,
    omega: Literal["mean", "lgfedavg"] = "mean",
    strength: Annotated[NonNegative, Search(0.01, 100, log=True)] = 1.0,
    recipe: Recipe = Recipe(),
) -> Method:
    """Each client minimises its loss and c (|W|² + tr(W Ω Wᵀ)), W = the models of all clients.

        gradient of the penalty for the own column:  2c (w_k + Σ_j Ω_kj w_j)

    with the others' columns constant and c = 10^−(⌊log₁₀ d⌋ + 2) for d parameters. The server sends
    the sum over the others, one model, not all of theirs. Learnt on the client: w_k, with which it
    is tested.

    Args:
      omega: `mean`: Ω = I − 11ᵀ/m, a pull to the mean; `lgfedavg`: (1 − 1/m)² 11ᵀ, the penalty that
        LG-FedAvg's code computes by mistake, on the sum of the models.
      strength: factor on c. With 0 this is training alone.
      recipe: how a client trains in a round.

    Deviations: clients that are absent count with their latest upload. The penalty has a gradient
    (in one public code it is detached, and the method is training alone).

    Reference: Smith et al., "Federated Multi-Task Learning", NeurIPS 2017,
    https://arxiv.org/abs/1705.10467, in the deep form of LG-FedAvg's comparison

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = mocha(toy_task(), strength=2.0)
    """

    def relation(m: int) -> tuple[float, float]:
        """Ω_kk and Ω_kj."""
        if omega == "mean":
            return 1 - 1 / m, -1 / m
        return (1 - 1 / m) ** 2, (1 - 1 / m) ** 2

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        # who never trains is none of the m: a column of 0 adds nothing to anyone's sum
        models = clients.copies(tree.drop(initial, task.buffers))
        met = torch.zeros(clients, dtype=torch.bool, device=key.device)
        own, cross = (
            torch.full((), entry, device=key.device) for entry in relation(len(clients.training))
        )
        return {"models": models, "met": met, "own": own, "cross": cross}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        others = tree.map(lambda p: server["cross"] * (p.sum(0) - p[cid]), server["models"])
        # what the client cannot know: its own entry of Ω, once
        once = wire.maybe(~server["met"][cid], {"self": server["own"]})
        return {"others": others, "once": once}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        size = sum(p.numel() for p in msg["others"].values())
        c = strength * 10.0 ** -(math.floor(math.log10(size)) + 2)

        def related(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
            loss, buffers = task.loss(params, batch)
            own = tree.pick(params, given["others"])
            cross = tree.map(lambda w, o: (w * o).sum(), own, given["others"])
            with_others = torch.stack(tree.leaves(cross)).sum()
            return loss + c * ((1 + given["self"]) * tree.sq_norm(own) + 2 * with_others), buffers

        given = {"others": msg["others"], "self": state["self"]}
        own = fit(task, state["own"], data, turn, recipe, loss=related, given=given)
        upload = Upload(each={"model": tree.drop(own, task.buffers)})
        return Outcome(state | {"own": own}, upload, own)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return server | {
            "models": tree.put(server["models"], ids, up.each["model"]),
            "met": server["met"].index_fill(0, ids, True),
        }

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {"own": initial, "self": wire.value(msg["once"])["self"]},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: state["own"],
        predict=task.predict,
    )
