"""A binary choice per block between a received and an own model, and how it is learnt (PartialFed).

model_l = s_l G_l + (1 − s_l) L_l,     s_l in {0, 1}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.rng import Key, Turn
from fedtailor.core.task import Batch, Task, per_name
from fedtailor.core.training import Objective
from fedtailor.core.tree import Params, Tree


class Strategy(NamedTuple):
    """Attributes:
    chosen: logits a -> s, 1 where the received block is taken.
    drawn: (logits, temperature, key) -> s for one mini-batch.
    """

    chosen: Callable[[Tensor], Tensor]
    drawn: Callable[[Tensor, Tensor, Key], Tensor]


def likelier(logits: Tensor) -> Tensor:
    """1 where the received block is the likelier choice."""
    return (logits >= 0).to(logits.dtype)


def straight_through(logits: Tensor, tau: Tensor, key: Key) -> Tensor:
    """A hard choice per block, with the gradient of a soft one (Gumbel-softmax over two choices).

        soft_l = σ((a_l + g_l − g'_l) / τ),  g, g' standard Gumbel;   s_l = 1 where soft_l ≥ 1/2

    Each block is chosen with probability σ(a_l), whatever the temperature τ; that decides only how
    far the gradient ∂soft/∂a reaches.
    """
    u = rng.uniform(key, 2, len(logits), dtype=logits.dtype).clamp(1e-6, 1 - 1e-6)
    noise = -(-u.log()).log()
    soft = torch.sigmoid((logits + noise[0] - noise[1]) / tau)
    return (soft >= 0.5).to(soft.dtype) + soft - soft.detach()


adaptive = Strategy(likelier, straight_through)


def lower(count: int) -> Strategy:
    """Always the `count` blocks next to the input, whatever the logits."""

    def chosen(logits: Tensor) -> Tensor:
        return (torch.arange(len(logits), device=logits.device) < count).to(logits.dtype)

    return Strategy(chosen, lambda logits, tau, key: chosen(logits))


def cooled(turn: Turn, first: float, last: float) -> Tensor:
    """A temperature that falls geometrically over the run: first (last / first)^(t/T)."""
    part = turn.round / turn.rounds
    return first * (last / first) ** part


def select(task: Task, s: Tensor, received: Params, own: Params) -> Params:
    """The model that a choice per block makes: `received` where s is 1, `own` where it is 0."""
    # running statistics follow the choice; there is no gradient in them
    share = per_name(s, task.blocks, own) | per_name(s.detach(), task.blocks, task.buffers)
    return tree.lerp(own, received, share)


def choosing(task: Task, strategy: Strategy) -> Objective:
    """The loss of what the trained `logits` draw; `received`, `own` and `tau` are given."""

    def objective(theta: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        s = strategy.drawn(theta["logits"], given["tau"], batch.again().key)
        return task.loss(select(task, s, given["received"], given["own"]), batch)[0], {}

    return objective


def changing(task: Task, strategy: Strategy) -> Objective:
    """The loss of a drawn model with the trained change Δ added; the `logits` are given too.

        F(s G + (1 − s) L + Δ)

    Δ lies on top of whatever is drawn, so that nothing of it is lost with the next draw. Running
    statistics are carried along.
    """

    def objective(change: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        s = strategy.drawn(given["logits"], given["tau"], batch.again().key).detach()
        model = select(task, s, given["received"] | carried, given["own"] | carried)
        return task.loss(model | tree.add(tree.pick(model, change), change), batch)

    return objective
