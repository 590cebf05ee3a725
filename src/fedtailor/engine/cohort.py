"""Who takes part in a round."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core import rng


def draw_cohort(seed: int, round: int, eligible: Tensor, participation: float) -> Tensor:
    """The clients of a round: drawn uniformly without replacement, in ascending order.

    The draw depends on seed and round alone, so every method meets the same cohorts.

    Args:
      seed: of the run.
      round: number of the round.
      eligible: ids that may be drawn.
      participation: share of them that is; at least one client is.

    Example:
      >>> draw_cohort(0, 3, torch.arange(10), 0.3).tolist()
      [0, 1, 9]
    """
    count = max(1, round_half_up(participation * len(eligible)))
    order = rng.permutation(rng.key(seed, rng.COHORT, round), len(eligible))
    return eligible[order[:count]].sort().values.to(torch.int64)


def who_answers(seed: int, round: int, cohort: Tensor, dropout: float) -> Tensor:
    """Those of a cohort that do not drop out before they have trained.

    Each drops out by itself, with the same chance. Where all would, one answers still: a real
    coordinator waits until somebody does. The draw depends on seed and round alone.

    Example:
      >>> who_answers(0, 3, torch.tensor([0, 1, 4, 7, 9]), 0.4).tolist()
      [7]
    """
    if dropout == 0:
        return cohort
    draws = rng.uniform(rng.key(seed, rng.DROPOUT, round), len(cohort))
    stays = draws >= dropout
    stays[draws.argmax()] = True
    return cohort[stays]


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (`round` would send 0.5 to 0)."""
    return int(value + 0.5)
