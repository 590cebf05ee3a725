"""Who takes part in a round."""

from __future__ import annotations

from math import inf, isfinite

import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.errors import BadInput


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


def parse_slow(text: str) -> tuple[float, float]:
    """(share of slow clients, how many times as long they take), from e.g. `0.2:4`.

    Example:
      >>> parse_slow("0.2:4"), parse_slow("")
      ((0.2, 4.0), (0.0, 1.0))
    """
    if not text:
        return 0.0, 1.0
    try:
        share, factor = map(float, text.split(":"))
    except ValueError:
        share, factor = -1.0, 0.0
    if not (0 < share <= 1 and factor > 1 and isfinite(factor)):
        raise BadInput(
            f"slow is '{text}': give SHARE:FACTOR, a share of the clients above 0 up to 1 and how "
            "many times as long they take, above 1: 0.2:4"
        )
    return share, factor


def normal_steps(steps: Tensor, trained: Tensor) -> float:
    """Steps of a normal client, the unit of simulated time: the median of those that train."""
    return max(1.0, float(steps[trained].double().quantile(0.5)))


def client_times(seed: int, steps: Tensor, trained: Tensor, slow: str) -> Tensor:
    """How long each client takes for a round, in times of a normal one (`normal_steps`).

    A client's time is the number of its steps, times a factor if it is slow. Who is slow is drawn
    once among those that train, from the seed alone: it is the same in every round, with every
    method and on every engine.

    Args:
      seed: of the run.
      steps: that each client takes in a round.
      trained: ids of those that may be drawn.
      slow: `SHARE:FACTOR`; empty if nobody is slow.

    Example:
      >>> client_times(0, torch.tensor([2, 2, 4, 2]), torch.arange(4), "0.25:3").tolist()
      [1.0, 3.0, 2.0, 1.0]
    """
    share, factor = parse_slow(slow)
    time = steps.double()
    if share:
        order = rng.permutation(rng.key(seed, rng.SLOW), len(trained))
        time[trained[order[: max(1, round_half_up(share * len(trained)))]]] *= factor
    return time / normal_steps(steps, trained)


def who_is_in_time(times: Tensor, cohort: Tensor, deadline: float) -> tuple[Tensor, float]:
    """Those of a cohort that meet the deadline, and how long the round takes.

    A round ends when all have answered, or at the deadline. Where nobody meets it, the round waits
    for whoever is first: a real coordinator cannot go on without anybody.

    Args:
      times: how long each client takes, see `client_times`.
      cohort: ids of those that answer.
      deadline: 0 waits for everybody.

    Example:
      >>> who_is_in_time(torch.tensor([1.0, 3.0, 2.0, 1.0]), torch.tensor([0, 1, 2]), 2.5)
      (tensor([0, 2]), 2.5)
    """
    takes = times[cohort]
    first = float(takes.min())
    last = max(deadline or inf, first)
    there = takes <= last
    return cohort[there], float(takes.max()) if bool(there.all()) else last


def round_half_up(value: float) -> int:
    """The nearest whole number; halves go up (`round` would send 0.5 to 0)."""
    return int(value + 0.5)
