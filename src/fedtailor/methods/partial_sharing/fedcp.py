"""FedCP: each row's features are divided between a head for all and one's own."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, weighted_mean
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.core.turn import finetuned_entries
from fedtailor.methods.parts.representation import head_split

GATE = ("fedcp.weight", "fedcp.bias", "fedcp.scale", "fedcp.shift")  # beside the network's names
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of MMD's kernels


def fedcp(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(0.5, 20, log=True)] = 5.0,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """A gate learnt by all divides each row's features between the global and the personal head.

        z = body(x),  v = Σ_c W_k[c, :] of the personal head as the turn begins,  v̂ = v / |v|
        o = ReLU(LN(A (z ∘ v̂) + a)), in two halves of K numbers
        (s, r) = softmax of the pair (o₁, o₂), entry by entry, with Gumbel noise: s + r = 1
        logits = head_k(s ∘ z) + head_G(r ∘ z)
        SGD over body, head_k and gate on CE + λ MMD²(z, z₀),  z₀ of the received body
        body, gate ← Σ_k Ω_k of each;   head_G ← Σ_k Ω_k (head_k + head_G) / 2

    MMD² compares the batch's features with kernels exp(−d² / 2a), a = 10, 15, 20 and 50. Learnt on
    the server: body, gate and head_G. Learnt on the client: head_k, which begins as the head_G that
    the client first receives, and is never sent as it is.
    Tested with everything received, head_k as it was kept, and no noise. Fine-tuning before a test
    trains body, gate and head_k, as a turn does, with v̂ and head_G as they are.

    Args:
      lam: λ, how much features for all are held near the received body's.
      weighting: a client's weight in the means: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: there is no noise in tests (the authors' code: there is, so that two equal tests
    differ). In a client's first turn v comes from its head, too (code: a random vector). The
    received body is in evaluation mode (code: in training mode, where BatchNorm depends on the
    batch). Absent clients receive all parts when they come back.

    Reference: Zhang et al., "FedCP: Separating Feature Information for Personalized Federated
    Learning via Conditional Policy", KDD 2023, https://arxiv.org/abs/2307.01217

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedcp(toy_task(), lam=1.0)
    """
    split = head_split(task, "FedCP divides features between two heads")
    width, head = split.width, task.head
    matrices = [k for k, p in tree.pick(task.init(rng.key(0)), head).items() if p.ndim == 2]

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        body, own = carried | theta["body"], theta["own"]
        features, _, buffers = split.embed(body | own, batch)
        noise = _gumbel(rng.fold(batch.key, -7), features)
        mine, theirs = gates(theta["gate"], features, given["condition"], noise)
        said = split.classify(own, mine * features, batch) + split.classify(
            given["head"], theirs * features, batch
        )
        loss = weighted_mean(task.losses(said, batch.y, batch.weight), batch)
        if lam:
            assert task.features is not None
            fixed = task.features(given["received"] | given["head"], batch.x)
            loss = loss + lam * mmd(features, fixed, batch.weight)
        return loss, buffers

    def condition(own: Params) -> Tensor:
        summed = own[matrices[-1]].sum(0)
        for name in reversed(matrices[:-1]):  # of several layers, the columns of their product
            summed = summed @ own[name]
        return summed / (summed.square().sum() + 1e-12).sqrt()

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        kind = tree.leaves(initial)[0].dtype
        return {"shared": initial | {k: v.to(kind) for k, v in gate_of(width, key).items()}}

    def parts(shared: Params) -> tuple[Params, Params, Params]:
        """Body, head for all, gate."""
        gate = tree.pick(shared, GATE)
        return tree.drop(shared, [*head, *GATE]), tree.pick(shared, head), gate

    def model(shared: Params, own: Params, toward: Tensor) -> Tree:
        body, common, gate = parts(shared)
        return {"body": body, "head": common, "own": own, "gate": gate, "condition": toward}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        body, common, gate = parts(msg["shared"])
        toward = condition(state["own"])
        done = descend(
            objective,
            {"body": tree.drop(body, task.buffers), "own": state["own"], "gate": gate},
            data,
            turn,
            recipe,
            given={"condition": toward, "head": common, "received": body},
            carried=tree.pick(body, task.buffers),
            task=task,
            augment=task.augment,
        )
        own = done.theta["own"]
        trained = done.theta["body"] | done.carried | done.theta["gate"]
        halfway = tree.lerp(common, own, 0.5)
        sent = {k: (trained | halfway)[k] for k in msg["shared"]}
        now = {k: (trained | common)[k] for k in msg["shared"]}
        upload = Upload({"shared": sent}, by_size(data, weighting))
        return Outcome({"own": own}, upload, model(now, own, toward))

    def predict(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["body"] | model["head"], x)
        mine, theirs = gates(model["gate"], features, model["condition"])
        own = split.classify(model["own"], mine * features)
        return own + split.classify(model["head"], theirs * features)

    return Method(
        init=init,
        send=lambda server, cid, turn: server,
        start=lambda msg, initial, key: {"own": tree.pick(msg["shared"], head)},
        client=client,
        receive=lambda server, ids, up, turn: {"shared": up.mean["shared"]},
        personal=lambda msg, state, data, turn: model(
            msg["shared"], state["own"], condition(state["own"])
        ),
        predict=predict,
        common="shared",
        finetune=lambda msg, state, model, data, turn, recipe: finetuned_entries(
            predict, task, model, data, turn, recipe, ["body", "own", "gate"]
        ),
    )


def gate_of(width: int, key: Key) -> Params:
    """The gate as it begins: a layer as torch draws it, and LayerNorm.

    Example:
      >>> sum(p.numel() for p in gate_of(5, rng.key(0)).values())  # 2 K² + 6 K
      80
    """
    bound, (one, two) = 1 / math.sqrt(width), rng.split(key)
    weight = (2 * rng.uniform(one, 2 * width, width) - 1) * bound
    bias = (2 * rng.uniform(two, 2 * width) - 1) * bound
    ones = torch.ones_like(bias)
    return dict(zip(GATE, (weight, bias, ones, 0 * ones), strict=True))


def gates(
    gate: Params, features: Tensor, condition: Tensor, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which share of each feature is the personal head's, and which the global one's."""
    weight, bias, scale, shift = (gate[name] for name in GATE)
    inner = F.linear(features * condition, weight, bias)
    pairs = F.relu(F.layer_norm(inner, inner.shape[-1:], scale, shift))
    mine, theirs = pairs.chunk(2, -1)
    share = torch.sigmoid(mine - theirs if noise is None else mine - theirs + noise)
    return share, 1 - share


def _gumbel(key: Key, features: Tensor) -> Tensor:
    """The difference of two Gumbel draws for each feature: logistic noise."""
    drawn = rng.uniform(key, *features.shape, dtype=features.dtype).clamp(1e-6, 1 - 1e-6)
    return (drawn / (1 - drawn)).log()


def mmd(one: Tensor, two: Tensor, weight: Tensor) -> Tensor:
    """MMD² of two sets of rows: mean over all pairs of k(x, x') + k(y, y') − 2 k(x, y').

    Args:
      one: rows.
      two: as many rows.
      weight: 1 for each row that counts, else 0.
    """
    pairs = weight[:, None] * weight / weight.sum().clamp(min=1).square()

    def kernels(a: Tensor, b: Tensor) -> Tensor:
        apart = (a[:, None] - b).square().sum(-1)
        found = [(-apart / (2 * width)).exp() for width in WIDTHS]
        return torch.stack(found).sum(0)

    return (pairs * (kernels(one, one) + kernels(two, two) - 2 * kernels(one, two))).sum()
