"""What recipes are made of: who has which classes, and the rows that go with it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.partition.draws import Array, Rows, sorted_rows


def checked(labels: Array, clients: int) -> npt.NDArray[np.int64]:
    """Labels as int64, if they are one integer per row and there is a row for every client."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise BadInput(
            f"labels are {labels.dtype} of shape {labels.shape}: give one integer per row"
        )
    at_least_one("number of clients", clients)
    if clients > labels.size:
        raise BadInput(f"{clients} clients for {labels.size} rows: use at most one client per row")
    return labels.astype(np.int64)


def at_least_one(what: str, value: int) -> None:
    if value < 1:
        raise BadInput(f"{what} is {value}: it must be at least 1")


def rows_by_value(values: Array) -> list[Rows]:
    """The rows of each distinct value; one sort, as there may be thousands of values."""
    _, counts = np.unique(values, return_counts=True)
    return sorted_rows(np.split(np.argsort(values, kind="stable"), np.cumsum(counts)[:-1]))


def choose_classes(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Which client (row) has which class (column): the same number each, chosen at random.

    Every client takes the least used classes, ties broken at random. So the number of holders
    differs by one at most between classes, and no class is left out where all can be held.
    """
    if not 1 <= per_client <= classes:
        raise BadInput(
            f"{per_client} classes per client, but the data have {classes}: "
            f"choose a number from 1 to {classes}"
        )
    holds = np.zeros((clients, classes), bool)
    used = np.zeros(classes, np.int64)
    for client in rng.permutation(clients):
        holds[client, np.lexsort((rng.random(classes), used))[:per_client]] = True
        used += holds[client]
    return holds


def deal_rows(labels: Array, counts: Array, rng: np.random.Generator) -> list[Rows]:
    """Random rows for each client, as many of each class as `counts` [clients, classes] says."""
    hands: list[list[Array]] = [[] for _ in counts]
    for rows, wanted in zip(rows_by_value(labels), counts.T, strict=True):
        *dealt, _unused = np.split(rng.permutation(rows), np.cumsum(wanted))
        for hand, part in zip(hands, dealt, strict=True):
            hand.append(part)
    return sorted_rows([np.concatenate(hand) for hand in hands])


def deal_equally(
    labels: Array, holds: npt.NDArray[np.bool_], rng: np.random.Generator, rows: int = 0
) -> list[Rows]:
    """The same amount of every class that a client (row of `holds`) has, for all clients.

    The amount is the largest that every class can afford; further rows stay unused.

    Args:
      labels: class of each row of the data.
      holds: who has which class; all clients equally many.
      rng: draws the rows.
      rows: most rows of a client, if not 0.
    """
    available = np.unique(labels, return_counts=True)[1]
    amount = (available // holds.sum(axis=0).clip(1))[holds.any(axis=0)].min()
    per_client = int(holds[0].sum())
    if rows:
        amount = min(amount, rows // per_client)
    if amount == 0:
        raise BadInput(
            f"too few rows for {len(holds)} clients with {per_client} classes each, the same "
            "amount of every class: use fewer clients or classes per client"
            + f", or more than {rows} rows per client"
            * bool(rows)
        )
    return deal_rows(labels, holds * amount, rng)
