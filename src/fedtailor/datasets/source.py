"""A data set as it was found: raw examples, labels, the official split and natural clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Kind, TaskKind
from fedtailor.core.inputs.plain_text import check_name
from fedtailor.datasets.wording import one_line, quoted

Array: TypeAlias = NDArray[Any]
Labels: TypeAlias = NDArray[np.int64]
BINS = 10  # at most, that rows are told apart by where the label is a number
EVENTS = ("no event", "event")
ColumnKind = Literal["number", "truth", "category", "date", "date-mdy", "identifier", "free text"]
LEFT_OUT: tuple[ColumnKind, ...] = ("identifier", "free text")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, in order.

    A float64 column is numeric (nan = missing); a unicode column is categorical ("" = missing).
    """

    columns: Mapping[str, Array]
    # by name, how text becomes the numbers of a column, where not as plain numbers: `date` and
    # `date-mdy` (days since 1970), `truth` (True is 1), `words` (those are missing)
    reads: Mapping[str, str] = field(default_factory=dict)
    # by name, what a missing number becomes, where not the mean: `median`, `mean+indicator`...
    gaps: Mapping[str, str] = field(default_factory=dict)

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
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Table(columns, self.reads, self.gaps)


@dataclass(frozen=True)
class ColumnReading:
    """How a column of a table was read."""

    name: str
    kind: ColumnKind
    rows: int
    missing: int  # rows without a value
    why: str = ""  # it is left out, or was read so, where that was a guess
    words: tuple[tuple[str, str], ...] = ()  # (place, cell) of words that were read as missing
    lacking: tuple[str, ...] = ()  # clients whose table has no such column

    @property
    def used(self) -> bool:
        """Whether it is a feature."""
        return self.kind not in LEFT_OUT


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
    """A data set before any preprocessing, checked on construction."""

    name: str  # what messages and reports call it
    kind: Kind  # `image`, `table` or `text`
    raw: Raw  # uint8 [n, c, h, w], a `Table`, or a tuple of str
    # classification: int64 [n] in 0..len(classes)-1; regression: float64 [n] in the label's own
    # unit; survival: float64 [n, 2], time and whether the event was seen (0 or 1)
    labels: Array
    classes: tuple[str, ...]  # the class names; empty unless classes are learnt
    official_test: NDArray[np.bool_]  # True where the data set's own test split had the row
    owners: tuple[str, ...]  # names of the natural clients; empty when there are none
    owner: Labels  # int64 [n], the number of each row's natural client; all -1 when there are none
    # what is learnt: `classification`, `regression` or `survival`
    task: TaskKind = "classification"
    label: str = ""  # what the label is called, where it has a name
    decided: str = ""  # one line that says what the labels were taken for, where nobody had said it
    groups: Array | None = None  # text [n], whose rows stay on one side of a split
    moments: Array | None = None  # float64 [n], when each row was: a split trains on the past
    levels: tuple[float, float] | None = None  # what of deep images became 0 and 255
    notes: tuple[str, ...] = ()  # a line for each thing that was guessed or left out in reading
    # of a table of one's own, how each column was read, also those that are left out
    readings: tuple[ColumnReading, ...] = ()
    # of texts that are read character by character, how many of the last are taken; 0: words
    window: int = 0

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
        if self.window < 0 or (self.window and self.kind != "text"):
            raise BadInput(f"data '{name}' of {self.kind} has a window of {self.window} characters")
        self._check_lengths(name)
        self._check_labels(name)
        self._check_owners(name)

    @property
    def all_alike(self) -> str:
        """What all rows are, where nothing can be told apart: a class, or that nobody had an event.

        A site's rows may be so, as other sites have others.
        """
        if self.task == "survival":
            return "" if self.labels[:, 1].any() else EVENTS[0]
        if self.task == "regression" or (self.labels != self.labels[0]).any():
            return ""
        return f"only the class {quoted(self.classes[self.labels[0]])}"

    def require_difference(self) -> None:
        """Raise `BadInput` if all rows are alike."""
        if alike := self.all_alike:
            raise BadInput(
                f"data '{one_line(self.name)}' has {alike}, so there is nothing to tell apart: add "
                "rows of another kind, or name another label"
            )

    @cached_property
    def strata(self) -> Labels:
        """What rows are dealt out by: class, tenth of the label's range by rank, or event."""
        if self.task == "classification":
            return self.labels
        if self.task == "survival":
            return self.labels[:, 1].astype(np.int64)
        return np.searchsorted(self._edges, self.labels, side="right").astype(np.int64)

    @property
    def strata_names(self) -> tuple[str, ...]:
        """A name for each number in `strata`."""
        if self.task == "classification":
            return self.classes
        if self.task == "survival":
            return EVENTS
        edges = [f"{edge:.4g}" for edge in self._edges]
        between = [f"{low} to {high}" for low, high in pairwise(edges)]
        return (f"below {edges[0]}", *between, f"from {edges[-1]}")

    @cached_property
    def _edges(self) -> Array:
        """Where one bin of a regression's labels ends and the next begins; no bin is empty."""
        least = self.labels.min()
        inner = np.quantile(self.labels, np.arange(1, BINS) / BINS, method="inverted_cdf")
        inner = inner[inner > least]
        # where nearly all rows have the least value, it is told apart from all others
        return (
            np.unique(inner) if len(inner) else self.labels[self.labels > least].min(keepdims=True)
        )

    def _check_lengths(self, name: str) -> None:
        if not len(self.raw):
            raise BadInput(f"data '{name}' holds no examples: give at least one per class")
        count = len(self.raw)
        columns = {
            "labels": (self.labels, *_LABELS[self.task]),
            "official_test": (self.official_test, np.bool_, ()),
            "owner": (self.owner, np.int64, ()),
        }
        for what, (values, kind, each) in columns.items():
            if values.shape != (count, *each):
                raise BadInput(
                    f"data '{name}' has {count} examples but {what} of shape "
                    f"{values.shape}: give one per example"
                )
            if values.dtype != kind:
                raise BadInput(f"data '{name}' has {what} of {values.dtype}: give {kind.__name__}")

    def _check_labels(self, name: str) -> None:
        if self.task != "classification":
            check_numbers(self.labels, self.task, f"data '{name}'")
            if self.classes:
                raise BadInput(f"data '{name}' has class names but no classes: leave them out")
            return
        if len(set(self.classes)) != len(self.classes):
            raise BadInput(f"data '{name}' names a class twice: make the class names differ")
        outside = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(outside):
            raise BadInput(
                f"data '{name}' has label {self.labels[outside[0]]} at row {outside[0] + 1}: "
                f"labels must lie in 0..{len(self.classes) - 1}"
            )

    def _check_owners(self, name: str) -> None:
        for owner in self.owners:
            check_name(owner, f"data '{name}', client")
        if len(set(self.owners)) != len(self.owners):
            raise BadInput(f"data '{name}' names a client twice: make the client names differ")
        low, high = (0, len(self.owners) - 1) if self.owners else (-1, -1)
        outside = np.flatnonzero((self.owner < low) | (self.owner > high))
        if len(outside):
            raise BadInput(
                f"data '{name}' has owner {self.owner[outside[0]]} at row {outside[0] + 1}: "
                f"owners must lie in {low}..{high}"
            )


# Of each task: the labels' type, and the shape of one.
_LABELS: Mapping[TaskKind, tuple[type, tuple[int, ...]]] = {
    "classification": (np.int64, ()),
    "regression": (np.float64, ()),
    "survival": (np.float64, (2,)),
}


def check_numbers(labels: Array, task: TaskKind, where: str) -> None:
    """Raise `BadInput` unless a regression or a survival analysis can learn from the labels."""
    if not np.isfinite(labels).all():
        row = int(np.argwhere(~np.isfinite(labels))[0][0])
        raise BadInput(f"{where} has a label that is no finite number (row {row + 1}): mend it")
    if task == "regression":
        if labels.min() == labels.max():
            raise BadInput(f"{where} has only the label {labels[0]:g}: there must be at least 2")
        return
    time, event = labels[:, 0], labels[:, 1]
    if (time < 0).any():
        row = int(np.flatnonzero(time < 0)[0])
        raise BadInput(
            f"{where} has the time {time[row]:g} (row {row + 1}): times must not be negative"
        )
    odd = np.flatnonzero((event != 0) & (event != 1))
    if len(odd):
        raise BadInput(
            f"{where} has the event {event[odd[0]]:g} (row {odd[0] + 1}): "
            "use 1 where it was seen and 0 where it was not"
        )
