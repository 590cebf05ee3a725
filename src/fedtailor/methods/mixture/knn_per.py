"""kNN-Per: FedAvg's model, and a vote of the client's own rows that look most alike."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.data import Counts, Data
from fedtailor.core.method import ClientCount, Method, beginning, only_classes
from fedtailor.core.options import Above, Count, Search, Share, Weighting
from fedtailor.core.rng import Key, Turn
from fedtailor.core.scoring import are_right, outputs_on
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.representation import FAR, head_split, number_of_classes

log = logging.getLogger(__name__)

GRID = 11  # values of λ that are tried: 0, 0.1, …, 1


def knn_per(
    task: Task,
    *,
    k: Annotated[Count, Search(1, 10)] = 7,
    sigma: Annotated[Above, Search(0.1, 10, log=True)] = 1.0,
    lam: Annotated[Share, Search(0, 1)] = 0.5,
    choose: Literal["client", "fixed"] = "client",
    capacity: Count = 1000,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """FedAvg; a client's predictions are mixed with a vote of its nearest training rows.

        z = body(x) with the received model;  the client's rows are a store of (z_i, y_i)
        p_knn[c] = Σ_i [y_i = c] e_i / Σ_i e_i  over the k nearest i,  e_i = exp(−|z − z_i|² / K σ)
        p = λ p_knn + (1 − λ) softmax(head(z))                                      K = |z|

    Training is FedAvg's. A store is made whenever a client is tested, so that clients that never
    took part have one too. Right after training, a client's model is tested without a store.
    Fine-tuning before a test trains the model, and then makes the store anew.

    Args:
      k: how many neighbours vote; a client with fewer rows has all of them vote.
      sigma: σ: how far a neighbour may be to count.
      lam: λ, where it is not chosen: 0 is FedAvg, 1 is the vote alone.
      choose: whether each `client` chooses its λ among 0, 0.1, …, 1 by how many of its validation
        rows are right, and of equal ones by their loss; or λ is `fixed`: one for all, which
        `fedtailor tune` finds on validation rows. A client without them takes `lam`.
      capacity: rows that a store has room for; a client with more takes some at random. A line
        says so as the run begins, and how many would be enough for all.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round.

    Deviations: stores hold 1,000 rows by default (the paper: all). Probabilities are
    mixed, as the paper says; the authors' scripts mix logits with probabilities, since their flag
    for it is always on. λ is chosen on validation rows (their script: on test rows).

    Reference: Marfoq et al., "Personalized Federated Learning through Local Memorization", ICML
    2022, https://arxiv.org/abs/2111.09360

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = knn_per(toy_task(), k=3, choose="fixed")
    """
    split = head_split(task, "neighbours are found by their features")
    classes, width = number_of_classes(task), split.width
    shared = fedavg(task, weighting=weighting, recipe=recipe)

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        most = int(clients.sizes.max())
        if capacity < most:
            log.warning(
                "capacity is %d: of a client's training rows so many are neighbours, drawn at "
                "random; --set capacity=%d has room for all of everybody's",
                capacity,
                most,
            )
        return shared.init(clients, initial, key)

    def store(params: Params, data: Data, turn: Turn) -> Tree:
        """The features and labels of a client's rows; places that it does not fill are not real."""
        assert task.features is not None
        drawn = data.shuffle(turn.key)
        room = min(capacity, len(data.rows))
        counts = data.counts and Counts(data.counts.n.clamp(max=room), data.counts.val_n)
        some = drawn._replace(rows=drawn.rows[:room], n=data.n.clamp(max=room), counts=counts)
        kind = next(iter(params.values())).dtype
        keys = outputs_on(task.features, params, some, width, kind=kind)
        real = torch.arange(capacity, device=data.n.device) < some.n
        labels = F.pad(data.y[some.rows], (0, capacity - room))
        return {
            "keys": F.pad(keys, (0, 0, 0, capacity - room)),
            "labels": torch.where(real, labels, 0),
            "real": real,
        }

    def votes(model: Tree, features: Tensor) -> Tensor:
        """Logarithms of p_knn."""
        real = model["real"][:, None]
        keys = torch.where(real, model["keys"], 0.0)
        # from their mean, so that nothing large is subtracted from something large
        centre = keys.sum(0) / real.sum().clamp(min=1)
        keys, features = keys - centre, features - centre
        apart = features.square().sum(-1)[:, None] + keys.square().sum(-1) - 2 * features @ keys.mT
        near = torch.where(model["real"], -apart.clamp(min=0) / (width * sigma), FAR)
        found = near.topk(min(k, capacity), -1)
        label = model["labels"][found.indices][..., None]
        of = label == torch.arange(classes, device=label.device)
        said = (found.values.softmax(-1)[..., None] * of).sum(-2)
        return torch.where(said > 0, said.clamp(min=1e-37).log(), FAR)

    def both(model: Tree, x: Tensor) -> Tensor:
        """Logarithms of both probabilities, side by side."""
        assert task.features is not None
        features = task.features(model["params"], x)
        own = split.classify(model["params"], features).log_softmax(-1)
        return torch.cat([votes(model, features), own], -1)

    def mixed(said: Tensor, share: Tensor) -> Tensor:
        """log(λ p_knn + (1 − λ) p), from what `both` says."""
        near, own = said[..., :classes], said[..., classes:]
        return torch.logaddexp(_log(share) + near, _log(1 - share) + own)

    def predict(model: Tree, x: Tensor) -> Tensor:
        if "keys" not in model:  # right after training
            return task.predict(model, x)
        return mixed(both(model, x), model["share"])

    def chosen(model: Tree, data: Data) -> Tensor:
        """The λ with which most validation rows are right."""
        val, fixed = data.val, model["keys"].new_full((), lam)
        said = outputs_on(both, model, val, 2 * classes, kind=fixed.dtype)
        tried = torch.arange(GRID, device=val.n.device, dtype=fixed.dtype) / (GRID - 1)
        logits, labels = mixed(said, tried[:, None, None]), data.y[val.rows]
        real = torch.arange(len(val.rows), device=val.n.device) < val.n
        real = real & logits.isfinite().all(-1)  # what is no answer decides nothing
        right = (are_right(logits, labels) & real).sum(-1)
        truth = labels.expand(GRID, -1)[..., None]
        losses = -torch.where(real, logits.gather(-1, truth)[..., 0], 0.0)
        loss = losses.sum(-1) / val.n.clamp(min=1)
        best = (right - loss / (1 + loss)).argmax()  # a loss decides between equal numbers alone
        return torch.where(val.n > 0, tried[best], fixed)

    def with_store(params: Params, data: Data, turn: Turn) -> Tree:
        model: Tree = {"params": params} | store(params, data, turn)
        fixed = model["keys"].new_full((), lam)
        share = chosen(model, data) if choose == "client" else fixed
        return model | {"share": torch.where(data.n > 0, share, 0.0)}

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Tree:
        return with_store(beginning(msg, msg["params"]), data, turn)

    def finetune(
        msg: Tree, state: Tree, model: Tree, data: Data, turn: Turn, recipe: Recipe
    ) -> Tree:
        return with_store(fit(task, model["params"], data, turn, recipe), data, turn)

    return shared._replace(
        init=init,
        personal=personal,
        predict=predict,
        general=lambda msg, state: msg["params"],
        validates=choose == "client",
        refuses=only_classes("its neighbours vote for classes"),
        not_private=(
            "a client's model is also its rows' features, without noise, so there is no guarantee: "
            "choose another method"
        ),
        finetune=finetune,
    )


def _log(share: Tensor) -> Tensor:
    """The logarithm, of 0 a number that no other can make up for."""
    return torch.where(share > 0, share.clamp(1e-37, 1).log(), FAR)
