"""FedPAC: a shared body aligned to prototypes, and heads combined for each client."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import ClientCount, Method, Outcome, Upload, by_size, only_classes
from fedtailor.core.options import NonNegative, Search, Weighting, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.partial import all_names
from fedtailor.methods.parts.representation import (
    ClassSums,
    class_sums,
    head_split,
    number_of_classes,
    pulled_loss,
)
from fedtailor.methods.parts.simplex import mixing_weights

SMALL = 1e-3  # weights below are left out


def fedpac(
    task: Task,
    *,
    lam: Annotated[NonNegative, Search(0.1, 100, log=True)] = 1.0,
    head_lr: Annotated[NonNegative, Search(0.01, 0.5, log=True)] = 0.1,
    head_epochs: Whole = 1,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """The body is shared and pulled to prototypes; each head is the best mixture of all heads.

        at the received body:  π_kc = n_kc / n_k,  μ_kc = mean of z over rows of class c
          h_k[c] = π_kc μ_kc,   V_k = (1/n_k) Σ_c (π_kc mean |z|² − π_kc² |μ_kc|²)
        head_k ← E_h epochs, body fixed
        body_k ← E epochs on CE + λ mean_b |z_b − T[y_b]|² / K, head fixed
          T[c] = P[c], or μ_kc where nobody had class c; no pull in the first round
        body ← Σ_k Ω_k body_k;   P[c] ← Σ_k n_kc p_k[c] / Σ_k n_kc,  p_k[c] after training
        α_i = argmin over the simplex of Σ_j α_j² V_j + |h_i − Σ_j α_j h_j|²
        head_i ← Σ_j α_ij head_j,  for i and j in the cohort

    Learnt on the server: body, prototypes P, and a head for each client, which is sent to it alone.
    Kept by the client: nothing. Tested with body and its head; who never took part gets the mean of
    the last round's heads. Fine-tuning before a test trains the head alone. Weights α below 0.001
    are left out, and the others sum to 1 again.

    Args:
      lam: strength λ of the pull.
      head_lr: learning rate of the head's epochs.
      head_epochs: E_h.
      weighting: a client's weight in the body's mean: `data` or `uniform`.
      recipe: how a client trains the body in a round.

    Deviations: α is found without forming K x K matrices, which gives the same weights. V_k has
    1e-8 added, so that a client with rows of one kind does not divide by 0. The authors send body
    and prototypes to clients that are absent, too.

    Reference: Xu et al., "Personalized Federated Learning with Feature Alignment and Classifier
    Collaboration", ICLR 2023, https://arxiv.org/abs/2306.11867

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedpac(toy_task(), lam=0.1)
    """
    split = head_split(task, "FedPAC aligns features")
    classes, head = number_of_classes(task), task.head
    body = [name for name in all_names(task) if name not in head]
    for_head = replace(recipe, epochs=head_epochs, steps=0, lr=head_lr)
    loss = pulled_loss(task, lam) if lam else None

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        some, own = tree.leaves(initial)[0], tree.pick(initial, head)
        return {
            "shared": tree.pick(initial, body),
            "prototypes": some.new_zeros(classes, split.width),
            "seen": some.new_zeros(classes),
            "heads": tree.tile(own, clients),
            "mean_head": own,
            "met": torch.zeros(clients, dtype=torch.bool, device=key.device),
            "weights": torch.eye(clients, device=key.device, dtype=some.dtype),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        own = tree.index(server["heads"], cid)
        return {
            "shared": server["shared"],
            "head": tree.where(server["met"][cid], own, server["mean_head"]),
            "prototypes": server["prototypes"],
            "seen": server["seen"],
        }

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        params = whole(msg)
        before = class_sums(task, params, data)
        if head_epochs:
            params = fit(task, params, data, turn, for_head, train=head)
        known, seen = msg["prototypes"], msg["seen"]
        given = {
            "targets": torch.where(seen[:, None] > 0, known, before.means),
            "seen": (seen > 0).any().to(seen.dtype).expand(classes),
        }
        params = fit(task, params, data, turn, recipe, loss=loss, given=given, train=body)
        after = class_sums(task, params, data)
        shares, variance = head_statistics(before)
        each = {
            "head": tree.pick(params, head),
            "shares": shares,
            "variance": variance,
            "prototypes": after.means,
            "rows": after.rows,
        }
        upload = Upload({"shared": tree.pick(params, body)}, by_size(data, weighting), each)
        return Outcome(state, upload, params)

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        each = up.each
        weights = mixing_weights(each["shares"].flatten(1), each["variance"])
        weights = torch.where(weights < SMALL, 0.0, weights)
        weights = weights / weights.sum(1, keepdim=True)
        mixed = tree.map(lambda p: torch.tensordot(weights.to(p.dtype), p, 1), each["head"])
        rows = each["rows"].sum(0)
        sums = (each["prototypes"] * each["rows"][..., None]).sum(0)
        had = rows > 0
        fresh = sums / torch.where(had, rows, 1.0)[:, None]
        among = torch.zeros_like(server["weights"][ids]).index_copy(1, ids, weights)
        return {
            "shared": up.mean["shared"],
            "prototypes": torch.where(had[:, None], fresh, server["prototypes"]),
            "seen": torch.maximum(server["seen"], had.to(rows.dtype)),
            "heads": tree.put(server["heads"], ids, mixed),
            "mean_head": tree.map(lambda p: p.mean(0), each["head"]),
            "met": server["met"].index_fill(0, ids, True),
            "weights": server["weights"].index_copy(0, ids, among),
        }

    def whole(msg: Tree) -> Params:
        params = msg["shared"] | msg["head"]
        return {name: params[name] for name in all_names(task)}

    return Method(
        init=init,
        send=send,
        start=lambda msg, initial, key: {},
        client=client,
        receive=receive,
        personal=lambda msg, state, data, turn: whole(msg),
        predict=task.predict,
        record=lambda server: {"head_weights": server["weights"]},
        common="shared",
        refuses=only_classes("prototypes are means of classes"),
        by_class="all",
        not_private=(
            "means and numbers of rows of each class are sent without noise, so there is no "
            "guarantee: choose another method"
        ),
        finetune=lambda msg, state, model, data, turn, recipe: fit(
            task, model, data, turn, recipe, train=head
        ),
    )


def head_statistics(sums: ClassSums) -> tuple[Tensor, Tensor]:
    """A client's h (classes x width) and V, from which the server sees whose heads suit it.

        h[c] = π_c μ_c,   V = (1/n) Σ_c (π_c mean |z|² − π_c² |μ_c|²)

    Example:
      >>> one = ClassSums(torch.tensor([[4.0], [0.0]]), torch.tensor([2.0, 0.0]),
      ...                 torch.tensor([10.0, 0.0]))  # z = 1 and 3 of class 0
      >>> [found.tolist() for found in head_statistics(one)]
      [[[2.0], [0.0]], 0.5]
    """
    n = sums.rows.sum().clamp(min=1)
    shares = sums.features / n
    spread = sums.squares.sum() / n - shares.square().sum()
    return shares, spread.clamp(min=0) / n + 1e-8
