"""What the scores of many clients come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def accuracies(correct: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Each client's accuracy; nan for a client without rows."""
    return np.where(n > 0, correct / np.maximum(n, 1), np.nan)


def summarise(correct: np.ndarray, n: np.ndarray) -> dict[str, float]:
    """Accuracy over clients.

    `mean` is over clients, `weighted` over samples. `bottom5` and `top5` are the mean accuracy of
    the max(1, round(0.05 N)) worst and best clients.

    Example:
      >>> summarise(np.array([1, 4]), np.array([2, 4]))["mean"]
      0.75
    """
    known = n > 0
    if not known.any():
        return {}
    each = np.sort(accuracies(correct, n)[known])
    few = max(1, round(0.05 * len(each)))
    found = {
        "mean": each.mean(),
        "weighted": correct[known].sum() / n[known].sum(),
        "std": each.std(),
        "median": np.median(each),
        "bottom5": each[:few].mean(),
        "top5": each[-few:].mean(),
        "worst": each[0],
    }
    return {k: float(v) for k, v in found.items()}


def best_round(rounds: Sequence[int], val: Sequence[float | None]) -> int | None:
    """The round with the highest validation accuracy, the earliest of equals; None without any."""
    known = [(-v, r) for r, v in zip(rounds, val, strict=True) if v is not None]
    return min(known)[1] if known else None
