"""Directed relations: how much each client takes of everybody's core model (APPLE).

A client's model is a combination of cores with weights of its own, which need not sum to 1 and may
be negative:

    w_i = Σ_j p_ij c_j

Client i learns its own core c_i and its weights p_i; the others' cores are fixed while it does.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from fedtailor.core import rng, tree, wire
from fedtailor.core.data import Data
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Descent, Recipe, Slope, descend
from fedtailor.core.tree import Params, Tree

Schedule = Literal["cosine", "exponential"]


def others_of(cid: Tensor, clients: int, limit: int, key: Key) -> Tensor:
    """A flag per client: all but `cid`, or `limit` of them at random; 0 is no limit."""
    number = torch.arange(clients, device=cid.device)
    others = number != cid
    if limit:
        luck = rng.uniform(key, clients).masked_fill(~others, 2.0)
        others = others & (luck.argsort().argsort() < limit)
    return others


def fading(turn: Turn, share: float, schedule: Schedule) -> Tensor:
    """λ(t), which falls from 1 to 0 over the first share of the rounds, x = t / (share T).

    (cos(π x) + 1) / 2   or   0.001^x,   and 0 from x = 1 on
    """
    part = (turn.round / (share * turn.rounds).clamp(min=1e-9)).clamp(max=1.0)
    fall = (torch.cos(math.pi * part) + 1) / 2 if schedule == "cosine" else 0.001**part
    return torch.where(part < 1, fall, 0.0)


def surroundings(cores: Tree, own: Tensor, prior: Tensor, pull: Tensor) -> Tree:
    """What `combined` and `learn` are given beside what is learnt.

    Args:
      cores: everybody's, stacked, as a `maybe`; the own one is not among them.
      own: 1 at the client's own place, 0 elsewhere.
      prior: p⁰.
      pull: strength of the pull of p to p⁰.
    """
    here = wire.here(cores).to(prior.dtype)
    return {
        "cores": wire.value(cores),
        "here": here,
        "own": own,
        "prior": prior,
        "pull": pull,
        "sent": here + own,
    }


def combined(theta: Tree, given: Tree) -> Params:
    """w_i from the own core and those that were sent; the others count as not there."""
    mine = (theta["weights"] * given["own"]).sum()
    rest = theta["weights"] * given["here"]
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

        F(w_i) + pull Σ_j (p_ij − p⁰_j)²      j over the clients whose cores are here
        ∂/∂c_i = p_ii ∇F(w_i),   ∂/∂p_ij = ⟨∇F(w_i), c_j⟩ + 2 pull (p_ij − p⁰_j)

    Args:
      task: the network.
      state: where to begin: `core` c_i, `weights` p_i, and running statistics as `buffers`.
      given: the `surroundings`.
      data: the client's rows.
      turn: round and random key.
      recipe: how to train, with plain SGD; its learning rate is that of the core.
      rate: learning rate of the weights; it decays as the recipe's does.
    """
    ratio = rate / recipe.lr if recipe.lr else 0.0

    def objective(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tensor, Tree]:
        loss, changed = task.loss(combined(theta, given) | rest, batch)
        apart = (theta["weights"] - given["prior"]).square()
        # only what was sent can be learnt about
        return loss + given["pull"] * (apart * given["sent"]).sum(), changed

    def two_rates(at: Slope) -> Slope:
        def slope(theta: Tree, batch: Batch, given: Tree, rest: Tree) -> tuple[Tree, Tensor, Tree]:
            grads, loss, changed = at(theta, batch, given, rest)
            # the optimiser will add weight decay to both, but it is for the core alone
            weights = ratio * grads["weights"] - recipe.weight_decay * theta["weights"]
            return {"core": grads["core"], "weights": weights}, loss, changed

        return slope

    return descend(
        objective,
        tree.pick(state, ("core", "weights")),
        data,
        turn,
        recipe,
        given=given,
        carried=state["buffers"],
        gradient=two_rates,
        task=task,
        augment=task.augment,
    )
