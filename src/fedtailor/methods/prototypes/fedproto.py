"""FedProto: clients exchange the mean features of their classes, and no models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, only_classes
from fedtailor.core.options import NonNegative, Search, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, descend, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.local_steps import local_steps
from fedtailor.methods.parts.representation import (
    ClassSums,
    class_sums,
    head_split,
    nearness,
    number_of_classes,
    pulled,
    pulled_loss,
    rows_per_class,
    weights_by_class,
)

Predict = Literal["nearest", "own_nearest", "head"]


def fedproto(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(0.1, 100, log=True)] = 1.0,
    weighting: Weighting = "uniform",
    proto_from: Literal["after", "running", "before"] = "after",
    keep: bool = True,
    predict: Annotated[Predict, Search()] = "nearest",
    networks: Sequence[Task] = (),
    recipe: Recipe = Recipe(),
) -> Method:
    """Every client has a model of its own, whose features of a class are pulled to all clients'.

        z = body(x);   w_k ← SGD on CE + λ mean_b |z_b − P[y_b]|² / K       P[c] received, K = |z|
        p_k[c] = mean of z over the client's rows of class c, with the trained w_k
        P[c] ← Σ_k v_kc p_k[c] / Σ_k v_kc          over clients of the cohort that have class c

    Classes without a P pull nothing: in the first round none does. Learnt on the server: P, the
    classes' prototypes. Learnt on the client: its whole model, which is never sent. Tested with
    the nearest prototype, logits −|z − P[c]|² / K; with the head until there is one. Fine-tuning
    before a test trains w_k on the same loss, with P as it is.

    Clients may have networks of different depths and kinds, if their features have one width.

    Args:
      lam: strength λ of the pull. With 0 models are those of training alone.
      weighting: v_kc: 1 (`uniform`, the authors' code) or the client's rows of class c (`data`).
      proto_from: what p_k[c] is a mean of: features of all rows `after` training, in evaluation
        mode, or `before` it, or, as in the authors' code, those that batches had in the last epoch,
        each before its step (`running`: with a single batch, those of the model before it was
        trained).
      keep: whether a class that nobody of the cohort has keeps its P; without (the authors' code)
        it has none until somebody has it again.
      predict: by the `nearest` P, by the nearest of a class that the client has (`own_nearest`, the
        authors' code), or by the client's `head`.
      networks: those of all clients, the server's first, where they differ.
      recipe: how a client trains in a round.

    Deviations: prototypes are means over all rows with the trained model, see `proto_from`. λ is
    for squared distances divided by K, as in the code.

    Reference: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients",
    AAAI 2022, https://arxiv.org/abs/2105.00243

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedproto(toy_task(), lam=0.1, predict="head")
    """
    split = head_split(task, "prototypes are class means of features")
    classes = number_of_classes(task)
    theirs = networks[0].split.width if networks and networks[0].split else split.width
    if theirs != split.width:
        raise BadInput(
            f"prototypes need features of one width, but networks have {split.width} and {theirs}: "
            "choose networks whose last layer takes as many numbers"
        )

    loss = pulled_loss(task, lam) if lam else None

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        some = tree.leaves(initial)[0]
        return {
            "prototypes": some.new_zeros(classes, split.width),
            "seen": some.new_zeros(classes),
        }

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        """The same loss; features of the last epoch's batches are added up on the way."""
        params = carried["buffers"] | theta
        value, features, buffers = pulled(task, lam, params, batch, given)
        last = (carried["step"] >= given["last"]).to(features.dtype)
        of = weights_by_class(batch.y, last * batch.weight, classes, features.dtype)
        changed = {
            "buffers": carried["buffers"] | buffers,
            "features": carried["features"] + of.mT @ features.detach(),
            "rows": carried["rows"] + of.sum(0),
            "step": carried["step"] + 1,
        }
        return value, changed

    def trained_with_sums(
        begin: Params, data: Data, turn: Turn, given: Tree
    ) -> tuple[Params, ClassSums]:
        steps, zero = local_steps(recipe, data), torch.zeros_like(given["targets"])
        epochs = 1 if recipe.steps else max(recipe.epochs, 1)
        done = descend(
            objective,
            tree.drop(begin, task.buffers),
            data,
            turn,
            recipe,
            given=given | {"last": steps - steps // epochs},
            carried={
                "buffers": tree.pick(begin, task.buffers),
                "features": zero,
                "rows": zero[:, 0],
                "step": torch.zeros_like(steps),
            },
            task=task,
            augment=task.augment,
        )
        found = done.carried
        params = {k: (found["buffers"] | done.theta)[k] for k in begin}
        return params, ClassSums(found["features"], found["rows"], zero[:, 0])

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        given = {"targets": msg["prototypes"], "seen": msg["seen"]}
        if proto_from == "running":
            params, sums = trained_with_sums(state["own"], data, turn, given)
        else:
            params = fit(task, state["own"], data, turn, recipe, loss=loss, given=given)
            sums = class_sums(task, params if proto_from == "after" else state["own"], data)
        if weighting == "uniform":
            told = {"features": sums.seen[:, None] * sums.means, "rows": sums.seen}
        else:
            told = {"features": sums.features, "rows": sums.rows}
        return Outcome({"own": params}, Upload(told), model(msg, params, data))

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        features, rows = up.mean["features"], up.mean["rows"]
        had = rows > 0
        fresh = features / torch.where(had, rows, 1.0)[:, None]
        seen = had.to(rows.dtype)
        return {
            "prototypes": torch.where(had[:, None], fresh, server["prototypes"]),
            "seen": torch.maximum(server["seen"], seen) if keep else seen,
        }

    def model(msg: Tree, params: Params, data: Data) -> Tree:
        if predict == "head":
            return params
        seen = msg["seen"] > 0
        if predict == "own_nearest":
            seen = seen & (rows_per_class(data, classes) > 0)
        return {"params": params, "prototypes": msg["prototypes"], "seen": seen}

    def finetune(
        msg: Tree, state: Tree, model: Tree, data: Data, turn: Turn, recipe: Recipe
    ) -> Tree:
        given = {"targets": model["prototypes"], "seen": model["seen"]}
        params = fit(task, model["params"], data, turn, recipe, loss=loss, given=given)
        return model | {"params": params}

    def nearest(model: Tree, x: Tensor) -> Tensor:
        assert task.features is not None
        features = task.features(model["params"], x)
        near = nearness(features, model["prototypes"], model["seen"])
        return torch.where(model["seen"].any(), near, split.classify(model["params"], features))

    return Method(
        init=init,
        send=lambda server, cid, turn: server,
        start=lambda msg, initial, key: {"own": initial},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: model(msg, state["own"], data),
        predict=task.predict if predict == "head" else nearest,
        refuses=only_classes("prototypes are means of classes"),
        by_class="steps" if proto_from == "running" and recipe.steps else "all",
        own_networks="deepest",
        mean_only="prototypes are sums of features over numbers of rows",
        not_private=(
            "means of each class's features are sent without noise, so there is no guarantee: "
            "choose another method"
        ),
        finetune=None if predict == "head" else finetune,
    )
