"""A partition as an object: one made before, or a function that says who has which rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import check_name
from fedtailor.partition.draws import Array, Rows
from fedtailor.partition.parts import Partition, numbered_clients, split_again, split_rows
from fedtailor.partition.units import RowUnits


class Labelled(Protocol):
    """Data with a number for every row that says what it is like, such as a `Source`."""

    @property
    def strata(self) -> npt.NDArray[np.int64]: ...


Data = TypeVar("Data", bound=Labelled)
Divide = Callable[[Data, int, int], Sequence[Any] | Mapping[str, Any]]


def partition_of(
    partition: Partition | Divide[Data],
    source: Data,
    clients: int = 0,
    *,
    seed: int = 0,
    test: float = 0.25,
    val: float = 0.2,
    official_test: npt.NDArray[np.bool_] | None = None,
    split_seed: int = 0,
    units: RowUnits | None = None,
) -> Partition:
    """Who has which rows, as an object says it.

    Args:
      partition: a `Partition`, which is taken as it is; or a function of (source, clients, seed)
        that returns the row numbers of each client, in a list or by name in a mapping. No row may
        have two owners; each client's rows are then cut at random into train, val and test.
      source: the data; the function sees all of it.
      clients: how many are wanted; 0 leaves it to `partition`.
      seed: of the function and of the cut.
      test: share of a client's rows for testing.
      val: share of the other rows for validation; 0 for none.
      official_test: marks the rows of an official test split, which are then for testing.
      split_seed: if not 0, another cut of each client's rows.
      units: which rows stay together.

    Raises:
      BadInput: the partition does not fit the data.

    Example:
      >>> from types import SimpleNamespace
      >>> def by_class(source, clients, seed):
      ...     return [np.flatnonzero(source.strata % clients == i) for i in range(clients)]
      >>> data = SimpleNamespace(strata=np.arange(40) % 4)
      >>> parts = partition_of(by_class, data, clients=2)
      >>> parts.names, parts.scheme, [len(rows) for rows in parts.train]
      (('client-0', 'client-1'), 'by_class', [12, 12])
    """
    rows = len(source.strata)
    if isinstance(partition, Partition):
        _check_count(len(partition), clients, "partition")
        partition.check(rows, "partition")
        return split_again(partition, split_seed=split_seed)
    if not callable(partition):
        raise BadInput(
            f"partition is of type {type(partition).__name__}: give a name, a Partition or a "
            "function of (source, clients, seed)"
        )
    scheme = getattr(partition, "__name__", type(partition).__name__)
    where = f"partition '{scheme}'"
    made = partition(source, clients, seed)
    if not isinstance(made, Mapping | Sequence) or not made:
        raise BadInput(
            f"{where} returned {type(made).__name__}: return the row numbers of each client"
        )
    names = list(map(str, made)) if isinstance(made, Mapping) else numbered_clients(len(made))
    for name in names:
        check_name(name, f"{where}: client")
    _check_count(len(names), clients, where)
    shares = made.values() if isinstance(made, Mapping) else made
    owned = [_checked(s, n, rows, where) for s, n in zip(shares, names, strict=True)]
    _refuse_two_owners(owned, names, where)
    return split_rows(
        owned,
        source.strata,
        names,
        test=test,
        val=val,
        seed=seed,
        scheme=scheme,
        official_test=official_test,
        split_seed=split_seed,
        units=units,
    )


def _check_count(found: int, wanted: int, where: str) -> None:
    if wanted not in (0, found):
        raise BadInput(f"clients is {wanted}, but {where} has {found}: leave it out")


def _checked(share: Any, name: str, rows: int, where: str) -> Rows:
    array: Array = np.asarray(share)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise BadInput(
            f"{where}: client '{name}' has {array.dtype} of shape {array.shape}: "
            "give at least one row number"
        )
    if array.min() < 0 or array.max() >= rows:
        wrong = array.min() if array.min() < 0 else array.max()
        raise BadInput(f"{where}: client '{name}' has row {wrong}: use 0..{rows - 1}")
    return array.astype(np.int64)


def _refuse_two_owners(shares: Sequence[Rows], names: Sequence[str], where: str) -> None:
    times = np.bincount(np.concatenate(shares))
    row = int(times.argmax())
    if times[row] > 1:
        owners = [n for n, share in zip(names, shares, strict=True) if row in share]
        raise BadInput(
            f"{where}: row {row} is given {times[row]} times (to {', '.join(owners[:3])}): "
            "give every row to one client, once"
        )
