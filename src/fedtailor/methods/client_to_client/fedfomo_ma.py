"""FedFomo-MA: candidates are judged by what the mean of all models loses without them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scoring import mean_loss
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.candidates import mean_losses, normalised


def fedfomo_ma(task: Task, *, recipe: Recipe = Recipe()) -> Method:
    """FedFomo's model-average variant: no single model is sent, only means with one left out.

        w_n = L_i(mean without n) − L_i(mean)                 on validation rows
        θ_new = mean + Σ_n w*_n (θ_n − mean),  w* = max(w, 0) / Σ max(w, 0)

    over all clients that have uploaded; with no w_n > 0, θ_new = mean. Then θ = SGD(θ_new; E) is
    uploaded with the weights. θ_n − mean = (N − 1)(mean − mean without n), so the means suffice,
    and whoever downloads them could compute every model: this hides nothing.

    Args:
      recipe: how a client trains in a round.

    Deviations: the client puts θ_new together itself, from the identity above, instead of
    reporting its weights and downloading the result in a second exchange: one model less on the
    wire, the same numbers. The weights are not divided by distances (Eq. 14; the code does).

    Reference: Zhang et al., "Personalized Federated Learning with First Order Model Optimization",
    ICLR 2021, https://arxiv.org/abs/2012.08565, Eq. 14

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedfomo_ma(toy_task(), recipe=Recipe(epochs=2))
    """

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        never = torch.zeros(clients, dtype=torch.bool, device=key.device)
        return {"models": tree.tile(initial, clients), "uploaded": never, "mean": initial}

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        there = server["uploaded"]
        count = there.sum().to(torch.get_default_dtype())
        without = tree.map(
            lambda m, p: ((count * m)[None] - p) / (count - 1).clamp(min=1),
            server["mean"],
            server["models"],
        )
        # of a single upload nothing would be left without it
        return {"mean": server["mean"], "without": wire.maybe(there & (count > 1), without)}

    def update(msg: Tree, data: Data) -> tuple[Params, Tensor]:
        mean, without, there = msg["mean"], wire.value(msg["without"]), wire.here(msg["without"])
        gain = mean_losses(task, without, data.val) - mean_loss(task, mean, data.val)
        # of a mean whose outputs overflow there is no loss, so nothing to weigh it by
        weights = torch.where(there & gain.isfinite(), gain, 0.0)
        share, _ = normalised(weights)
        reach = share * (there.sum() - 1)
        new = tree.map(
            lambda m, w: m + torch.tensordot(reach.to(w.dtype), m[None] - w, 1), mean, without
        )
        return new, weights

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        new, weights = update(msg, data)
        cur = fit(task, new, data, turn, recipe)
        upload = Upload(each={"model": cur, "weights": weights})
        return Outcome(state, upload, cur, {"candidate_weight": weights})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        models = tree.put(server["models"], ids, up.each["model"])
        there = server["uploaded"].index_fill(0, ids, True)
        share = there.to(torch.get_default_dtype()) / there.sum()
        mean = tree.map(lambda p: torch.tensordot(share.to(p.dtype), p, 1), models)
        return {"models": models, "uploaded": there, "mean": mean}

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: update(msg, data)[0],
        predict=task.predict,
        general=lambda msg, state: msg["mean"],
        validates=True,
    )
