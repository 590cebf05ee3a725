"""FedALA: FedAvg whose clients choose what to take of the global model.

Adaptive local aggregation (ALA) changes only where local training begins, so it is a wrapper:
FedALA is `with_ala` around FedAvg, and every method whose clients download one model can have it,
as `METHOD+ala` on the command line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.method import Method
from fedtailor.core.options import Count, NonNegative, Percent, Search, Weighting, Whole
from fedtailor.core.rng import Turn
from fedtailor.core.steps.scan import repeat
from fedtailor.core.task import Batch, Task
from fedtailor.core.training import Recipe, descend
from fedtailor.core.tree import Params, Tree
from fedtailor.methods.describe import flat_options
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.start import Start, with_start


class Ala(NamedTuple):
    """How the weights W of adaptive local aggregation are learnt.

    Attributes:
      s: per cent of the training rows that W is learnt on, redrawn every round.
      p: how many downloaded blocks, from the output down, are weighted; 0 switches ALA off.
      eta: learning rate η of W (1.0 in the authors' code).
      threshold: W has converged when the last losses' standard deviation is below this (0.1 in the
        authors' client class; their README speaks of 0.01).
      window: how many losses that looks at.
      max_ala_epochs: an end to the first adaptation if it does not converge.
      contiguous: draw the s % as one contiguous window, as the authors' code does.
    """

    s: Annotated[Percent, Search(20, 100)] = 80.0
    p: Annotated[Whole, Search(1, 4)] = 1
    eta: Annotated[NonNegative, Search(0.05, 5, log=True)] = 1.0
    threshold: NonNegative = 0.1
    window: Count = 10
    max_ala_epochs: Count = 100
    contiguous: bool = False


@flat_options
def fedala(
    task: Task, *, ala: Ala = Ala(), weighting: Weighting = "data", recipe: Recipe = Recipe()
) -> Method:
    """Before it trains, a client learns entry by entry how much of the global model to take in.

        Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i     on the p blocks next to the output, Θ below
        Θ_i ← SGD(Θ̂_i; E),   Θ ← Σ_i Ω_i Θ_i

    W_i ∈ [0, 1] is learnt on s % of the client's training rows (see `with_ala`) and never travels.
    Learnt on the client: Θ_i, W_i. Tested with Θ̂_i, before local training.

    Args:
      ala: how W is learnt; with p = 0 this is FedAvg.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; ALA uses its batch size.

    Deviations: "t = 2" of the paper's algorithm is each client's own first adaptation, so that late
    clients also converge (as in the authors' code). W is clipped after every mini-batch (code). The
    subset is uniformly random (code: a contiguous window). A model counts as unchanged when all its
    parameters are (code: when the differences of the first tensor add up to 0). Only the cohort
    adapts (code: all clients). Evaluation leaves W and its flag as they are (code: changes them).

    Reference: Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated
    Learning", AAAI 2023, https://arxiv.org/abs/2212.01197

    Example:
      >>> from fedtailor.methods.check import toy_task
      >>> method = fedala(toy_task(), ala=Ala(s=50.0, p=2))
    """
    return with_ala(fedavg(task, weighting=weighting, recipe=recipe), task, ala, recipe)


def with_ala(host: Method, task: Task, ala: Ala, recipe: Recipe) -> Method:
    """A method that learns, entry by entry, how far to move from its own model to the received one.

        Θ̂ = Θ_i + (Θ − Θ_i) ⊙ W      in the p topmost blocks that are downloaded; Θ below
        W ← clip₀¹(W − η ∂Loss/∂W),    ∂Loss/∂W = ∂Loss/∂Θ̂ ⊙ (Θ − Θ_i)

    on mini-batches of a random s % of the client's training rows. The first time, W is learnt until
    it converges (more than `window` epochs, and the last losses of the latest `window` epochs have
    a standard deviation below `threshold`); after that for one epoch a round. Where own and
    received model are the same there is nothing to learn, and nothing changes.

    Args:
      host: a method whose clients download one model.
      task: the network.
      ala: how W is learnt.
      recipe: how clients train: ALA takes its batch size and privacy.

    Example:
      >>> from fedtailor.methods import ditto
      >>> from fedtailor.methods.check import toy_task
      >>> task, recipe = toy_task(), Recipe(batch=20)
      >>> method = with_ala(ditto(task, recipe=recipe), task, Ala(s=50.0), recipe)
    """
    if ala.p == 0:
        return host
    # plain SGD on W, whatever the clients' optimiser; batches and privacy as in training
    steps = replace(
        recipe, epochs=1, steps=0, lr=ala.eta, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        lr_decay=1.0, lr_floor=0.0, schedule="constant", clip=0.0,
    )  # fmt: skip

    def weighted(received: Params) -> list[list[str]]:
        """The names that W has, by block."""
        blocks = [[k for k in block if k in received] for block in task.blocks]
        top = [block for block in blocks if block][-ala.p :]
        return [[k for k in block if k not in task.buffers] for block in top]

    def remember(received: Params, initial: Params) -> Tree:
        names = [k for block in weighted(received) for k in block]
        weight = tree.map(torch.ones_like, tree.pick(initial, names))
        false = torch.zeros((), dtype=torch.bool, device=initial[names[0]].device)
        return {"own": initial, "weight": weight, "started": false}

    def mixed(weight: Tree, given: Tree) -> Params:
        """Θ̂."""
        received: Params = given["received"]
        return received | tree.lerp(given["own"], tree.pick(received, weight), weight)

    def objective(weight: Tree, batch: Batch, given: Tree, carried: Tree) -> tuple[Tensor, Tree]:
        return task.loss(given["rest"] | mixed(weight, given), batch)[0], {}

    def adapt(received: Params, memory: Tree, rest: Params, data: Data, turn: Turn) -> Start:
        own, started = memory["own"], memory["started"]
        given = {"received": received, "own": tree.pick(own, memory["weight"]), "rest": rest}
        draw, order = turn.split()
        share = ala.s / 100
        part = (
            data.window(share, draw.key) if ala.contiguous else data.shuffle(draw.key).first(share)
        )
        same = _same(tree.drop(own, task.buffers), received)

        def epoch(carry: Tree) -> Tree:
            done = descend(
                objective, carry["weight"], part, order, steps, given=given, project=_to_unit
            )
            losses = torch.cat([carry["losses"][1:], done.loss[None]])
            return {"weight": done.theta, "losses": losses, "count": carry["count"] + 1}

        def settled(carry: Tree) -> Tensor:
            flat = carry["losses"].std(correction=0) < ala.threshold
            converged = (carry["count"] > ala.window) & flat
            return same | torch.where(started, carry["count"] > 0, converged)

        carry = {
            "weight": memory["weight"],
            "losses": torch.zeros(ala.window, device=turn.key.device),
            "count": torch.zeros_like(turn.round),
        }
        learnt = repeat(epoch, carry, until=settled, limit=ala.max_ala_epochs)
        weight = learnt["weight"]
        means = [torch.cat([weight[k].flatten() for k in b]).mean() for b in weighted(received)]
        return Start(
            tree.where(same, received, mixed(weight, given)),
            {"own": own, "weight": weight, "started": started | ~same},
            {
                "ala_weight": torch.stack(means),
                "ala_loss": learnt["losses"][-1],
                "ala_epochs": learnt["count"],
            },
        )

    return with_start(host, remember, adapt)._replace(
        not_private="ALA decides by training losses without noise, so there is no guarantee: "
        "choose another method"
    )


def _to_unit(weight: Tensor) -> Tensor:
    return weight.clamp(0, 1)


def _same(a: Params, b: Params) -> Tensor:
    """Whether all entries of `a` are those of `b`."""
    return torch.stack([(a[k] == b[k]).all() for k in a]).all()
