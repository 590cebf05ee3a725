"""FedDyn: clients remember how far they drift, and lean against it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size
from fedtailor.core.objectives import Slope
from fedtailor.core.options import Above, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.optim import clip_norm
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg


def feddyn(
    task: Task,
    *,
    alpha: Annotated[Above, Search(0.001, 1, log=True)] = 0.01,
    eval_point: Literal["w", "average"] = "w",
    recipe: Recipe = Recipe(),
) -> Method:
    """Dynamic regularisation: local optima agree with the global one in the end.

        θ_k = argmin F_k(θ) + α_k <H_k, θ> + α_k/2 |θ − w|²     α_k = α n̄ / n_k;  E epochs from w
        H_k ← H_k + θ_k − w                                     all moves of a client added up
        θ = mean_{k∈S} θ_k,   h ← h − |S|/N (θ − w),   w ← θ − h

    A step's gradient is ∇F_k + α_k (H_k + θ − w). h is minus the mean of all H_k, those of absent
    clients included. Where all θ_k = w, Σ_k n_k ∇F_k(w) = 0: the optimum of all rows.

    Learnt on the server: w and h. Learnt on the client: H_k, 0 at first. Tested with w.

    Args:
      alpha: strength α. With few clients per round keep it at 0.01 or more: what absent clients
        once drifted stays in h.
      eval_point: what is tested: `w`, or `average`, the mean θ of the latest cohort's models. It is
        sent beside w, so the download doubles.
      recipe: how a client trains in a round.

    Deviations: H_k stands for the paper's dual variable, −α_k H_k, and h for its h/α, as in the
    authors' code; the two forms are equal. The pull is squared, and α_k weighs both terms (public
    codes have it unsquared, or without the part that stands in the authors' weight decay). Means
    are uniform over those who answered: a client's size is in α_k. The authors plot means of
    clients' models; the server sends w, so w is tested. A limit on gradients (`--clip`) is on those
    of F_k. Running statistics of BatchNorm have no dual, and are averaged.

    Reference: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
    https://arxiv.org/abs/2111.04263

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = feddyn(toy_task(), alpha=0.1)
    """
    plain = replace(recipe, clip=0.0)

    def leaning(at: Slope) -> Slope:
        def slope(y: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tree, Tensor, Tree]:
            grads, loss, changed = at(y, batch, given, carried)
            drift = tree.add(given["drift"], tree.sub(y, given["anchor"]))
            back = tree.map(lambda d: given["alpha"].to(d.dtype) * d, drift)
            return tree.add(clip_norm(grads, recipe.clip), back), loss, changed

        return slope

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        zero = tree.map(torch.zeros_like, tree.drop(initial, task.buffers))
        kind = torch.get_default_dtype()
        server = {
            "params": initial,
            "drift": zero,
            "clients": torch.tensor(float(len(clients.training)), device=key.device),
            "size": clients.training.to(kind).mean(),
        }
        return server | ({"average": initial} if eval_point == "average" else {})

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        return tree.pick(server, ["params", "size", "average"])

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"drift": tree.map(torch.zeros_like, tree.drop(msg["params"], task.buffers))}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w = tree.pick(msg["params"], state["drift"])
        given = {
            "anchor": w,
            "drift": state["drift"],
            "alpha": alpha * msg["size"] / data.n.clamp(min=1),
        }
        params = fit(task, msg["params"], data, turn, plain, gradient=leaning, given=given)
        drift = tree.add(state["drift"], tree.sub(tree.pick(params, w), w))
        return Outcome(
            {"drift": drift}, Upload({"params": params}, by_size(data, "uniform")), params
        )

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        average = up.mean["params"]
        moved = tree.sub(
            tree.pick(average, server["drift"]), tree.pick(server["params"], server["drift"])
        )
        h = tree.sub(server["drift"], tree.scale(moved, len(ids) / server["clients"]))
        w = average | tree.sub(tree.pick(average, h), h)
        new = {"params": w, "drift": h}
        return server | new | ({"average": average} if eval_point == "average" else {})

    return fedavg(task)._replace(
        init=init,
        send=send,
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: msg.get("average", msg["params"]),
        common="",  # the server's step is an optimiser already
        mean_only="its server adds up the very moves that clients remember",
    )
