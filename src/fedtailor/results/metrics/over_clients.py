"""What a metric comes to over many clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

Thing = TypeVar("Thing")


def over_clients(
    values: Sequence[float] | np.ndarray, weighted: float, higher_is_better: bool = True
) -> dict[str, float]:
    """A metric's summary over the clients that have it: those with nan are left out.

    `mean`, `std`, `median` are over clients. `bottom5` and `top5` are the means over the
    max(1, round(0.05 N)) worst-off and best-off of them and `worst` is the worst-off, which is the
    highest value where less is better. `weighted` is the metric over all rows of all clients taken
    together, and is left out where that is nan. `clients` is how many have a value. Empty without
    any.

    Example (errors: less is better):
      >>> found = over_clients([1.0, 3.0, float("nan")], 2.5, higher_is_better=False)
      >>> found["mean"], found["worst"], found["top5"], found["clients"]
      (2.0, 3.0, 1.0, 2)
    """
    values = np.asarray(values, dtype=np.float64)
    each = np.sort(values[~np.isnan(values)])
    if not len(each):
        return {}
    worst_first = each if higher_is_better else each[::-1]
    few = max(1, round(0.05 * len(each)))
    found = {
        "mean": each.mean(),
        "weighted": weighted,
        "std": each.std(),
        "median": np.median(each),
        "bottom5": worst_first[:few].mean(),
        "top5": worst_first[-few:].mean(),
        "worst": worst_first[0],
    }
    known = {k: float(v) for k, v in found.items() if not math.isnan(v)}
    return known | {"clients": len(each)}


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are there; None if none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def over_most(things: Iterable[Thing], valued: Callable[[Thing], int]) -> list[Thing]:
    """Those whose mean is over most clients.

    A mean that lacks a client, whose model diverged, is not held against means over all.

    Example:
      >>> over_most([("one", 20), ("two", 19)], lambda found: found[1])
      [('one', 20)]
    """
    counts = [(thing, valued(thing)) for thing in things]
    most = max((count for _, count in counts), default=0)
    return [thing for thing, count in counts if count == most]


def best_round(
    rounds: Sequence[int], val: Sequence[float | None], higher_is_better: bool = True
) -> int | None:
    """The round with the best value on validation rows, the earliest of equals; None without any.

    Example:
      >>> best_round([1, 2, 3], [0.5, 0.8, None]), best_round([1, 2], [0.5, 0.8], False)
      (2, 1)
    """
    sign = -1 if higher_is_better else 1
    known = [(sign * v, r) for r, v in zip(rounds, val, strict=True) if v is not None]
    return min(known)[1] if known else None
