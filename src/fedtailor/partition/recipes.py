"""The recipes: rows per client, sorted, no row with two clients."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.partition.dealing import (
    at_least_one,
    checked,
    choose_classes,
    deal_equally,
    deal_rows,
    rows_by_value,
)
from fedtailor.partition.draws import Array, Rows, draws, sorted_rows


def iid(labels: Array, clients: int, *, seed: int) -> list[Rows]:
    """All rows, shuffled and dealt in equal parts (sizes differ by one at most).

    Example:
      >>> [rows.tolist() for rows in iid(np.array([0, 1, 0, 1, 0, 1]), 3, seed=0)]
      [[3, 5], [1, 4], [0, 2]]
    """
    labels = checked(labels, clients)
    return sorted_rows(np.array_split(draws(seed, "iid").permutation(labels.size), clients))


def pathological(
    labels: Array, clients: int, classes_per_client: int, *, seed: int, balanced: bool = False
) -> list[Rows]:
    """Exactly `classes_per_client` classes for every client, every class with equally many clients.

    A class's rows are divided among its holders: evenly if `balanced`, else all but one holder draw
    between a tenth and the whole of the even share, and the last one takes the rest. Where
    `clients * classes_per_client` is less than the number of classes, some classes have no holder
    and their rows stay unused.

    Example:
      >>> labels = np.arange(40) % 4
      >>> [np.unique(labels[rows]).tolist() for rows in pathological(labels, 4, 2, seed=0)]
      [[0, 1], [0, 1], [2, 3], [2, 3]]
    """
    labels = checked(labels, clients)
    rng = draws(seed, "pathological")
    classes, available = np.unique(labels, return_counts=True)
    holds = choose_classes(classes.size, clients, classes_per_client, rng)
    counts = np.zeros(holds.shape, np.int64)
    for c in np.flatnonzero(holds.any(axis=0)):
        holders = rng.permutation(np.flatnonzero(holds[:, c]))
        even = int(available[c]) // holders.size
        if even == 0:
            raise BadInput(
                f"class {classes[c]} has {available[c]} rows for {holders.size} clients with "
                f"{classes_per_client} classes each: use fewer clients or classes per client"
            )
        if balanced:
            counts[holders, c] = even
            counts[holders[: available[c] % holders.size], c] += 1
        else:
            first = rng.integers(math.ceil(even / 10), even, holders.size - 1, endpoint=True)
            counts[holders, c] = [*first, available[c] - first.sum()]
    return deal_rows(labels, counts, rng)


def shards(labels: Array, clients: int, classes_per_client: int, *, seed: int) -> list[Rows]:
    """Every class is cut into equally many shards; a client gets `classes_per_client` random ones.

    A client may draw several shards of one class, so it has that many classes at most.

    Example:
      >>> [len(rows) for rows in shards(np.arange(40) % 4, 4, 2, seed=0)]
      [10, 10, 10, 10]
    """
    labels = checked(labels, clients)
    classes, available = np.unique(labels, return_counts=True)
    at_least_one("classes per client", classes_per_client)
    per_class, left = divmod(classes_per_client * clients, classes.size)
    if left:
        raise BadInput(
            f"{clients} clients with {classes_per_client} shards each make "
            f"{clients * classes_per_client} shards, not a multiple of the {classes.size} classes: "
            "change --clients or the number of shards"
        )
    if per_class > available.min():
        raise BadInput(
            f"class {classes[available.argmin()]} has {available.min()} rows, too few for "
            f"{per_class} shards: use fewer clients or shards per client"
        )
    rng = draws(seed, "shards")
    pool = [
        shard
        for value in classes
        for shard in np.array_split(rng.permutation(np.flatnonzero(labels == value)), per_class)
    ]
    hands = rng.permutation(len(pool)).reshape(clients, classes_per_client)
    return sorted_rows([np.concatenate([pool[i] for i in hand]) for hand in hands])


def dirichlet(
    labels: Array,
    clients: int,
    alpha: float,
    *,
    seed: int,
    min_samples: int = 20,
    cap: bool = True,
    tries: int = 1000,
) -> list[Rows]:
    """Each class is divided in proportions drawn from Dir(alpha); small alpha means strong skew.

    With `cap`, clients that hold an equal share of all rows already get nothing of further classes.
    The whole division is drawn anew until every client has `min_samples` rows, at most `tries`
    times.

    Example:
      >>> [len(rows) for rows in dirichlet(np.arange(40) % 4, 4, 0.1, seed=0, min_samples=2)]
      [9, 9, 15, 7]
    """
    labels = checked(labels, clients)
    if not 0 < alpha < math.inf:
        raise BadInput(f"dirichlet alpha is {alpha}: it must be a positive number")
    if clients * min_samples > labels.size:
        raise BadInput(
            f"{clients} clients with at least {min_samples} rows each need more than the "
            f"{labels.size} rows there are: use fewer clients or a lower --min-samples"
        )
    at_least_one("number of tries", tries)
    rng = draws(seed, "dirichlet")
    available = np.unique(labels, return_counts=True)[1]
    limit = labels.size / clients if cap else math.inf
    best = 0
    for _ in range(tries):
        counts = _dirichlet_counts(available, clients, alpha, limit, rng)
        smallest = int(counts.sum(axis=1).min())
        if smallest >= min_samples:
            return deal_rows(labels, counts, rng)
        best = max(best, smallest)
    raise BadInput(
        f"dirichlet:{alpha:g} with {clients} clients: in {tries} draws the smallest client never "
        f"had more than {best} of at least {min_samples} rows: use a larger alpha, fewer clients "
        "or a lower --min-samples"
    )


def noniid1(
    labels: Array, clients: int, classes_per_client: int = 4, rows: int = 0, *, seed: int
) -> list[Rows]:
    """Random classes per client, the same amount of each, and the same amount for all clients.

    The amount is the largest that every class can afford, or `rows` per client if that is less and
    not 0; rows beyond it stay unused. Classes are chosen equally often, else the most wanted one
    would make that amount needlessly small.

    Example:
      >>> labels = np.arange(40) % 4
      >>> [np.unique(labels[rows]).tolist() for rows in noniid1(labels, 4, 2, seed=0)]
      [[1, 3], [2, 3], [0, 1], [0, 2]]
    """
    labels = checked(labels, clients)
    rng = draws(seed, "noniid1")
    classes = np.unique(labels).size
    holds = choose_classes(classes, clients, classes_per_client, rng)
    return deal_equally(labels, holds, rng, rows)


def noniid2(
    labels: Array, clients: int, dominant: int = 2, ratio: float = 0.8, rows: int = 0, *, seed: int
) -> list[Rows]:
    """All classes for every client, but `ratio` of its rows are of its `dominant` random classes.

    All clients have the same amount of each dominant class and the same amount of each other class,
    the largest that every class can afford at this ratio (to the nearest row), or that is within
    `rows` per client if that is not 0; further rows stay unused.

    Example:
      >>> labels = np.arange(40) % 4
      >>> [np.bincount(labels[rows]).tolist() for rows in noniid2(labels, 2, 2, 0.8, seed=0)]
      [[8, 8, 2, 2], [2, 2, 8, 8]]
    """
    labels = checked(labels, clients)
    available = np.unique(labels, return_counts=True)[1]
    others = available.size - dominant
    if others < 1:
        raise BadInput(
            f"{dominant} dominant classes of {available.size}: at least one must not be dominant"
        )
    if not dominant / available.size < ratio < 1:
        raise BadInput(
            f"ratio {ratio} for {dominant} dominant of {available.size} classes: choose a number "
            f"between {dominant / available.size:.3g} and 1, both excluded"
        )
    rng = draws(seed, "noniid2")
    holds = choose_classes(available.size, clients, dominant, rng)

    def counts(amount: int) -> npt.NDArray[np.int64]:
        return np.where(holds, round(ratio / (1 - ratio) * others / dominant * amount), amount)

    for amount in range(int(available.min()) // clients, 0, -1):
        table = counts(amount)
        fits = (table.sum(axis=0) <= available).all()
        if fits and (not rows or table[0].sum() <= rows):
            return deal_rows(labels, table, rng)
    raise BadInput(
        f"too few rows for {clients} clients with all {available.size} classes and {ratio:g} of "
        f"the rows in {dominant} of them: use fewer clients or a ratio nearer to equal shares"
        + f", or more than {rows} rows per client"
        * bool(rows)
    )


def natural(owner: Array, least: int = 1) -> list[Rows]:
    """One client per distinct owner of `least` rows or more, in the sorted order of owners.

    Example:
      >>> [rows.tolist() for rows in natural(np.array([7, 3, 7]))]
      [[1], [0, 2]]
      >>> [rows.tolist() for rows in natural(np.array([7, 3, 7]), least=2)]
      [[0, 2]]
    """
    owner = np.asarray(owner)
    if owner.ndim != 1 or owner.size == 0:
        raise BadInput(f"owners have the shape {owner.shape}: give one owner per row of the data")
    held = rows_by_value(owner)
    kept = [rows for rows in held if len(rows) >= least]
    if not kept:
        raise BadInput(
            f"partition 'natural:{least}': no client has so many rows, the largest has "
            f"{max(map(len, held))}: ask for fewer"
        )
    return kept


def groups(cluster: Array, clients: int, *, seed: int) -> list[Rows]:
    """Latent distributions: clients are spread evenly over the clusters, whose rows they share.

    Example:
      >>> cluster = np.arange(40) % 4
      >>> [np.unique(cluster[rows]).tolist() for rows in groups(cluster, 4, seed=0)]
      [[2], [1], [0], [3]]
    """
    cluster = checked(cluster, clients)
    rng = draws(seed, "groups")
    pools = rows_by_value(cluster)
    if clients < len(pools):
        raise BadInput(
            f"{clients} clients for {len(pools)} latent distributions: use at least as many clients"
        )
    order = rng.permutation(clients)
    out: list[Rows] = [np.empty(0, np.int64)] * clients
    for number, pool in enumerate(pools):
        members = order[number :: len(pools)]
        if pool.size < members.size:
            raise BadInput(
                f"latent distribution {number} has {pool.size} rows for {members.size} clients: "
                "use fewer clients or distributions"
            )
        shares = np.array_split(rng.permutation(pool), members.size)
        for client, share in zip(members, shares, strict=True):
            out[client] = share
    return sorted_rows(out)


def _dirichlet_counts(
    available: Array, clients: int, alpha: float, limit: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Rows per client and class of one draw; clients with `limit` rows get no more."""
    counts = np.zeros((clients, available.size), np.int64)
    held = np.zeros(clients, np.int64)
    for c, rows in enumerate(available):
        takers = np.flatnonzero(held < limit)
        # Dir(alpha) over the takers is exactly Dir(alpha) over all clients with the others'
        # proportions set to zero and the rest renormalised, without the danger of dividing 0 by 0.
        # Beyond a billion the shares are equal to the row, but the sum inside might overflow.
        share = rng.dirichlet(np.full(takers.size, min(alpha, 1e9)))
        cuts = np.append((np.cumsum(share)[:-1] * rows).astype(np.int64), rows)
        counts[takers, c] = np.diff(cuts, prepend=0)
        held += counts[:, c]
    return counts
