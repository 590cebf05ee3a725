"""FedALA: FedAvg whose clients choose what to take of the global model."""

from __future__ import annotations

from fedtailor.core.method import Method
from fedtailor.core.options import Count, NonNegative, Percent, Weighting, Whole
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods.one_model.fedavg import fedavg
from fedtailor.methods.parts.ala import ala


def fedala(
    task: Task,
    *,
    s: Percent = 80.0,
    p: Whole = 1,
    eta: NonNegative = 1.0,
    threshold: NonNegative = 0.1,
    window: Count = 10,
    max_ala_epochs: Count = 100,
    contiguous: bool = False,
    weighting: Weighting = "data",
    recipe: Recipe = Recipe(),
) -> Method:
    """Before it trains, a client learns entry by entry how much of the global model to take in.

        Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i     on the p blocks next to the output, Θ below
        Θ_i ← SGD(Θ̂_i; E),   Θ ← Σ_i Ω_i Θ_i

    W_i ∈ [0, 1] is learnt on s % of the client's training rows (see `methods/parts/ala.py`) and
    never travels. Learnt on the client: Θ_i, W_i. Tested with Θ̂_i, before local training.

    Args:
      s: per cent of the training rows that W is learnt on, redrawn every round.
      p: how many blocks, from the output down, are weighted; 0 switches ALA off (FedAvg).
      eta: learning rate η of W (1.0 in the authors' code).
      threshold: W has converged when the last losses' standard deviation is below this (0.1 in the
        authors' client class; their README speaks of 0.01).
      window: how many losses that looks at.
      max_ala_epochs: an end to the first adaptation if it does not converge.
      contiguous: draw the s % as one contiguous window, as the authors' code does.
      weighting: a client's weight in the mean: `data` or `uniform`.
      recipe: how a client trains in a round; ALA uses its batch size.

    Deviations: "t = 2" of the paper's algorithm is each client's own first adaptation, so that late
    clients also converge (as in the authors' code). W is clipped after every mini-batch (code). The
    subset is uniformly random (code: a contiguous window). A model counts as unchanged when all its
    parameters are (code: when the differences of the first tensor add up to 0). Only the cohort
    adapts (code: all clients). Evaluation leaves W and its flag as they are (code: changes them).

    Reference: Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated
    Learning", AAAI 2023, https://arxiv.org/abs/2212.01197
    """
    begin = ala(
        s=s,
        p=p,
        eta=eta,
        threshold=threshold,
        window=window,
        max_ala_epochs=max_ala_epochs,
        contiguous=contiguous,
    )
    return fedavg(task, weighting=weighting, recipe=recipe, begin=begin)
