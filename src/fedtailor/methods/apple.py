"""APPLE: every client learns how much of everybody's core model to take."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from .. import rng, tree, wire
from ..data import Data
from ..errors import BadInput
from ..method import Clients, Method, Outcome, Upload
from ..options import NonNegative, Share, Whole
from ..rng import Key, Turn
from ..task import Batch, Task
from ..train import Recipe, Slope, descend
from ..tree import Params, Tree


def apple(
    task: Task,
    *,
    M: Whole = 0,
    eta2: NonNegative = 0.001,
    mu: NonNegative = 0.1,
    L: Share = 0.1,
    schedule: Literal["cosine", "exponential"] = "cosine",
    recipe: Recipe = Recipe(),
) -> Method:
    """Clients publish core models c_j; each combines them with directed weights of its own.

        w_i = Σ_j p_ij c_j;   per mini-batch, with g = ∇CE(w_i):
            c_i ← c_i − η₁ p_ii g,   p_ij ← p_ij − η₂ (⟨g, c_j⟩ + 2 λ(t) μ (p_ij − p⁰_j))

    p⁰_j = n_j / Σ n; λ(t) falls from 1 to 0 over the first L T rounds. Learnt on the client: c_i
    (uploaded) and p_i (kept). Tested with w_i.

    Args:
      M: cores of others that a client downloads, drawn anew each round; 0 for all of them.
      eta2: learning rate η₂ of p_i; η₁ is the recipe's. With 0 p_i stays at p⁰.
      mu: strength μ of the pull of p_i to p⁰.
      L: share of the rounds in which λ(t) falls.
      schedule: `cosine` or `exponential` (0.001^(t/LT)).
      recipe: how a client trains in a round.

    Deviations: the regulariser is λ μ |p − p⁰|², as in the code (paper: μ/2). One common initial
    model (the code: one per client). How the M are chosen is open in the seed paper: at random
    here. The core is uploaded, not the personalised model (one public code uploads that).

    Reference: Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated
    Learning", IJCAI 2022, https://arxiv.org/abs/2110.08394
    """

    if recipe.optimizer != "sgd":
        raise BadInput(f"apple: optimizer is {recipe.optimizer}: its two learning rates need sgd")

    def init(clients: Clients, initial: Params, key: Key) -> Tree:
        sizes = getattr(clients, "sizes", torch.ones(clients, device=key.device))
        return {
            "cores": tree.tile(tree.drop(initial, task.buffers), clients),
            "prior": sizes.to(torch.get_default_dtype()) / sizes.sum(),
            "met": torch.zeros(clients, dtype=torch.bool, device=key.device),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        number = torch.arange(len(server["met"]), device=cid.device)
        others = number != cid
        if M:  # a random draw among the others
            luck = rng.uniform(turn.key, len(number)).masked_fill(~others, 2.0)
            others = others & (luck.argsort().argsort() < M)
        own = (number == cid).to(server["prior"].dtype)
        first = {"prior": server["prior"], "own": own}
        return {
            "cores": wire.maybe(others, server["cores"]),
            "once": wire.maybe(~server["met"][cid], first),
        }

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        once = wire.value(msg["once"])
        return {
            "core": tree.drop(initial, task.buffers),
            "buffers": tree.pick(initial, task.buffers),
            "weights": once["prior"],
            "prior": once["prior"],
            "own": once["own"],
        }

    def combined(theta: Tree, given: Tree) -> Params:
        """w_i from the own core and those that were sent; the others count as not there."""
        mine = (theta["weights"] * given["own"]).sum()
        rest = theta["weights"] * given["here"]
        return {
            k: mine.to(c.dtype) * c + torch.tensordot(rest.to(c.dtype), given["cores"][k], 1)
            for k, c in theta["core"].items()
        }

    def fade(turn: Turn) -> Tensor:
        part = (turn.round / (L * turn.rounds).clamp(min=1e-9)).clamp(max=1.0)
        fall = (torch.cos(math.pi * part) + 1) / 2 if schedule == "cosine" else 0.001**part
        return torch.where(part < 1, fall, 0.0)

    def objective(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tensor, Tree]:
        loss, buffers = task.loss(combined(theta, given) | rest, batch)
        apart = (theta["weights"] - given["prior"]).square()
        # only what was sent can be learnt about
        return loss + given["pull"] * (apart * given["sent"]).sum(), buffers

    def two_rates(at: Slope) -> Slope:
        ratio = eta2 / recipe.lr if recipe.lr else 0.0

        def slope(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tree, Tensor, Tree]:
            grads, loss, changed = at(theta, batch, given, rest)
            return {"core": grads["core"], "weights": ratio * grads["weights"]}, loss, changed

        return slope

    def given_by(msg: Tree, state: Tree, turn: Turn) -> Tree:
        here = wire.here(msg["cores"]).to(state["prior"].dtype)
        return {
            "cores": wire.value(msg["cores"]),
            "here": here,
            "own": state["own"],
            "prior": state["prior"],
            "pull": fade(turn) * mu,
            "sent": here + state["own"],
        }

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        given = given_by(msg, state, turn)
        done = descend(
            objective,
            {"core": state["core"], "weights": state["weights"]},
            data,
            turn,
            recipe,
            given=given,
            carried=state["buffers"],
            gradient=two_rates,
            task=task,
            augment=task.augment,
        )
        core, weights = done.theta["core"], done.theta["weights"]
        kept = state | {"core": core, "buffers": done.carried, "weights": weights}
        model = combined(done.theta, given) | done.carried
        return Outcome(kept, Upload(each={"core": core}), model, {"directed_weight": weights})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return server | {
            "cores": tree.put(server["cores"], ids, up.each["core"]),
            "met": server["met"].index_fill(0, ids, True),
        }

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        params: Params = combined(state, given_by(msg, state, turn)) | state["buffers"]
        return params

    return Method(init, send, start, client, receive, personal, task.predict)
