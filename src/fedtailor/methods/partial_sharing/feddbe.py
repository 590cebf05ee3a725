"""FedDBE: what is a client's own in its features is an offset that stays with it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import (
    ClientCount,
    Download,
    Method,
    Outcome,
    Upload,
    beginning,
    by_size,
)
from fedtailor.core.options import NonNegative, Search, Share, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import finetuned_entries
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.representation import head_split, mean_features


def feddbe(
    task: Task,
    *,
    kappa: Annotated[NonNegative, Search(1, 100, log=True)] = 50.0,
    mu: Share = 1.0,
    offset: bool = True,
    mean_from: Literal["rows", "last"] = "rows",
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg whose clients each add an offset b_k to features, and hold their mean near all's.

        z = body(x);   (w_k, b_k) ← SGD on CE(head(z + b_k), y) + κ |m − ḡ|² / 2K         K = |z|
        m ← (1 − μ) m + μ (mean of the batch's z), from 0 in every turn; its past has no gradient
        w ← Σ_k Ω_k w_k

    In the first round clients train w without any of this; the server keeps ḡ = Σ_k Ω_k m_k, the
    mean features of those who take part, and lets go of the models. Learnt on the server: w and ḡ.
    Learnt on the client: b_k, at first 0. Tested with head(z + b_k); w is tested too. Fine-tuning
    before a test trains b_k alone.

    Args:
      kappa: strength κ with which the mean of features is held. With 0 there is no ḡ, and the first
        round is like all others.
      mu: momentum μ of that mean. Below 1 it is too small in the first steps of every turn: no code
        corrects that.
      offset: whether clients learn b_k. Without, and with κ = 0, it is FedAvg, and fine-tuning is.
      mean_from: what ḡ is made of: features of all `rows` with the trained model, or m as the
        `last` batch left it, which with μ = 1 is that batch alone (the authors' code).
      weighting: a client's weight in both means: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: ḡ is of all rows, see `mean_from`. It is never renewed, as in the code. The authors
    train once before the first round; here that is the first round. ḡ and the means travel in
    every round, 2K numbers.

    Reference: Zhang et al., "Eliminating Domain Bias for Federated Learning in Representation
    Space", NeurIPS 2023, https://arxiv.org/abs/2311.14975

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = feddbe(toy_task(), kappa=1.0)
    """
    split = head_split(task, "FedDBE adds an offset to features")

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        params = carried["buffers"] | theta["params"]
        features, logits, buffers = split.embed(params, batch)
        if offset:
            logits = split.classify(params, features + given["later"] * theta["offset"], batch)
        loss = weighted_mean(task.losses(logits, batch.y, batch.weight), batch)
        changed: Tree = {"buffers": carried["buffers"] | buffers}
        if kappa:
            count = batch.weight.sum().clamp(min=1)
            now = (features * batch.weight[:, None]).sum(0) / count
            mean = (1 - mu) * carried["mean"] + mu * now
            loss = loss + given["later"] * kappa / 2 * (mean - given["mean"]).square().mean()
            changed["mean"] = mean.detach()
        return loss, changed

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        zero = tree.leaves(initial)[0].new_zeros(split.width)
        return {"params": initial} | ({"mean": zero} if kappa else {})

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        return {"offset": tree.leaves(initial)[0].new_zeros(split.width)}

    def later(turn: Turn, like: Tensor) -> Tensor:
        """0 in the first round, if that is for ḡ alone, then 1."""
        return (turn.round > 0).to(like.dtype) if kappa else torch.ones_like(like[0])

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin, zero = beginning(msg, msg["params"]), torch.zeros_like(state["offset"])
        done = descend(
            objective,
            {"params": tree.drop(begin, task.buffers), "offset": state["offset"]},
            data,
            turn,
            recipe,
            given={"later": later(turn, zero), "mean": msg.get("mean", zero)},
            carried={"buffers": tree.pick(begin, task.buffers), "mean": zero},
            task=task,
            augment=task.augment,
        )
        params = {k: (done.theta["params"] | done.carried["buffers"])[k] for k in begin}
        told: Tree = {"params": params}
        if kappa:
            rows = mean_from == "rows"
            told["mean"] = mean_features(task, params, data) if rows else done.carried["mean"]
        kept = {"offset": done.theta["offset"]}
        return Outcome(kept, Upload(told, by_size(data, weighting)), {"params": params} | kept)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        if not kappa:
            return {"params": up.mean["params"]}
        first = turn.round == 0
        return {
            "params": tree.where(first, server["params"], up.mean["params"]),
            "mean": torch.where(first, up.mean["mean"], server["mean"]),
        }

    def predict(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["params"], x)
        return split.classify(model["params"], features + model["offset"])

    def finetune(
        msg: Tree, state: Tree, model: Tree, data: Data, turn: Turn, recipe: Recipe
    ) -> Tree:
        if not offset:  # what is left to train is the network
            return model | {"params": fit(task, model["params"], data, turn, recipe)}
        tuned: Tree = finetuned_entries(predict, task, model, data, turn, recipe, ["offset"])
        return tuned

    return fedavg(task, weighting=weighting, recipe=recipe)._replace(
        init=init,
        send=lambda server, cid, turn: server,
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: {"params": beginning(msg, msg["params"])} | state,
        predict=predict,
        general=lambda msg, state: msg["params"],
        download=Download("params", client),
        not_private=_PRIVATE if kappa else "",
        finetune=finetune,
    )


_PRIVATE = (
    "the mean of a client's features is sent without noise, so there is no guarantee: choose "
    "kappa=0 or another method"
)
