"""Adaptive local aggregation (ALA): a part that decides how much of a received model to take in.

It only changes where local training begins, so any method whose clients download one model can
take it. FedALA is FedAvg with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from . import tree
from .data import Data
from .rng import Turn
from .task import Batch, Task
from .train import Recipe, descend, repeat
from .tree import Params, Tree


class Adapted(NamedTuple):
    """Attributes:
    params: where local training begins.
    memory: what the client remembers of its weights.
    """

    params: Params
    memory: Tree


class Ala(NamedTuple):
    """Attributes:
    start: parameters -> memory of a client that has not adapted yet (all weights 1).
    adapt: (received, own, memory, data, turn) -> adapted.
    """

    start: Callable[[Params], Tree]
    adapt: Callable[[Params, Params, Tree, Data, Turn], Adapted]


def ala(
    task: Task,
    names: tuple[str, ...],
    *,
    s: float = 80.0,
    eta: float = 1.0,
    threshold: float = 0.1,
    window: int = 10,
    max_epochs: int = 100,
    contiguous: bool = False,
    batch: int = 10,
) -> Ala:
    """Learns, entry by entry, how far to move from the client's own model to the received one.

        Θ̂ = Θ_i + (Θ − Θ_i) ⊙ W      for the entries `names`; Θ elsewhere
        W ← clip₀¹(W − η ∂Loss/∂W),    ∂Loss/∂W = ∂Loss/∂Θ̂ ⊙ (Θ − Θ_i)

    on mini-batches of a random s % of the client's training rows. The first time, W is learnt until
    it converges (more than `window` epochs, and the last losses of the latest `window` epochs have
    a standard deviation below `threshold`); after that for one epoch a round. Where own and
    received model are the same there is nothing to learn, and nothing changes.

    Args:
      task: the network and its loss.
      names: the entries that are weighted; buffers among them are left out.
      s: per cent of the training rows that W is learnt on, redrawn every round.
      eta: learning rate of W.
      threshold: of the standard deviation of losses.
      window: how many losses are looked at.
      max_epochs: give up waiting for convergence after this many epochs.
      contiguous: take a contiguous window of rows, as the authors' code does, not a random subset.
      batch: examples per step.
    """
    weighted = [name for name in names if name not in task.buffers]
    recipe = Recipe(epochs=1, batch=batch, lr=eta)

    def start(params: Params) -> Tree:
        weight = tree.map(torch.ones_like, tree.pick(params, weighted))
        false = torch.zeros((), dtype=torch.bool, device=next(iter(params.values())).device)
        return {"weight": weight, "started": false}

    def mix(weight: Tree, given: Tree) -> Params:
        received: Params = given["received"]
        return received | tree.lerp(given["own"], tree.pick(received, weight), weight)

    def objective(weight: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        return task.loss(mix(weight, given), batch)[0], {}

    def adapt(received: Params, own: Params, memory: Tree, data: Data, turn: Turn) -> Adapted:
        given = {"received": received, "own": tree.pick(own, weighted)}
        draw, order = turn.split()
        part = (
            data.window(s / 100, draw.key) if contiguous else data.shuffle(draw.key).first(s / 100)
        )
        same = _same(tree.drop(own, task.buffers), received)

        def epoch(carry: Tree) -> Tree:
            done = descend(
                objective, carry["weight"], part, order, recipe, given=given, project=_to_unit
            )
            losses = torch.cat([carry["losses"][1:], done.loss[None]])
            return {"weight": done.theta, "losses": losses, "count": carry["count"] + 1}

        def settled(carry: Tree) -> Tensor:
            flat = carry["losses"].std(correction=0) < threshold
            converged = (carry["count"] > window) & flat
            return same | torch.where(memory["started"], carry["count"] > 0, converged)

        zero = torch.zeros_like(turn.round)
        losses = torch.zeros(window, device=turn.key.device)
        carry = {"weight": memory["weight"], "losses": losses, "count": zero}
        weight = repeat(epoch, carry, until=settled, limit=max_epochs)["weight"]
        mixed = tree.where(same, received, mix(weight, given))
        return Adapted(mixed, {"weight": weight, "started": memory["started"] | ~same})

    return Ala(start, adapt)


def _to_unit(weight: Tensor) -> Tensor:
    return weight.clamp(0, 1)


def _same(a: Params, b: Params) -> Tensor:
    """Whether all entries of `a` are those of `b`."""
    return torch.stack([(a[k] == b[k]).all() for k in a]).all()
