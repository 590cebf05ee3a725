"""Each client's rows cut into train, val and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import check_name
from fedtailor.partition.draws import Array, Rows, draws, sorted_rows
from fedtailor.partition.units import RowUnits

PARTS = ("train", "val", "test")
OWN = ("natural", "own")  # schemes of clients that came with the data


@dataclass(frozen=True, eq=False)
class Partition:
    """Rows of each client's parts, in the order of `names`.

    Attributes:
      names: one distinct name per client.
      train, val, test: sorted row numbers per client; `val` may be empty.
      scheme: how the rows were divided, for people.
      seed: what the random numbers were made from.
    """

    names: tuple[str, ...]
    train: tuple[Rows, ...]
    val: tuple[Rows, ...]
    test: tuple[Rows, ...]
    scheme: str
    seed: int

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, client: int) -> Rows:
        """All rows of a client."""
        return np.sort(np.concatenate([getattr(self, part)[client] for part in PARTS]))

    def check(self, rows: int, where: str) -> None:
        """Raise `BadInput`, which begins with `where`, unless it fits data with that many rows."""
        for client, name in enumerate(self.names):
            check_name(name, f"{where}: client")
            for part in ("train", "test"):
                if getattr(self, part)[client].size == 0:
                    raise BadInput(f"{where}: {part} of client '{name}' has no rows; mend it")
            mine = self.rows(client)
            if mine[0] < 0 or mine[-1] >= rows:
                wrong = mine[0] if mine[0] < 0 else mine[-1]
                raise BadInput(
                    f"{where}: client '{name}' has row {wrong}, but the data have {rows} rows: "
                    "use the partition made for these data"
                )
            twice = mine[1:][mine[1:] == mine[:-1]]
            if twice.size:
                raise BadInput(
                    f"{where}: row {twice[0]} of client '{name}' is in two places: "
                    "train, val and test may not overlap"
                )


def numbered_clients(count: int) -> list[str]:
    """Names for clients that have none: as many digits as the last one needs.

    Example:
      >>> numbered_clients(11)[:2]
      ['client-00', 'client-01']
    """
    digits = len(str(count - 1))
    return [f"client-{i:0{digits}d}" for i in range(count)]


def split_rows(
    rows_per_client: Sequence[Rows],
    labels: Array,
    names: Sequence[str],
    *,
    test: float = 0.25,
    val: float = 0.2,
    seed: int,
    scheme: str,
    official_test: npt.NDArray[np.bool_] | None = None,
    split_seed: int = 0,
    units: RowUnits | None = None,
) -> Partition:
    """Cuts every client's rows at random into train, val and test.

    A client's cut depends on the seed, its number and its rows alone, not on the other clients.

    Args:
      test: share of a client's rows for testing; without meaning if `official_test` is given.
      val: share of the other rows for validation; 0 for none.
      official_test: marks the rows of an official test split: exactly these are for testing.
      split_seed: another one draws another cut of the same rows.
      units: which rows stay together, or come first; else each row is drawn by itself.

    Raises:
      BadInput: a client would have no row to train on, to test with or, unless `val` is 0, to
        validate with.

    Example:
      >>> partition = split_rows([np.arange(20)], np.arange(20) % 2, ["ann"], seed=0, scheme="iid")
      >>> [len(rows) for part in (partition.train, partition.val, partition.test) for rows in part]
      [12, 3, 5]
    """
    for what, share, allowed in (
        ("test", test, official_test is not None or 0 < test < 1),
        ("val", val, 0 <= val < 1),
    ):
        if not allowed:
            raise BadInput(f"the {what} share is {share}: it must lie between 0 and 1")
    if not 0 < len(names) == len(set(names)) == len(rows_per_client):
        raise BadInput(
            f"{len(set(names))} distinct names for {len(rows_per_client)} clients: "
            "give every client one of its own"
        )
    if official_test is not None and official_test.shape != labels.shape:
        raise BadInput(
            f"the official test split marks {official_test.size} rows of {len(labels)}: "
            "mark every row as true or false"
        )
    cuts = []
    for client, (name, given) in enumerate(zip(names, rows_per_client, strict=True)):
        rows = np.sort(np.asarray(given, np.int64))
        if rows.size and not 0 <= rows[0] <= rows[-1] < len(labels):
            raise BadInput(f"client '{name}' has rows outside 0..{len(labels) - 1}: use data rows")
        shuffled = _cut_draws(seed, split_seed, client).permutation(rows)
        if units is not None:
            parts = units.cut(rows, test, val, f"{seed}/{split_seed}", str(name))
            cuts.append(sorted_rows(parts))
            continue
        if official_test is None:
            at = _part(test, rows.size, keep=2 if val else 1)
            tested, rest = shuffled[:at], shuffled[at:]
        else:
            mask = official_test[shuffled]
            tested, rest = shuffled[mask], shuffled[~mask]
        at = _part(val, rest.size, keep=1) if val else 0
        parts = (rest[at:], rest[:at], tested)
        if any(p.size == 0 for p, part in zip(parts, PARTS, strict=True) if val or part != "val"):
            official = "" if official_test is None else f", {tested.size} of them for testing"
            enough = rows.size > 1 if official_test is None else tested.size and rest.size
            spared = bool(val and enough)  # without validation rows it would do
            raise BadInput(
                f"client '{name}' has {rows.size} rows{official}, too few for "
                f"train{', val' if val else ''} and test: {_cure(scheme, spared)}"
            )
        cuts.append(sorted_rows(parts))
    if units is not None:
        cuts = units.one_side(cuts, names)
    train, validation, testing = zip(*cuts, strict=True)
    return Partition(tuple(names), train, validation, testing, scheme, int(seed))


def _cut_draws(seed: int, split_seed: int, client: int) -> np.random.Generator:
    again = ("again", split_seed) if split_seed else ()
    return draws(seed, "split", client, *again)


def split_again(partition: Partition, *, split_seed: int) -> Partition:
    """The same clients with the same rows; which of them train, validate and test is drawn anew.

    Every part of every client stays as large as it was. A `split_seed` of 0 changes nothing.

    Example:
      >>> rows = (np.arange(4),), (np.array([4]),), (np.array([5, 6]),)
      >>> again = split_again(Partition(("ann",), *rows, scheme="own", seed=0), split_seed=1)
      >>> again.rows(0).tolist(), [len(p[0]) for p in (again.train, again.val, again.test)]
      ([0, 1, 2, 3, 4, 5, 6], [4, 1, 2])
    """
    if not split_seed:
        return partition
    cuts = []
    for client in range(len(partition)):
        sizes = [getattr(partition, part)[client].size for part in PARTS]
        rng = _cut_draws(partition.seed, split_seed, client)
        shuffled = rng.permutation(partition.rows(client))
        cuts.append(sorted_rows(np.split(shuffled, np.cumsum(sizes)[:-1])))
    train, val, test = zip(*cuts, strict=True)
    return replace(partition, train=train, val=val, test=test)


def _cure(scheme: str, spared: bool) -> str:
    """What helps a client with too few rows: nobody can draw natural clients anew."""
    if scheme.partition(":")[0] not in OWN:
        return "use fewer clients or a larger --min-samples"
    if spared:
        return "do without validation rows (--val 0), or merge it with another client"
    return "remove this client or merge it with another"


def _part(share: float, rows: int, *, keep: int) -> int:
    """How many of the rows: at least one, but leaving `keep` of them."""
    return max(0, min(max(1, round(share * rows)), rows - keep))


def permute_targets(partition: Partition, *, seed: int) -> Partition:
    """Out of local distribution: every client is validated and tested with another client's rows.

    The clients are put in a random ring and each one gets the `val` and `test` of the next, so that
    nobody keeps its own (a lone client must).
    """
    ring = draws(seed, "permute targets").permutation(len(partition))
    target = np.empty_like(ring)
    target[ring] = np.roll(ring, -1)
    return replace(
        partition,
        val=tuple(partition.val[i] for i in target),
        test=tuple(partition.test[i] for i in target),
    )


def hold_out(clients: int, share_or_count: int | float, *, seed: int) -> Rows:
    """Numbers of the clients that stay away from training and join later, sorted.

    Args:
      share_or_count: an integer counts clients; a float below 1 is a share of them (at least one).

    Example:
      >>> hold_out(10, 0.2, seed=0)
      array([0, 5])
    """
    if not isinstance(share_or_count, float):
        count = share_or_count
    elif 0 < share_or_count < 1:
        count = max(1, min(round(share_or_count * clients), clients - 1))
    else:
        count = 0 if share_or_count == 0 else -1  # else neither a share nor a count
    if not 0 <= count < clients:
        raise BadInput(
            f"{share_or_count} of {clients} clients held out: give a share below 1 or a count "
            f"below {clients}, so that somebody trains"
        )
    chosen = draws(seed, "hold out").permutation(clients)[:count]
    return np.sort(chosen).astype(np.int64)
