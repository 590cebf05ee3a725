"""q-FedAvg: clients whose loss is large count more."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import mean_loss
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.moves import moved_by, scaled_move

SMALL, TINY = 1e-3, 1e-10  # the least loss that counts, for q below 1 and from 1 on


def qfedavg(
    task: Task,
    *,
    q: Annotated[NonNegative, Search(0.001, 15, log=True)] = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Fair resource allocation: the larger q, the more equal the losses of clients.

        min Σ_k p_k F_k(w)^(q+1) / (q+1)

        F_k = F_k(w) on all training rows,   u_k = (w_k − w) / η,   w_k = SGD(w; E)
        Δ_k = F_k^q u_k,    h_k = q F_k^(q−1) |u_k|² + F_k^q / η
        w ← w + Σ_k p_k Δ_k / Σ_k p_k h_k

    1/η stands for the Lipschitz constant of F_k's gradient, so η is best tuned with q = 0, where
    this is FedAvg. Learnt on the server: w. Learnt on the client: nothing that stays there.

    Args:
      q: how much large losses count; 0 is FedAvg. It has to be tuned: 0.001 to 15 in the paper. A
        large q makes steps short, too: the authors' 5 (for Vehicle) stands still on digits.
      weighting: a client's weight p_k: `data` (its number of training rows) or `uniform`. The
        authors draw clients by their rows and weigh them alike; cohorts here are drawn uniformly,
        so rows are in the weights.
      recipe: how a client trains in a round; its learning rate is η.

    Deviations: F_k counts as at least 0.001 for q < 1 (h_k would grow without bound as it falls)
    and 1e-10 else, which is the authors' guard. F_k is the loss of the model as received, in
    evaluation mode, of every client for itself (one public code has one loss for all, so that only
    the length of the step changes; one takes the loss during training). Running statistics of
    BatchNorm are no part of u_k, and are averaged.

    Reference: Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020,
    https://arxiv.org/abs/1905.10497

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = qfedavg(toy_task(), q=1.0)
    """

    if not recipe.lr:
        raise BadInput("qfedavg: lr is 0, and its updates are ways divided by it: raise lr")

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        w, rate = msg["params"], recipe.rate(turn)
        loss = mean_loss(task, w, data).clamp(min=SMALL if q < 1 else TINY)
        params = fit(task, w, data, turn, recipe)
        learnt = tree.drop(params, task.buffers)
        length = tree.sq_norm(tree.sub(learnt, tree.pick(w, learnt))) / rate**2
        large = loss**q
        steep = q * loss ** (q - 1) * length + large / rate
        mean = {"step": scaled_move(task, w, params, large / rate), "steepness": steep}
        upload = Upload(mean, by_size(data, weighting))
        return Outcome(state, upload, params, {"loss": loss})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        step, steep = up.mean["step"], up.mean["steepness"]
        return {"params": moved_by(task, server["params"], step, 1 / steep)}

    return fedavg(task)._replace(
        client=client,
        receive=receive,
        mean_only="its server divides two means that belong together",
        not_private="clients tell of training losses without noise, so there is no guarantee: "
        "choose another method",
    )
