"""GPFL: features for all and for oneself, bent by class embeddings that all learn."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size, only_classes
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import finetuned_entries
from fedtailor.methods.parts.representation import head_split, number_of_classes, rows_per_class

TABLE = "gpfl.table"  # names beside the network's own
VALVES = ("gpfl.gamma", "gpfl.beta")
PARTS = ("weight", "bias", "scale", "shift")


def gpfl(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(1e-4, 0.1, log=True)] = 0.01,
    mu: Annotated[NonNegative, Search(1e-3, 1, log=True)] = 0.1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Body, class embeddings T and a conditional valve are shared; each client has its own head.

        z = body(x),  g = mean_c T̂[c],  p_k = Σ_c π_kc T̂[c],  T̂ the received T,  π_kc = n_kc / n_k
        γ(u) = LN(ReLU(G u + g₀)),  β(u) = LN(ReLU(B u + b₀))                     the valve
        f_G = ReLU((1 + γ(g)) z + β(g)),   f_P = ReLU((1 + γ(p_k)) z + β(p_k))
        SGD on CE(head_k(f_P), y) + CE(cos(f_G, T[c])_c, y) + λ |F_G − T̂[y]| + μ/2 |T, valve|²
        body, T, valve ← Σ_k Ω_k of each

    |F_G − T̂[y]| is the norm of the whole batch's matrix. Learnt on the client: its head. Tested
    with head_k(f_P). Fine-tuning before a test trains body and head, with γ and β as they are.

    Args:
      lam: λ, how strongly features for all are held at their class's embedding. It grows with the
        root of the batch's size, as in the authors' code.
      mu: weight decay μ of class embeddings and valve.
      weighting: a client's weight in the means: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: g and p_k come from the received table; the authors' code makes them of the table
    that the client itself trained last. γ and β depend on the condition alone, as in the code (the
    poster: on features, too). Norms have 1e-12 under the root.

    Reference: Zhang et al., "GPFL: Simultaneously Learning Global and Personalized Feature
    Information for Personalized Federated Learning", ICCV 2023, https://arxiv.org/abs/2308.10279

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = gpfl(toy_task(), lam=0.001, mu=0.0)
    """
    split = head_split(task, "GPFL bends features")
    classes, width, head = number_of_classes(task), split.width, task.head

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        shared, own = theta["shared"], theta["own"]
        features, _, buffers = split.embed(carried | tree.drop(shared, _extra()) | own, batch)
        for_all = bent(features, *valves(shared, given["common"]))
        for_one = bent(features, *valves(shared, given["personal"]))
        angles = _unit(for_all) @ _unit(shared[TABLE]).mT
        said = (split.classify(own, for_one, batch), angles)
        losses = (weighted_mean(task.losses(s, batch.y, batch.weight), batch) for s in said)
        apart = (for_all - given["table"][batch.y]).square().sum(-1)
        held = ((apart * batch.weight).sum() + 1e-12).sqrt()
        decay = tree.sq_norm(tree.pick(shared, _extra()))
        return sum(losses, lam * held + mu / 2 * decay), buffers

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        kind = tree.leaves(initial)[0].dtype
        more = {k: v.to(kind) for k, v in small_parts(classes, width, key).items()}
        return {"shared": tree.drop(initial, head) | more}

    def conditions(msg: Tree, data: Data) -> Tree:
        table, rows = msg["shared"][TABLE], rows_per_class(data, classes)
        own = (rows / rows.sum().clamp(min=1)).to(table.dtype) @ table
        return {"common": table.mean(0), "personal": own}

    def model(shared: Params, own: Params, given: Tree) -> Tree:
        gamma, beta = valves(shared, given["personal"])
        known = tree.drop(shared, _extra()) | own
        params = {name: known[name] for block in task.blocks for name in block}
        return {"params": params, "gamma": gamma, "beta": beta}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        received, given = msg["shared"], conditions(msg, data)
        done = descend(
            objective,
            {"shared": tree.drop(received, task.buffers), "own": state["own"]},
            data,
            turn,
            recipe,
            given=given | {"table": received[TABLE]},
            carried=tree.pick(received, task.buffers),
            task=task,
            augment=task.augment,
        )
        shared = {k: (done.theta["shared"] | done.carried)[k] for k in received}
        own = done.theta["own"]
        upload = Upload({"shared": shared}, by_size(data, weighting))
        return Outcome({"own": own}, upload, model(shared, own, given))

    def predict(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["params"], x)
        return split.classify(model["params"], bent(features, model["gamma"], model["beta"]))

    return Method(
        init=init,
        send=lambda server, cid, turn: server,
        start=lambda msg, initial, key: {"own": tree.pick(initial, head)},
        client=client,
        receive=lambda server, ids, up, turn: {"shared": up.mean["shared"]},
        personal=lambda msg, state, data, turn: model(
            msg["shared"], state["own"], conditions(msg, data)
        ),
        predict=predict,
        common="shared",
        refuses=only_classes("it learns an embedding of each class"),
        not_private=(
            "features are bent by a client's shares of classes, without noise, so there is no "
            "guarantee: choose another method"
        ),
        finetune=lambda msg, state, model, data, turn, recipe: finetuned_entries(
            predict, task, model, data, turn, recipe, ["params"]
        ),
    )


def _extra() -> list[str]:
    """The names of what is shared beside the body."""
    return [TABLE, *(f"{valve}.{part}" for valve in VALVES for part in PARTS)]


def small_parts(classes: int, width: int, key: Key) -> Params:
    """Class embeddings and both valves as they begin: layers as torch draws them.

    Example:
      >>> sum(p.numel() for p in small_parts(3, 5, rng.key(0)).values())  # 3 K + 2 K² + 6 K
      95
    """
    table, *own = rng.split(key, 5)
    bound, found = 1 / math.sqrt(width), {TABLE: rng.normal(table, classes, width)}
    for i, valve in enumerate(VALVES):
        weight, bias = (
            (2 * rng.uniform(k, *shape) - 1) * bound
            for k, shape in zip(own[2 * i : 2 * i + 2], ((width, width), (width,)), strict=True)
        )
        ones = torch.ones_like(bias)
        found |= {
            f"{valve}.{part}": value
            for part, value in zip(PARTS, (weight, bias, ones, 0 * ones), strict=True)
        }
    return found


def valves(shared: Params, condition: Tensor) -> tuple[Tensor, Tensor]:
    """γ and β of a condition."""
    found = []
    for valve in VALVES:
        weight, bias, scale, shift = (shared[f"{valve}.{part}"] for part in PARTS)
        inner = F.relu(F.linear(condition, weight, bias))
        found.append(F.layer_norm(inner, inner.shape, scale, shift))
    return found[0], found[1]


def bent(features: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """ReLU((1 + γ) z + β)."""
    return F.relu((1 + gamma) * features + beta)


def _unit(rows: Tensor) -> Tensor:
    return rows / (rows.square().sum(-1, keepdim=True) + 1e-12).sqrt()
