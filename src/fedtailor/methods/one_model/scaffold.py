"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size
from fedtailor.core.objectives import Slope
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.local_steps import local_steps
from fedtailor.methods.parts.moves import part_way


def scaffold(
    task: Task,
    *,
    server_lr: Annotated[NonNegative, Search(0.1, 2, log=True)] = 1.0,
    weighting: Weighting = "uniform",
    recipe: Recipe = Recipe(),
) -> Method:
    """Every local step is corrected by what all clients would do less what this one would.

        y ← y − η (∇F_k(y) − c_k + c)            from y = w, K steps
        c_k⁺ = c_k − c + (w − y) / (K η)           (option II)
        w ← w + η_s mean(y − w),   c ← c + |S|/N mean(c_k⁺ − c_k)

    Learnt on the server: w and c. Learnt on the client: c_k. Tested with w. Twice the bytes of
    FedAvg.

    Args:
      server_lr: η_s.
      weighting: a client's weight in both means: `uniform` (the paper) or `data`.
      recipe: how a client trains in a round (plain SGD is what the correction is made for).

    Deviations: none. Running statistics of BatchNorm are averaged, whatever η_s is.

    Reference: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, https://arxiv.org/abs/1910.06378

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = scaffold(toy_task(), server_lr=0.5)
    """

    if not recipe.lr:
        raise BadInput("scaffold: lr is 0, and its controls are ways divided by it: raise lr")

    def corrected(at: Slope) -> Slope:
        def slope(y: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            grads, loss, changed = at(y, batch, given, carried)
            return tree.add(grads, given["shift"]), loss, changed

        return slope

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        zero = tree.map(torch.zeros_like, tree.drop(initial, task.buffers))
        count = torch.tensor(float(len(clients.training)), device=key.device)
        return {"params": initial, "control": zero, "clients": count}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return {"params": server["params"], "control": server["control"]}

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"control": tree.map(torch.zeros_like, msg["control"])}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        shift = tree.sub(msg["control"], state["control"])
        given = {"shift": shift}
        params = fit(task, msg["params"], data, turn, recipe, gradient=corrected, given=given)
        moved = tree.sub(tree.pick(msg["params"], shift), tree.pick(params, shift))
        steps = local_steps(recipe, data)
        rate = recipe.rate(turn) * steps.clamp(min=1)
        control = tree.sub(tree.map(lambda m: m / rate.to(m.dtype), moved), shift)
        # who took no step knows no more of its gradient than before
        control = tree.where(steps > 0, control, state["control"])
        change = tree.sub(control, state["control"])
        upload = Upload({"params": params, "change": change}, by_size(data, weighting))
        return Outcome({"control": control}, upload, params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        part = len(ids) / server["clients"]
        return server | {
            "params": part_way(task, server["params"], up.mean["params"], server_lr),
            "control": tree.add(server["control"], tree.scale(up.mean["change"], part)),
        }

    return fedavg(task)._replace(init=init, send=send, start=start, client=client, receive=receive)
