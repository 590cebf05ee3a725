"""A data set as it was found: raw examples, labels, the official split and natural clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Kind
from fedtailor.datasets.wording import one_line, quoted

Array: TypeAlias = NDArray[Any]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, in order.

    A float64 column is numeric (nan = missing); a unicode column is categorical ("" = missing).
    """

    columns: Mapping[str, Array]

    def __post_init__(self) -> None:
        # A private read-only copy, so that the table stays the value it was built as.
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        lengths = {len(c) for c in self.columns.values()}
        if len(lengths) > 1:
            raise BadInput(f"table columns differ in length ({sorted(lengths)}): make them equal")
        for name, column in self.columns.items():
            if column.ndim != 1 or (column.dtype != np.float64 and column.dtype.kind != "U"):
                raise BadInput(
                    f"column {quoted(name)} is {column.dtype} with {column.ndim} dimensions: "
                    "give 1-d float64 or text"
                )
            if column.dtype == np.float64 and np.isinf(column).any():
                row = int(np.flatnonzero(np.isinf(column))[0])
                raise BadInput(
                    f"column {quoted(name)} holds an infinite value (row {row + 1}): "
                    "use a finite number or leave it empty"
                )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def take(self, rows: Array) -> Table:
        """The table of these rows only."""
        return Table({name: column[rows] for name, column in self.columns.items()})


Raw: TypeAlias = Array | Table | tuple[str, ...]


def take(raw: Raw, rows: Array) -> Raw:
    """The examples at these row numbers, whatever their kind."""
    if isinstance(raw, Table):
        return raw.take(rows)
    if isinstance(raw, tuple):
        return tuple(raw[i] for i in rows)
    return raw[rows]


def kind_of(raw: Raw) -> Kind:
    """Images are arrays, tables are `Table`, texts are a tuple of str."""
    if isinstance(raw, Table):
        return "table"
    return "text" if isinstance(raw, tuple) else "image"


@dataclass(frozen=True, eq=False)
class Source:
    """A data set before any preprocessing, checked on construction.

    Attributes:
      name: what messages and reports call it.
      kind: `image`, `table` or `text`.
      raw: uint8 [n, c, h, w], a `Table`, or a tuple of str.
      labels: int64 [n] in 0..len(classes)-1.
      classes: the class names.
      official_test: True where the data set's own test split had the row.
      owners: names of the natural clients; empty when there are none.
      owner: int64 [n], the number of each row's natural client; all -1 when there are none.
    """

    name: str
    kind: Kind
    raw: Raw
    labels: Labels
    classes: tuple[str, ...]
    official_test: NDArray[np.bool_]
    owners: tuple[str, ...]
    owner: Labels

    def __post_init__(self) -> None:
        self.check()

    def __len__(self) -> int:
        return len(self.labels)

    def check(self) -> None:
        """Raise `BadInput` unless all parts fit together."""
        name = one_line(self.name)
        if self.kind != kind_of(self.raw):
            raise BadInput(f"data '{name}' says it is {self.kind} but holds {kind_of(self.raw)}")
        if isinstance(self.raw, np.ndarray) and (self.raw.dtype != np.uint8 or self.raw.ndim != 4):
            raise BadInput(
                f"data '{name}' has images of {self.raw.dtype} in {self.raw.ndim} dimensions: "
                "give uint8 [n, c, h, w]"
            )
        self._check_lengths(name)
        self._check_labels(name)
        self._check_owners(name)

    def _check_lengths(self, name: str) -> None:
        if not len(self.raw):
            raise BadInput(f"data '{name}' holds no examples: give at least one per class")
        columns = {
            "labels": (self.labels, np.int64),
            "official_test": (self.official_test, np.bool_),
            "owner": (self.owner, np.int64),
        }
        for what, (values, kind) in columns.items():
            if values.shape != (len(self.raw),):
                raise BadInput(
                    f"data '{name}' has {len(self.raw)} examples but {what} of shape "
                    f"{values.shape}: give one per example"
                )
            if values.dtype != kind:
                raise BadInput(f"data '{name}' has {what} of {values.dtype}: give {kind.__name__}")

    def _check_labels(self, name: str) -> None:
        if len(set(self.classes)) != len(self.classes):
            raise BadInput(f"data '{name}' names a class twice: make the class names differ")
        outside = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(outside):
            raise BadInput(
                f"data '{name}' has label {self.labels[outside[0]]} at row {outside[0] + 1}: "
                f"labels must lie in 0..{len(self.classes) - 1}"
            )
        present = np.unique(self.labels)
        if len(present) < 2:
            raise BadInput(
                f"data '{name}' has only the class {quoted(self.classes[present[0]])}: "
                "there must be at least 2 classes to tell apart"
            )

    def _check_owners(self, name: str) -> None:
        if len(set(self.owners)) != len(self.owners):
            raise BadInput(f"data '{name}' names a client twice: make the client names differ")
        low, high = (0, len(self.owners) - 1) if self.owners else (-1, -1)
        outside = np.flatnonzero((self.owner < low) | (self.owner > high))
        if len(outside):
            raise BadInput(
                f"data '{name}' has owner {self.owner[outside[0]]} at row {outside[0] + 1}: "
                f"owners must lie in {low}..{high}"
            )
