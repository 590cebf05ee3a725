"""Fed-RoD: a generic head that all learn for balanced classes, a personal one on top of it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import (
    ClientCount,
    Download,
    Method,
    Outcome,
    Upload,
    beginning,
    by_size,
    only_classes,
)
from fedtailor.core.options import Count, NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import finetuned_entries
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.hypernetwork import apply_linear, linear
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
    hyper: bool = False,
    hidden: Count = 32,
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

    With `hyper` no client has a head of its own: h_k = H(π_k; ν) is written by a network of one
    hidden layer from the shares π_k of classes at the client. L_P trains ν in its place, and the
    server averages it as it does w. So clients that never took part have a head as well.

    Args:
      gamma: γ, how much classes are balanced. With 0 the generic path is FedAvg.
      own_start: what h_k begins as: a `copy` of the initial h_G, or `zero`, which adds nothing.
      hyper: whether a hypernetwork writes h_k. It travels both ways: for K features and C classes
        about `hidden` · C (K + 1) numbers more.
      hidden: units of the hypernetwork's hidden layer.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; `clip` is of both heads' gradients together.

    Deviations: the authors' code is not public; the equations are those that three other codes
    and the abstract agree on. Classes are counted from labels. `hyper` is a reconstruction: what is
    known is that a hypernetwork writes h_k from the client's classes. Its last layer begins with
    weights of 0, so that h_k begins as `own_start` says.

    Reference: Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image
    Classification", ICLR 2022, https://arxiv.org/abs/2107.00778

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedrod(toy_task(), gamma=0.5, own_start="zero")
    """
    split = head_split(task, "Fed-RoD puts a second head on features")
    classes, shapes = number_of_classes(task), tree.shapes(task.init(rng.key(0)))
    shared = fedavg(task, weighting=weighting, recipe=recipe)

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        features, logits, buffers = split.embed(carried | theta["params"], batch)
        balanced = logits + gamma * given["prior"] if gamma else logits
        head = written(theta["hyper"], given["shares"]) if hyper else theta["own"]
        own = logits.detach() + split.classify(head, features.detach(), batch)
        each = (task.losses(said, batch.y, batch.weight) for said in (balanced, own))
        generic, personal = (weighted_mean(losses, batch) for losses in each)
        return generic + personal, buffers

    def first_head(initial: Params) -> Params:
        own = tree.pick(initial, task.head)
        zero: Params = tree.map(torch.zeros_like, own)
        return zero if own_start == "zero" else own

    def written(net: Tree, shares: Tensor) -> Params:
        inner = apply_linear(net["first"], shares).relu()
        return {k: apply_linear(layer, inner).view(shapes[k]) for k, layer in net["last"].items()}

    def new_writer(initial: Params, key: Key) -> Tree:
        own = first_head(initial)
        zeros = {k: p.new_zeros(p.numel(), hidden) for k, p in own.items()}
        last = {k: {"weight": zeros[k], "bias": p.flatten()} for k, p in own.items()}
        first = tree.map(lambda p: p.to(tree.leaves(own)[0]), linear(key, classes, hidden))
        return {"first": first, "last": last}

    def shares_of(rows: Tensor) -> Tensor:
        return rows / rows.sum().clamp(min=1)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        server = shared.init(clients, initial, key)
        return server | ({"hyper": new_writer(initial, key)} if hyper else {})

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        if hyper:
            return {}
        return {"own": first_head(initial), "met": torch.zeros((), device=key.device)}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        begin, rows = beginning(msg, msg["params"]), rows_per_class(data, classes)
        given = {"prior": log_prior(rows)} if gamma else {}
        given |= {"shares": shares_of(rows)} if hyper else {}
        mine = {"hyper": msg["hyper"]} if hyper else {"own": state["own"]}
        done = descend(
            objective,
            {"params": tree.drop(begin, task.buffers)} | mine,
            data,
            turn,
            recipe,
            given=given,
            carried=tree.pick(begin, task.buffers),
            task=task,
            augment=task.augment,
        )
        params = {k: (done.theta["params"] | done.carried)[k] for k in begin}
        sent: Tree = {"params": params} | tree.pick(done.theta, ["hyper"])
        own = written(sent["hyper"], given["shares"]) if hyper else done.theta["own"]
        kept = {} if hyper else {"own": own, "met": torch.ones_like(state["met"])}
        upload = Upload(sent, by_size(data, weighting))
        return Outcome(kept, upload, {"params": params, "own": own})

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Tree:
        if hyper:
            own = written(msg["hyper"], shares_of(rows_per_class(data, classes)))
        else:  # a head of zeros says nothing
            own = tree.map(lambda p: torch.where(state["met"] > 0, p, 0.0), state["own"])
        return {"params": beginning(msg, msg["params"]), "own": own}

    def predict(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["params"], x)
        return split.classify(model["params"], features) + split.classify(model["own"], features)

    return shared._replace(
        init=init,
        send=lambda server, cid, turn: tree.pick(server, ["params", "hyper"]),
        receive=lambda server, ids, up, turn: tree.pick(up.mean, ["params", "hyper"]),
        start=start,
        client=client,
        personal=personal,
        predict=predict,
        general=lambda msg, state: msg["params"],
        download=Download("params", client),
        refuses=only_classes("its loss balances classes"),
        not_private=_PRIVATE if gamma or hyper else "",
        finetune=lambda msg, state, model, data, turn, recipe: finetuned_entries(
            predict, task, model, data, turn, recipe, ["own"]
        ),
    )


_PRIVATE = (
    "it counts a client's rows of each class without noise, so there is no guarantee: choose "
    "gamma=0 without hyper, or another method"
)
