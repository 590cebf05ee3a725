"""Adaptive local aggregation (ALA): a part that decides how much of a received model to take in.

It only changes where local training begins, so every method whose clients download one model can
take it: `METHOD+ala` on the command line. FedALA is FedAvg with it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.options import Count, NonNegative, Percent, Whole
from fedtailor.core.rng import Turn
from fedtailor.core.scan import repeat
from fedtailor.core.task import Batch, Blocks, Task
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.parts.start import Begin, Begun, Starter, as_received


def ala(
    *,
    s: Percent = 80.0,
    p: Whole = 1,
    eta: NonNegative = 1.0,
    threshold: NonNegative = 0.1,
    window: Count = 10,
    max_ala_epochs: Count = 100,
    contiguous: bool = False,
) -> Starter:
    """Learns, entry by entry, how far to move from the client's own model to the received one.

        Θ̂ = Θ_i + (Θ − Θ_i) ⊙ W      in the p topmost blocks that are downloaded; Θ below
        W ← clip₀¹(W − η ∂Loss/∂W),    ∂Loss/∂W = ∂Loss/∂Θ̂ ⊙ (Θ − Θ_i)

    on mini-batches of a random s % of the client's training rows. The first time, W is learnt until
    it converges (more than `window` epochs, and the last losses of the latest `window` epochs have
    a standard deviation below `threshold`); after that for one epoch a round. Where own and
    received model are the same there is nothing to learn, and nothing changes.

    Args:
      s: per cent of the training rows that W is learnt on, redrawn every round.
      p: how many downloaded blocks, from the output down, are weighted; 0 switches ALA off.
      eta: learning rate η of W (1.0 in the authors' code).
      threshold: W has converged when the last losses' standard deviation is below this (0.1 in the
        authors' client class; their README speaks of 0.01).
      window: how many losses that looks at.
      max_ala_epochs: an end to the first adaptation if it does not converge.
      contiguous: draw the s % as one contiguous window, as the authors' code does.
    """

    def starter(task: Task, blocks: Blocks, recipe: Recipe) -> Begin:
        if p == 0:
            return as_received(task, blocks, recipe)
        top = blocks[max(len(blocks) - p, 0) :]
        weighted = [[k for k in block if k not in task.buffers] for block in top]
        names = [k for block in weighted for k in block]
        # plain SGD on W, whatever the clients' optimiser; batches and privacy as in training
        steps = replace(
            recipe, epochs=1, steps=0, lr=eta, optimizer="sgd", momentum=0.0, weight_decay=0.0,
            lr_decay=1.0, clip=0.0,
        )  # fmt: skip

        def start(received: Params, initial: Params) -> Tree:
            weight = tree.map(torch.ones_like, tree.pick(initial, names))
            false = torch.zeros((), dtype=torch.bool, device=initial[names[0]].device)
            return {"own": initial, "weight": weight, "started": false}

        def mix(weight: Tree, given: Tree) -> Params:
            received: Params = given["received"]
            return received | tree.lerp(given["own"], tree.pick(received, names), weight)

        def objective(
            weight: Tree, batch: Batch, given: Tree, carried: Tree
        ) -> tuple[Tensor, Tree]:
            return task.loss(given["rest"] | mix(weight, given), batch)[0], {}

        def adapt(received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Begun:
            own, started = memory["own"], memory["started"]
            given = {"received": received, "own": tree.pick(own, names), "rest": rest}
            draw, order = turn.split()
            share = s / 100
            part = (
                data.window(share, draw.key) if contiguous else data.shuffle(draw.key).first(share)
            )
            same = _same(tree.drop(own, task.buffers), received)

            def epoch(carry: Tree) -> Tree:
                done = descend(
                    objective, carry["weight"], part, order, steps, given=given, project=_to_unit
                )
                losses = torch.cat([carry["losses"][1:], done.loss[None]])
                return {"weight": done.theta, "losses": losses, "count": carry["count"] + 1}

            def settled(carry: Tree) -> Tensor:
                flat = carry["losses"].std(correction=0) < threshold
                converged = (carry["count"] > window) & flat
                return same | torch.where(started, carry["count"] > 0, converged)

            carry = {
                "weight": memory["weight"],
                "losses": torch.zeros(window, device=turn.key.device),
                "count": torch.zeros_like(turn.round),
            }
            learnt = repeat(epoch, carry, until=settled, limit=max_ala_epochs)
            weight = learnt["weight"]
            mixed = tree.where(same, received, mix(weight, given))
            notes = {
                "ala_weight": torch.stack(
                    [torch.cat([weight[k].flatten() for k in block]).mean() for block in weighted]
                ),
                "ala_loss": learnt["losses"][-1],
                "ala_epochs": learnt["count"],
            }
            return Begun(mixed, memory | {"weight": weight, "started": started | ~same}, notes)

        def keep(memory: Tree, trained: Params) -> Tree:
            return memory | {"own": trained}

        return Begin(start, adapt, keep)

    return starter


def _to_unit(weight: Tensor) -> Tensor:
    return weight.clamp(0, 1)


def _same(a: Params, b: Params) -> Tensor:
    """Whether all entries of `a` are those of `b`."""
    return torch.stack([(a[k] == b[k]).all() for k in a]).all()
