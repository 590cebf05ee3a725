"""FedSelect: every single parameter is shared or personal, and those that move become personal."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method, Outcome, Upload, by_size
from fedtailor.core.options import Count, Search, Share
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree


def fedselect(
    task: Task,
    *,
    p: Annotated[Share, Search(0.05, 0.5)] = 0.25,
    limit: Annotated[Share, Search(0.2, 1)] = 0.8,
    every: Annotated[Count, Search(1, 10)] = 3,
    recipe: Recipe = Recipe(),
) -> Method:
    """The personal part of a network grows, client by client, where its parameters move most.

        turn:    for each epoch: one pass that trains personal entries, one that trains the others
        server:  shared[i] = mean over clients for whom entry i is not personal
        every L turns, after training, per weight tensor whose personal share is at most `limit`:
                 of the entries still shared, the part p with the largest |θ − θ_ref| becomes
                 personal;  θ_ref ← θ

    All entries begin shared. Biases stay so; running statistics of BatchNorm are the client's own.
    With p = 0.25 the personal share is 0.25, 0.44, 0.58, 0.68, 0.76, 0.82, and stops there.

    Learnt on the server: shared values. Learnt on the client: its entries, and which they are.
    Tested with own entries in their places and shared ones in theirs.

    Args:
      p: part of a tensor's shared entries that becomes personal at a time; with 0 all stay shared.
      limit: a tensor whose personal share is larger grows no more.
      every: L.
      recipe: how a client trains in a round; each epoch is two passes.

    Deviations: exactly round(p · shared) entries are taken, ties by position (the authors cut by
    value, so that a tensor with many equal changes becomes personal as a whole). Turns are a
    client's own: with everybody in every round they are the rounds. Each pass has an optimiser of
    its own. Values travel whole, with a second number for each entry that says whether it is
    shared: so a mean is enough for the server, but nothing is saved. An entry that is shared by
    nobody keeps its value at the server, for newcomers.

    Reference: Tamirisa et al., "FedSelect: Personalized Federated Learning with Customized
    Selection of Parameters for Fine-Tuning", CVPR 2024, https://arxiv.org/abs/2404.02478

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedselect(toy_task(), p=0.1)
    """
    one_pass = replace(recipe, epochs=1)

    def may_be_personal(name: str) -> bool:
        return name not in task.buffers and "bias" not in name.rpartition(".")[2]

    def placed(params: Params, given: Tree) -> Params:
        """Entries of a part, with all others as they were."""
        old = given["others"]
        return params | {k: torch.where(m, params[k], old[k]) for k, m in given["part"].items()}

    def in_part(params: Params, batch: Batch, given: Tree) -> tuple[Tensor, Params]:
        """The loss as a function of these entries alone."""
        return task.loss(placed(params, given), batch)

    def merged(msg: Tree, state: Tree) -> Params:
        own, mask = state["own"], state["personal"]
        found = {k: torch.where(m, own[k], msg["params"][k]) for k, m in mask.items()}
        return {k: (msg["params"] | tree.pick(own, task.buffers) | found)[k] for k in own}

    def grown(mask: Tensor, change: Tensor) -> Tensor:
        """A mask with the largest of the changes that it does not cover yet."""
        share = mask.to(change.dtype).mean()
        shared = (~mask).sum()
        count = torch.where(share <= limit, (p * shared.to(change.dtype)).round(), 0)
        size = torch.where(mask, -1.0, change).flatten()
        rank = size.argsort(descending=True, stable=True).argsort()
        return mask | (rank < count).view(mask.shape)

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = msg["params"]
        mask = {k: v != v for k, v in own.items() if may_be_personal(k)}
        turns = torch.zeros((), dtype=torch.int64, device=key.device)
        return {"own": own, "reference": tree.pick(own, mask), "personal": mask, "turns": turns}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        own, mask = merged(msg, state), state["personal"]
        everywhere = {k: v == v for k, v in own.items() if k not in task.buffers}
        shared = everywhere | {k: ~m for k, m in mask.items()}
        personal = {k: ~m for k, m in shared.items()}
        for epoch in range(recipe.epochs):
            mine = turn if epoch == 0 else turn.split(epoch + 1)[epoch]
            for part, now in ((personal, mine.aside()), (shared, mine)):
                given = {"part": part, "others": tree.pick(own, part)}
                after = fit(task, own, data, now, one_pass, loss=in_part, given=given)
                own = placed(after, given)
        weights = tree.pick(own, mask)
        due = (state["turns"] > 0) & (state["turns"] % every == 0)
        change = tree.map(lambda w, r: (w - r).abs(), weights, state["reference"])
        more = tree.map(grown, mask, change)
        kept = {
            "own": own,
            "reference": tree.where(due, weights, state["reference"]),
            "personal": tree.where(due, more, mask),
            "turns": state["turns"] + 1,
        }
        # of this turn's mask: what has just become personal is shared a last time
        told = {k: (~m).to(own[k].dtype) for k, m in mask.items()}
        values = own | {k: own[k] * told[k] for k in told}
        return Outcome(
            kept, Upload({"values": values, "shared": told}, by_size(data, "uniform")), own
        )

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        values, old = up.mean["values"], server["params"]
        found = {
            k: torch.where(part > 0, values[k] / part.clamp(min=1e-12), old[k])
            for k, part in up.mean["shared"].items()
        }
        return {"params": {k: (values | found)[k] for k in old}}

    return Method(
        init=lambda clients, initial, key: {"params": initial},
        send=lambda server, cid, turn: {"params": server["params"]},
        start=start,
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: merged(msg, state),
        predict=task.predict,
        general=lambda msg, state: msg["params"],
        mean_only="its server divides two means that belong together",
    )
