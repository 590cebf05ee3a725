"""Fed-RoD: a generic head that all learn for balanced classes, a personal one on top of it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import (
    Download,
    Method,
    Outcome,
    Upload,
    beginning,
    by_size,
    only_classes,
)
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import finetuned_entries
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.representation import (
    head_split,
    log_prior,
    number_of_classes,
    rows_per_class,
)


def fedrod(
    task: Task,
    *,
    gamma: Annotated[NonNegative, Search(0.5, 2)] = 1.0,
    own_start: Literal["copy", "zero"] = "copy",
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """All learn a body and a generic head for balanced classes; each client adds a head on top.

        z = body(x),  g = h_G(z)
        generic:   L_G = CE(g + γ l_k, y),   l_kc = log n_kc − max_j log n_kj
        personal:  L_P = CE(sg(g) + h_k(sg(z)), y)             sg: no gradient goes through
        (body, h_G, h_k) ← SGD on L_G + L_P;   (body, h_G) ← Σ_k Ω_k (body, h_G)_k

    n_kc rows of class c has client k: where classes are rare at a client, its generic head is not
    taught to pass over them. Classes that it lacks get no gradient from it. Learnt on the server:
    body and h_G, the global model, tested with g. Learnt on the client: h_k. Tested with
    g + h_k(z); with g alone as long as a client has never trained. Fine-tuning before a test
    trains h_k alone, from 0 if the client has never trained.

    Args:
      gamma: γ, how much classes are balanced. With 0 the generic path is FedAvg.
      own_start: what h_k begins as: a `copy` of the initial h_G, or `zero`, which adds nothing.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; `clip` is of both heads' gradients together.

    Deviations: the authors' code is not public; the equations are those that three other codes
    and the abstract agree on. Classes are counted from labels. The variant in which a
    hypernetwork writes h_k is not here.

    Reference: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image
    Classification", ICLR 2022, https://arxiv.org/abs/2107.00778

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedrod(toy_task(), gamma=0.5, own_start="zero")
    """
    split = head_split(task, "Fed-RoD puts a second head on features")
    classes = number_of_classes(task)

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        features, logits, buffers = split.embed(carried | theta["params"], batch)
        balanced = logits + gamma * given["prior"] if gamma else logits
        own = logits.detach() + split.classify(theta["own"], features.detach(), batch)
        each = (task.losses(said, batch.y, batch.weight) for said in (balanced, own))
        generic, personal = (weighted_mean(losses, batch) for losses in each)
        return generic + personal, buffers

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        own = tree.pick(initial, task.head)
        if own_start == "zero":
            own = tree.map(torch.zeros_like, own)
        return {"own": own, "met": torch.zeros((), device=key.device)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin = beginning(msg, msg["params"])
        done = descend(
            objective,
            {"params": tree.drop(begin, task.buffers), "own": state["own"]},
            data,
            turn,
            recipe,
            given={"prior": log_prior(rows_per_class(data, classes))} if gamma else None,
            carried=tree.pick(begin, task.buffers),
            task=task,
            augment=task.augment,
        )
        params = {k: (done.theta["params"] | done.carried)[k] for k in begin}
        own = done.theta["own"]
        upload = Upload({"params": params}, by_size(data, weighting))
        kept = {"own": own, "met": torch.ones_like(state["met"])}
        return Outcome(kept, upload, {"params": params, "own": own})

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Tree:
        # a head of zeros says nothing
        own = tree.map(lambda p: torch.where(state["met"] > 0, p, 0.0), state["own"])
        return {"params": beginning(msg, msg["params"]), "own": own}

    def predict(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["params"], x)
        return split.classify(model["params"], features) + split.classify(model["own"], features)

    shared = fedavg(task, weighting=weighting, recipe=recipe)
    return shared._replace(
        start=start,
        client=client,
        personal=personal,
        predict=predict,
        general=lambda msg, state: msg["params"],
        download=Download("params", client),
        refuses=only_classes("its loss balances classes"),
        not_private=_PRIVATE if gamma else "",
        finetune=lambda model, data, turn, recipe: finetuned_entries(
            predict, task, model, data, turn, recipe, ["own"]
        ),
    )


_PRIVATE = (
    "its loss counts a client's rows of each class without noise, so there is no guarantee: choose "
    "gamma=0 or another method"
)
