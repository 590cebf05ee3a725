"""APPLE: every client learns how much of everybody's core model to take.

A client's model is a combination of cores with weights of its own, which need not sum to 1 and may
be negative. It learns its own core and its weights; the others' cores are fixed while it does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount, Method, Outcome, Upload
from fedtailor.core.objectives import Slope
from fedtailor.core.options import NonNegative, Search, Share, Whole
from fedtailor.core.rng import Key, Turn
from fedtailor.core.steps.optim import clip_norm
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Descent, Recipe, descend
from fedtailor.core.tree import Params, Tree

Schedule = Literal["cosine", "exponential"]


def apple(
    task: Task,
    *,
    M: Whole = 0,
    eta2: Annotated[NonNegative, Search(0.0001, 0.1, log=True)] = 0.01,
    mu: Annotated[NonNegative, Search(0.001, 10, log=True)] = 0.1,
    L: Annotated[Share, Search(0.1, 1)] = 0.1,
    schedule: Schedule = "cosine",
    recipe: Recipe = Recipe(),
) -> Method:
    """Clients publish core models c_j; each combines them with directed weights of its own.

        w_i = Σ_j p_ij c_j;   per mini-batch, with g = ∇CE(w_i):
            c_i ← c_i − η₁ p_ii g,   p_ij ← p_ij − η₂ (⟨g, c_j⟩ + 2 λ(t) μ (p_ij − p⁰_j))

    p⁰_j = n_j / Σ n; λ(t) falls from 1 to 0 over the first ⌊L T⌋ rounds. Learnt on the client: c_i
    (uploaded) and p_i (kept). Tested with w_i.

    Args:
      M: cores of others that a client downloads, drawn anew each round; 0 for all of them. In its
        first turn it downloads all; a core that is not sent counts with its last download, so that
        with M > 0 a client keeps as many cores as there are clients.
      eta2: learning rate η₂ of p_i; η₁ is the recipe's, and where that decays η₂ does, too. With
        0 p_i stays at p⁰; with the authors' 0.001 it hardly moves within 30 rounds of ten clients.
        Where cores are alike, a step of Σ_j p_ij is η₂ N ⟨g, c⟩: with N = 100 clients 0.01 may
        diverge whatever the learning rate is, and 0.001 goes as far as 0.01 does with ten.
      mu: strength μ of the pull of p_i to p⁰.
      L: share of the rounds in which λ(t) falls.
      schedule: `cosine` or `exponential` (0.001^(t/LT)).
      recipe: how a client trains in a round.

    Deviations: the regulariser is λ μ |p − p⁰|², as in the code (paper: μ/2). One common initial
    model (the code: one per client). The M are drawn at random, which is what the authors' code
    comes to (its list of cores that were never downloaded is never shortened). The core is
    uploaded, not the personalised model (one public code uploads that). Weight decay acts on the
    core alone.

    Reference: Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated
    Learning", IJCAI 2022, https://arxiv.org/abs/2110.08394

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = apple(toy_task(), M=3, mu=0.01)
    """
    if recipe.optimizer != "sgd":
        raise BadInput(f"apple: optimizer is {recipe.optimizer}: its two learning rates need sgd")
    if eta2 and not recipe.lr:
        raise BadInput(f"apple: lr is 0, but eta2 is {eta2}, and both decay together: raise lr")

    def init(clients: ClientCount, initial: Params, key: Key) -> Tree:
        sizes, cores = clients.sizes * clients.may_train, tree.drop(initial, task.buffers)
        return {
            # nobody publishes a core that is never trained; one of 0 learns no weight either
            "cores": clients.copies(cores),
            "prior": sizes.to(torch.get_default_dtype()) / sizes.sum(),
            "trains": clients.may_train,
            "met": torch.zeros(clients, dtype=torch.bool, device=key.device),
        }

    def send(server: Tree, cid: Tensor, turn: Turn) -> Tree:
        count, new = len(server["met"]), ~server["met"][cid]
        others = others_of(cid, server["trains"], M, turn.key, first=new)
        own = (torch.arange(count, device=cid.device) == cid).to(server["prior"].dtype)
        once = {"prior": server["prior"], "own": own}
        return {
            "cores": wire.maybe(others, server["cores"]),
            "once": wire.maybe(new, once),
        }

    def start(msg: Tree, initial: Params, key: Key) -> Tree:
        once = wire.value(msg["once"])
        state = {
            "core": tree.drop(initial, task.buffers),
            "buffers": tree.pick(initial, task.buffers),
            "weights": once["prior"],
            "prior": once["prior"],
            "own": once["own"],
        }
        if not 0 < M < len(once["own"]) - 1:  # all are sent in every round
            return state
        none = tree.map(torch.zeros_like, wire.value(msg["cores"]))
        return state | {"cores": latest(msg["cores"], none)}

    def around(msg: Tree, state: Tree, turn: Turn) -> Tree:
        """What `personalised` and `learn` are given beside what is learnt."""
        sent = msg["cores"]
        cores = latest(sent, state["cores"]) if "cores" in state else wire.value(sent)
        pull = fading(turn, L, schedule) * mu
        return {"cores": cores, "own": state["own"], "prior": state["prior"], "pull": pull}

    def client(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        given = around(msg, state, turn)
        done = learn(task, state, given, data, turn, recipe, eta2)
        core, weights = done.theta["core"], done.theta["weights"]
        kept = state | {"core": core, "buffers": done.carried, "weights": weights}
        kept |= tree.pick(given, ["cores"] if "cores" in state else [])
        model = personalised(done.theta, given) | done.carried
        return Outcome(kept, Upload(each={"core": core}), model, {"directed_weight": weights})

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        return server | {
            "cores": tree.put(server["cores"], ids, up.each["core"]),
            "met": server["met"].index_fill(0, ids, True),
        }

    def personal(msg: Tree, state: Tree, data: Data, turn: Turn) -> Params:
        params: Params = personalised(state, around(msg, state, turn)) | state["buffers"]
        return params

    return Method(
        init, send, start, client, receive, personal, task.predict,
        one_rate="its weights' learning rate is a multiple of the cores'",
    )  # fmt: skip


def others_of(cid: Tensor, trains: Tensor, limit: int, key: Key, first: Tensor) -> Tensor:
    """A flag per client: all that ever train but `cid`, or `limit` of them at random.

    With `first`, and with 0, there is no limit.
    """
    others = trains & (torch.arange(len(trains), device=cid.device) != cid)
    if limit:
        luck = rng.uniform(key, len(trains)).masked_fill(~others, 2.0)
        others = others & (first | (luck.argsort().argsort() < limit))
    return others


def latest(sent: Tree, before: Tree) -> Tree:
    """Stacked cores: those that were sent, a `maybe`, and for the others what was there before."""

    def row_by_row(new: Tensor, old: Tensor) -> Tensor:
        return new.where(wire.here(sent).view(-1, *[1] * (new.ndim - 1)), old)

    return tree.map(row_by_row, wire.value(sent), before)


def fading(turn: Turn, share: float, schedule: Schedule) -> Tensor:
    """λ(t), which falls from 1 to 0 over the first share of the rounds, x = t / ⌊share T⌋.

    (cos(π x) + 1) / 2   or   0.001^x,   and 0 from x = 1 on
    """
    length = (share * turn.rounds.double()).floor()  # a whole number, as the authors' code has it
    part = turn.round / length.clamp(min=1).to(torch.get_default_dtype())
    fall = (torch.cos(math.pi * part) + 1) / 2 if schedule == "cosine" else 0.001**part
    return torch.where(turn.round < length, fall, 0.0)


def personalised(theta: Tree, given: Tree) -> Params:
    """w_i from the own core and the others'; the own row of `given["cores"]` does not count."""
    mine = (theta["weights"] * given["own"]).sum()
    rest = theta["weights"] * (1 - given["own"])
    return {
        k: mine.to(c.dtype) * c + torch.tensordot(rest.to(c.dtype), given["cores"][k], 1)
        for k, c in theta["core"].items()
    }


def learn(
    task: Task,
    state: Tree,
    given: Tree,
    data: Data,
    turn: Turn,
    recipe: Recipe,
    rate: float,
) -> Descent:
    """Core and weights after a round of training, each with a learning rate of its own.

        F(w_i) + pull Σ_j (p_ij − p⁰_j)²
        ∂/∂c_i = p_ii ∇F(w_i),   ∂/∂p_ij = ⟨∇F(w_i), c_j⟩ + 2 pull (p_ij − p⁰_j)

    Args:
      task: the network.
      state: where to begin: `core` c_i, `weights` p_i, and running statistics as `buffers`.
      given: everybody's `cores`, stacked; a 1 at the client's `own` place; p⁰ as `prior`; `pull`.
      data: the client's rows.
      turn: round and random key.
      recipe: how to train, with plain SGD; its learning rate is that of the core.
      rate: learning rate of the weights; it decays as the recipe's does.
    """
    ratio = rate / recipe.lr if recipe.lr else 0.0

    def objective(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tensor, Tree]:
        loss, changed = task.loss(personalised(theta, given) | rest, batch)
        apart = (theta["weights"] - given["prior"]).square().sum()
        return loss + given["pull"] * apart, changed

    def two_rates(at: Slope) -> Slope:
        def slope(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tree, Tensor, Tree]:
            grads, loss, changed = at(theta, batch, given, rest)
            scaled = {"core": grads["core"], "weights": ratio * grads["weights"]}
            limited = clip_norm(scaled, recipe.clip)
            # the optimiser will add weight decay to both, but it is for the core alone; taken off
            # after the limit, as it is added after it
            weights = limited["weights"] - recipe.weight_decay * theta["weights"]
            return limited | {"weights": weights}, loss, changed

        return slope

    return descend(
        objective,
        tree.pick(state, ("core", "weights")),
        data,
        turn,
        replace(recipe, clip=0.0),
        given=given,
        carried=state["buffers"],
        gradient=two_rates,
        task=task,
        augment=task.augment,
    )
