"""FedDistill: clients send what they say of each class on average, and no model."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size, only_classes
from fedtailor.core.options import NonNegative, Search
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.representation import class_sums, number_of_classes

NEVER = -1.0  # no round


def feddistill(
    task: Task,
    *,
    gamma: Annotated[NonNegative, Search(0.01, 10, log=True)] = 1.0,
    targets: Literal["probabilities", "logits"] = "probabilities",
    leave_one_out: bool = True,
    share_model: bool = False,
    recipe: Recipe = Recipe(),
) -> Method:
    """Federated distillation: a client learns from what the others say of a class.

        loss = CE + γ KL(t_y | p(x))      on rows whose class y has a target, else CE
        after training:  s_c^k, n_c^k = sum of p(x) over rows of class c, and their number
        t_c = Σ_j s_c^j / Σ_j n_c^j       over the others of the last cohort that had class c

    What a class's sums are of stays until a cohort has that class again. Networks may differ from
    client to client: only tables of classes x classes travel.

    Learnt on the client: its own model, with which it is tested. Learnt on the server: the sums;
    with `share_model`, a model too, which is then trained, sent back and tested by everybody.
    Fine-tuning before a test is on the same loss.

    Args:
      gamma: strength γ of distillation. With 0 this is training alone.
      targets: what is averaged: `probabilities`, or `logits`, whose mean's softmax is then t_c.
      leave_one_out: whether a client learns from the others only: it takes out of the sums what it
        put in itself, and has no target for a class that nobody else had.
      share_model: whether clients also share one model, the plain mean of what they trained (the
        variant that FedGen's authors call FedDistill-FL). Networks may not differ then.
      recipe: how a client trains in a round.

    Deviations: sums are of the trained model on all training rows, in evaluation mode (the paper
    and public codes gather them during training, from a model that moves). The round that each
    class's sums are from travels too, with `leave_one_out`, so that a client knows whether it is
    among them. Shared models are averaged with equal weights, as sums are added up.

    Reference: Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated
    Distillation and Augmentation under Non-IID Private Data", 2018,
    https://arxiv.org/abs/1811.11479

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = feddistill(toy_task(), gamma=0.5)
    """

    def say(params: Params, x: Tensor) -> Tensor:
        outputs = task.predict(params, x)
        return outputs.softmax(-1) if targets == "probabilities" else outputs

    def taught(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        assert task.outputs is not None
        outputs, buffers = task.outputs(params, batch)
        target = given["targets"][batch.y]
        soft = (torch.xlogy(target, target) - target * outputs.log_softmax(-1)).sum(-1)
        hard = task.losses(outputs, batch.y, batch.weight)
        return weighted_mean(hard + gamma * given["known"][batch.y] * soft, batch), buffers

    def nothing(classes: int, device: torch.device) -> Tree:
        rows = torch.zeros(classes, device=device)
        return {"sums": torch.zeros(classes, classes, device=device), "rows": rows}

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        found = nothing(number_of_classes(task, initial), key.device)
        found |= {"round": torch.full_like(found["rows"], NEVER)} if leave_one_out else {}
        return found | ({"params": initial} if share_model else {})

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        said = tree.map(torch.zeros_like, tree.pick(msg, ["sums", "rows"]))
        own = {} if share_model else {"own": initial}
        return own | said | {"round": torch.full_like(msg["rows"][0], NEVER)}

    def model(msg: Tree, state: Tree) -> Params:
        found: Params = msg["params"] if share_model else state["own"]
        return found

    def of_others(msg: Tree, state: Tree) -> Tree:
        """Targets by class, and for each class whether there is one."""
        sums, rows = msg["sums"], msg["rows"]
        if leave_one_out:
            mine = (msg["round"] == state["round"]).to(rows.dtype)
            sums, rows = sums - mine[:, None] * state["sums"], rows - mine * state["rows"]
        known = (rows > 0.5).to(rows.dtype)  # they are whole numbers
        mean = sums / rows.clamp(min=1)[:, None]
        if targets == "logits":
            return {"targets": mean.softmax(-1), "known": known}
        mean = mean.clamp(min=0)  # a difference of sums is never quite exact
        return {"targets": mean / mean.sum(-1, keepdim=True).clamp(min=1e-12), "known": known}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        given = of_others(msg, state)
        loss = taught if gamma else None
        own = fit(task, model(msg, state), data, turn, recipe, loss=loss, given=given)
        found = class_sums(task, own, data, look=say)
        said = {"sums": found.features.to(msg["sums"].dtype), "rows": found.rows}
        said["rows"] = said["rows"].to(msg["rows"].dtype)
        kept = said | {"round": turn.round.to(state["round"].dtype)}
        sent = {"params": own} if share_model else {}
        upload = Upload(said | sent, by_size(data, "uniform"))
        return Outcome(kept if share_model else {"own": own} | kept, upload, own)

    def finetune(
        msg: Tree, state: Tree, model: Params, data: Data, turn: Turn, recipe: Recipe
    ) -> Params:
        loss, given = (taught if gamma else None), of_others(msg, state)
        return fit(task, model, data, turn, recipe, loss=loss, given=given)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        rows = (up.mean["rows"] * len(ids)).round()
        fresh = rows > 0.5
        new = {
            "sums": torch.where(fresh[:, None], up.mean["sums"] * len(ids), server["sums"]),
            "rows": torch.where(fresh, rows, server["rows"]),
        }
        if leave_one_out:
            now = turn.round.to(rows.dtype)
            new["round"] = torch.where(fresh, now, server["round"])
        return new | tree.pick(up.mean, ["params"])

    return Method(
        init=init,
        send=lambda server, cid, turn: server,
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: model(msg, state),
        predict=task.predict,
        mean_only="its server adds up sums and numbers of rows that belong together",
        not_private="sums over the rows of a class are sent without noise, so there is no "
        "guarantee: choose another method",
        refuses=only_classes("it averages class probabilities"),
        by_class="all",
        own_networks="" if share_model else "deepest",
        finetune=finetune,
    )
