"""APPLE: every client learns how much of everybody's core model to take."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import tree, wire
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Clients, Method, Outcome, Upload
from fedtailor.core.options import NonNegative, Share, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.directed import (
    Schedule,
    combined,
    fading,
    learn,
    others_of,
    surroundings,
)


def apple(
    task: Task,
    *,
    M: Whole = 0,
    eta2: NonNegative = 0.001,
    mu: NonNegative = 0.1,
    L: Share = 0.1,
    schedule: Schedule = "cosine",
    recipe: Recipe = Recipe(),
) -> Method:
    """Clients publish core models c_j; each combines them with directed weights of its own.

        w_i = Σ_j p_ij c_j;   per mini-batch, with g = ∇CE(w_i):
            c_i ← c_i − η₁ p_ii g,   p_ij ← p_ij − η₂ (⟨g, c_j⟩ + 2 λ(t) μ (p_ij − p⁰_j))

    p⁰_j = n_j / Σ n; λ(t) falls from 1 to 0 over the first L T rounds. Learnt on the client: c_i
    (uploaded) and p_i (kept). Tested with w_i.

    Args:
      M: cores of others that a client downloads, drawn anew each round; 0 for all of them.
      eta2: learning rate η₂ of p_i; η₁ is the recipe's, and where that decays η₂ does, too. With
        0 p_i stays at p⁰.
      mu: strength μ of the pull of p_i to p⁰.
      L: share of the rounds in which λ(t) falls.
      schedule: `cosine` or `exponential` (0.001^(t/LT)).
      recipe: how a client trains in a round.

    Deviations: the regulariser is λ μ |p − p⁰|², as in the code (paper: μ/2). One common initial
    model (the code: one per client). How the M are chosen is open in the seed paper: at random
    here. The core is uploaded, not the personalised model (one public code uploads that). Weight
    decay acts on the core alone.

    Reference: Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated
    Learning", IJCAI 2022, https://arxiv.org/abs/2110.08394
    """

    if recipe.optimizer != "sgd":
        raise BadInput(f"apple: optimizer is {recipe.optimizer}: its two learning rates need sgd")
    if eta2 and not recipe.lr:
        raise BadInput(f"apple: lr is 0, but eta2 is {eta2}, and both decay together: raise lr")

    def init(clients: Clients, initial: Params, key: Key) -> Tree:
        sizes = getattr(clients, "sizes", torch.ones(clients, device=key.device))
        return {
            "cores": tree.tile(tree.drop(initial, task.buffers), clients),
            "prior": sizes.to(torch.get_default_dtype()) / sizes.sum(),
            "met": torch.zeros(clients, dtype=torch.bool, device=key.device),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        count = len(server["met"])
        others = others_of(cid, count, M, turn.key)
        own = (torch.arange(count, device=cid.device) == cid).to(server["prior"].dtype)
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

    def around(msg: Tree, state: Tree, turn: Turn) -> Tree:
        pull = fading(turn, L, schedule) * mu
        return surroundings(msg["cores"], state["own"], state["prior"], pull)

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        given = around(msg, state, turn)
        done = learn(task, state, given, data, turn, recipe, eta2)
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
        params: Params = combined(state, around(msg, state, turn)) | state["buffers"]
        return params

    return Method(init, send, start, client, receive, personal, task.predict)
