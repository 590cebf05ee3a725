"""Numbers about a partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.partition.draws import Array
from fedtailor.partition.parts import PARTS, Partition


def count_classes(partition: Partition, labels: Array, classes: int) -> npt.NDArray[np.int64]:
    """How many rows (train, val and test together) each client has of each class.

    Example:
      >>> rows = (np.array([0, 1]),), (np.array([2]),), (np.array([3]),)
      >>> partition = Partition(("ann",), *rows, scheme="own", seed=0)
      >>> count_classes(partition, np.array([0, 1, 1, 1]), 2)
      array([[1, 3]])
    """
    labels = np.asarray(labels)
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise BadInput(f"label {wrong} in data with {classes} classes: labels are 0..{classes - 1}")
    return np.array(
        [np.bincount(labels[partition.rows(i)], minlength=classes) for i in range(len(partition))]
    ).reshape(len(partition), classes)


def statistics(partition: Partition, labels: Array, classes: int) -> dict[str, Any]:
    """Sizes, classes and skew in plain numbers, ready for JSON.

    `label_distance` is the L1 distance of label frequencies, averaged over pairs of clients (0 to
    2). `label_distance_doubled` is how FedFomo's code computes it: a sum over the labels of the one
    client plus a sum over those of the other, so that labels which both have count twice.
    """
    counts = count_classes(partition, labels, classes)
    held = (counts > 0).sum(axis=1)
    plain, doubled = _label_distances(counts)
    return {
        "clients": len(partition),
        "rows": {part: sum(r.size for r in getattr(partition, part)) for part in PARTS},
        "samples": _spread(counts.sum(axis=1)),
        "classes_per_client": {**_spread(held), "each": held.tolist()},
        "class_counts": counts.tolist(),
        "label_distance": plain,
        "label_distance_doubled": doubled,
    }


def _spread(values: Array) -> dict[str, float]:
    if values.size == 0:
        return {"min": 0, "median": 0.0, "max": 0}
    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _label_distances(counts: Array) -> tuple[float, float]:
    """The mean over pairs of clients, plain and doubled; 0 where there are no pairs."""
    pairs = len(counts) * (len(counts) - 1) / 2
    frequency = counts / counts.sum(axis=1, keepdims=True).clip(1)
    plain = doubled = 0.0
    # one client against all later ones at a time: thousands of clients must fit into memory
    for i, mine in enumerate(frequency):
        later = frequency[i + 1 :]
        apart = np.abs(later - mine)
        plain += apart.sum()
        doubled += apart.sum() + apart[(later > 0) & (mine > 0)].sum()
    return float(plain / max(pairs, 1)), float(doubled / max(pairs, 1))
