"""Who has which classes, who resembles whom, and what models take rows for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.results.collect import CollectedRuns, Contender
from fedtailor.results.confusion import read_confusion
from fedtailor.results.folder import CONFUSION, PREPROCESSING, read_note
from fedtailor.results.pack import Array, pack_counts

CLUSTERED = 2000  # with more clients all pairs would need too much memory
ORDERED = 400  # with more clients the best order of leaves takes too long
CONFUSIONS = 600_000  # kinds of mistakes, over all methods and clients


def class_names(folder: Path) -> list[str]:
    """The classes' names, from the run's preprocessing."""
    names = read_note(folder / PREPROCESSING).get("classes")
    return [str(name) for name in names] if isinstance(names, list) else []


def client_class_counts(collection: CollectedRuns) -> Array | None:
    """Rows per client and class; None if no run kept them."""
    for contender in collection.contenders:
        for run in contender.runs:
            names = class_names(run.folder)
            found = _counted(run.folder, "class_counts", len(collection.clients), len(names))
            if found is not None and names:
                table = np.zeros((len(collection.clients), len(names)), dtype=np.int64)
                client, label, count = found.T
                table[client, label] = count
                return table
    return None


def _counted(folder: Path, name: str, clients: int, classes: int) -> Array | None:
    """Counts that a run kept: a client, one or two classes, a number; None if it kept none."""
    kept = read_confusion(folder).get(name)
    if kept is None:
        return None
    rows = kept.numpy().astype(np.int64)
    columns = {"class_counts": 3, "confusion": 4}[name]
    fits = rows.ndim == 2 and rows.shape[1] == columns and (rows >= 0).all()
    if not fits or (rows[:, 0] >= clients).any() or (rows[:, 1:-1] >= classes).any():
        raise BadInput(f"'{folder / CONFUSION}' does not fit the run beside it: remove it")
    return rows


def likeness_order(counts: Array | None, clients: int) -> Array:
    """The clients, those with like class mixes beside each other.

    Args:
      counts: rows per client and class; None keeps the clients' own order.
      clients: how many there are.
    """
    if counts is None or clients < 3:
        return np.arange(clients)
    share = counts / counts.sum(axis=1, keepdims=True).clip(1)
    if clients > CLUSTERED:
        return np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import pdist

    tree = linkage(pdist(share, "cityblock"), method="average", optimal_ordering=clients <= ORDERED)
    return np.asarray(leaves_list(tree))


def confusion(contender: Contender, clients: int, share: int) -> dict[str, Any] | None:
    """Counts of (true, predicted) by client, summed over seeds.

    Args:
      contender: the method.
      clients: how many there are.
      share: the page has room for so many kinds; with more, one seed must do, or none is shown.
    """
    kept = []
    for run in contender.runs:
        found = _counted(run.folder, "confusion", clients, len(class_names(run.folder)))
        if found is None or not len(found):  # a run that goes on has only class counts
            return None
        kept.append(found)
    seeds = len(kept)
    rows = np.concatenate(kept)
    if len(rows) > share:
        rows, seeds = kept[0], 1
    if len(rows) > share:
        return None
    keys, place = np.unique(rows[:, :3], axis=0, return_inverse=True)
    total = np.bincount(place.reshape(-1), weights=rows[:, 3], minlength=len(keys))
    starts = np.searchsorted(keys[:, 0], np.arange(clients + 1))
    cells = np.column_stack([keys[:, 1:], total.astype(np.int64)])
    return {"start": pack_counts(starts), "cells": pack_counts(cells), "seeds": seeds}
