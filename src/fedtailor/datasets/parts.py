"""Parts of a data set: a split, a client's file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.source import Array, ColumnReading, Labels, Raw, Table, kind_of
from fedtailor.datasets.wording import listed, quoted


@dataclass(frozen=True, eq=False)
class SourcePart:
    """Some rows from one place."""

    raw: Raw  # the examples
    # one per example, as they were found: names or numbers as text (unicode), numbers (int64,
    # float64), or times and events (float64 [n, 2])
    labels: Array
    where: str  # the file or folder that messages about these rows name
    test: bool = False  # whether the data set's own test split holds these rows
    owners: Sequence[str] = ()  # the client of each row; empty when unknown
    places: Sequence[str] = ()  # what messages call each row, e.g. "line 3"; empty: "row 2"
    label: str = ""  # what the labels are called; empty where they have no name
    groups: Sequence[str] = ()  # whose rows stay together, of each row; empty: each by itself
    moments: Array | None = None  # when each row was, float64; None when unknown
    levels: tuple[float, float] | None = None  # what of deep images became 0 and 255
    notes: tuple[str, ...] = ()  # a line for each thing that was guessed or left out in reading
    readings: tuple[ColumnReading, ...] = ()  # of a table, how each column was read

    def __post_init__(self) -> None:
        if len(self.raw) != len(self.labels):
            raise BadInput(
                f"{self.where} holds {len(self.raw)} examples but {len(self.labels)} labels: "
                "give one label per example"
            )
        if not len(self.raw):
            raise BadInput(f"{self.where} holds no examples: remove it or fill it")

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        return f"{self.where} {self.places[row] if self.places else f'row {row + 1}'}"

    def with_labels(self, labels: Array) -> SourcePart:
        """The part with other labels."""
        return replace(self, labels=labels)


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted, by number when all names are whole numbers (so that 10 follows 9)."""
    distinct = set(names)
    if all(re.fullmatch(r"-?\d{1,18}", n) for n in distinct):
        return tuple(sorted(distinct, key=lambda n: (int(n), n)))
    return tuple(sorted(distinct))


def class_numbers(part: SourcePart, classes: tuple[str, ...]) -> Labels:
    """The part's labels as positions in `classes`."""
    if part.labels.dtype.kind == "U":
        names, inverse = np.unique(part.labels, return_inverse=True)
        place = {c: i for i, c in enumerate(classes)}
        numbers = np.array([place.get(str(n), -1) for n in names], dtype=np.int64)[inverse]
        if set(map(str, names)) <= {str(i) for i in range(len(classes))} - set(classes):
            numbers = part.labels.astype(np.int64)  # class numbers that were read from text
        refuse_rows(part, numbers < 0, f"one of: {listed(classes)}")
        return numbers.astype(np.int64)
    outside = (part.labels < 0) | (part.labels >= len(classes)) | (np.mod(part.labels, 1) != 0)
    refuse_rows(part, outside, f"a number in 0..{len(classes) - 1}")
    return part.labels.astype(np.int64)


def refuse_rows(part: SourcePart, wrong: Array, cure: str) -> None:
    """Raise `BadInput` if the label of any row is marked as wrong."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        label = part.labels[rows[0]]
        raise BadInput(
            f"{part.place(int(rows[0]))}: label {quoted(label)} is out of range: use {cure}"
        )


def joined_raws(parts: Sequence[SourcePart]) -> Raw:
    """All parts' examples as one."""
    first = parts[0]
    for part in parts[1:]:
        if kind_of(part.raw) != kind_of(first.raw):
            raise BadInput(
                f"{part.where} holds {kind_of(part.raw)} but {first.where} holds "
                f"{kind_of(first.raw)}: all parts must be of one kind"
            )
    if isinstance(first.raw, tuple):
        return tuple(text for p in parts if isinstance(p.raw, tuple) for text in p.raw)
    if isinstance(first.raw, Table):
        return _joined_tables(parts, first.raw)
    images = [p.raw for p in parts if isinstance(p.raw, np.ndarray)]
    for part, array in zip(parts, images, strict=True):
        if array.shape[1:] != images[0].shape[1:]:
            raise BadInput(
                f"{part.where} holds images of shape {array.shape[1:]} but {first.where} of "
                f"{images[0].shape[1:]}: bring them to one shape"
            )
    return images[0] if len(images) == 1 else np.concatenate(images)


def _joined_tables(parts: Sequence[SourcePart], first: Table) -> Table:
    tables = [p.raw for p in parts if isinstance(p.raw, Table)]
    for part, table in zip(parts, tables, strict=True):
        same_columns(first.names, table.names, parts[0].where, part.where)
        for column in first.names:
            if table.columns[column].dtype.kind != first.columns[column].dtype.kind:
                raise BadInput(
                    f"{part.where}: column {quoted(column)} mixes text and numbers with "
                    f"{parts[0].where}: make it one or the other"
                )
    columns = {c: np.concatenate([t.columns[c] for t in tables]) for c in first.names}
    return Table(columns, first.reads, first.gaps)


def same_columns(first: Sequence[str], other: Sequence[str], where: str, at: str) -> None:
    """Raise `BadInput` unless both files have the same columns (in any order)."""
    absent = [c for c in first if c not in other]
    extra = [c for c in other if c not in first]
    if absent or extra:
        raise BadInput(
            f"{at} has other columns than {where} (missing: {listed(absent)}; "
            f"extra: {listed(extra)}): give all files the same columns"
        )
