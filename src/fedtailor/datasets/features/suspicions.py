"""What looks wrong with a table, or with folders of images: one line for each kind of thing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedtailor.datasets.source import Array, Source, Table
from fedtailor.datasets.wording import listed, one_line, quoted

COPY = 0.99  # of the rows whose label a column tells
FEW_VALUES = 20  # a column of fewer values may be the label in other words
LEAST_ROWS = 20  # below, a column tells the label by chance
MANY_INPUTS = 50  # of one column


def suspicions(source: Source) -> list[str]:
    """A line for each kind of thing that looks wrong with data of one's own.

    Args:
      source: the data; of others than tables and images of one's own nothing is said, but that
        all labels are alike.
    """
    lines: list[tuple[str, Iterable[str]]] = []
    if isinstance(source.raw, Table) and source.readings:
        lines += _of_table(source, source.raw)
    if lines or source.kind == "image":
        lines += [
            (
                "classes that one client alone has (written as elsewhere?)",
                _classes_at_one_client(source),
            ),
            ("the same but for capitals or spaces, and taken for several", _spelt_twice(source)),
        ]
    if alike := source.all_alike:
        lines.append(("nothing to tell apart without others' rows", [alike]))
    found = [(what, list(names)) for what, names in lines]
    return [f"{what}: {', '.join(names)}" for what, names in found if names]


def _of_table(source: Source, table: Table) -> list[tuple[str, Iterator[str]]]:
    return [
        ("constant, so nothing is learnt from", _constants(table)),
        (f"nearly the label ({quoted(source.label)}) in other words", _copies(source, table)),
        ("not in a client's table, so missing there (--strict refuses)", _lacking(source, table)),
        ("without any value at a client", _empty(source, table)),
        ("categories that one client alone has", _at_one_client(source, table)),
        (f"more than {MANY_INPUTS} categories", _many(table)),
        (
            "groups that several clients have, each on one side of the split at all of them, which "
            "changes how many rows train (if clients number their own, make the names differ)",
            _shared_groups(source),
        ),
    ]


def present(column: Array) -> Array:
    """Which rows have a value."""
    there: Array = ~np.isnan(column) if column.dtype.kind == "f" else column != ""
    return there


def _short(name: str) -> str:
    return one_line(name, 40)


def _constants(table: Table) -> Iterator[str]:
    for name, column in table.columns.items():
        values = np.unique(column[present(column)])
        if len(values) == 1:
            yield _short(name)


def _copies(source: Source, table: Table) -> Iterator[str]:
    for name, column in table.columns.items():
        there = present(column)
        if there.sum() < LEAST_ROWS:
            continue
        values, labels = column[there], source.labels[there]
        if source.task == "survival":
            told = _follows(values, labels[:, 0]) or _tells(values, labels[:, 1].astype(np.int64))
        elif source.task == "regression":
            told = _follows(values, labels)
        else:
            told = _tells(values, labels)
        if told:
            yield _short(name)


def _follows(values: Array, labels: Array) -> bool:
    """Whether numbers rise and fall with the label."""
    if values.dtype.kind != "f" or values.std() == 0 or labels.std() == 0:
        return False
    return bool(abs(np.corrcoef(values, labels)[0, 1]) > 0.999)


def _tells(values: Array, labels: Array) -> bool:
    """Whether the value tells the class, and no value alone is most of the rows."""
    classes, of = np.unique(labels, return_inverse=True)
    commonest = np.bincount(of).max() / len(of)
    if len(classes) < 2 or commonest > COPY - 0.05:
        return False
    kinds, which = np.unique(values, return_inverse=True)
    if len(kinds) <= FEW_VALUES:
        counts = np.zeros((len(kinds), len(classes)))
        np.add.at(counts, (which, of), 1)
        return bool(counts.max(axis=1).sum() >= COPY * len(of))
    if values.dtype.kind != "f" or len(classes) != 2:
        return False
    # every value of one class above all of the other
    zero, one = values[of == 0], values[of == 1]
    apart = max((zero > one.max()).mean(), (zero < one.min()).mean())
    return bool(apart >= COPY)


def _by_owner(source: Source) -> Iterator[tuple[str, Array]]:
    for number, owner in enumerate(source.owners):
        yield owner, source.owner == number


def _lacking(source: Source, table: Table) -> Iterator[str]:
    for reading in source.readings:
        if reading.lacking and reading.name in table.columns:
            yield f"{_short(reading.name)} ({listed(reading.lacking, 4)})"


def _empty(source: Source, table: Table) -> Iterator[str]:
    lacking = {r.name: r.lacking for r in source.readings}
    for name, column in table.columns.items():
        there = present(column)
        without = [o for o, rows in _by_owner(source) if rows.any() and not there[rows].any()]
        if without := [owner for owner in without if owner not in lacking.get(name, ())]:
            yield f"{_short(name)} ({listed(without, 4)})"


def _at_one_client(source: Source, table: Table) -> Iterator[str]:
    for name, column in table.columns.items():
        if column.dtype.kind == "U":
            there = present(column)
            values, which = np.unique(column[there], return_inverse=True)
            if told := _alone(values, which, source.owner[there], source.owners):
                yield f"{_short(name)} ({told})"


def _classes_at_one_client(source: Source) -> Iterator[str]:
    """Where a site writes 1 and another yes, these would be two classes."""
    if source.task == "classification":
        names = np.array(source.classes)
        if told := _alone(names, source.labels, source.owner, source.owners):
            yield told


def _alone(values: Array, which: Array, owner: Array, owners: Sequence[str]) -> str:
    """How many of these values one client alone has, with an example; empty where none."""
    if len(owners) < 2:
        return ""
    alone = np.flatnonzero(_holders(which, owner) == 1)
    if not len(alone):
        return ""
    at = owners[int(owner[which == alone[0]][0])]
    example = f"such as {quoted(values[alone[0]], 30)} at {one_line(at, 40)}"
    return f"{len(alone)} of {len(values)}, {example}"


def _holders(which: Array, owner: Array) -> Array:
    """How many clients have each value, by its number."""
    pairs = np.unique(np.stack([which, owner], axis=1), axis=0)
    return np.bincount(pairs[:, 0])


def _spelt_twice(source: Source) -> Iterator[str]:
    """Where some cells say yes and others YES, these are two."""
    found: list[tuple[str, Iterable[str]]] = [
        ("classes", source.classes),
        ("clients", source.owners),
    ]
    if isinstance(source.raw, Table):
        found += _categories(source.raw)
    for what, names in found:
        alike: dict[str, list[str]] = {}
        for name in map(str, names):
            plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
            alike.setdefault(plain, []).append(quoted(name, 30))
        several = [" and ".join(spelt) for spelt in alike.values() if len(spelt) > 1]
        if several:
            yield f"{what} ({listed(several, 3)})"


def _many(table: Table) -> Iterator[str]:
    for name, values in _categories(table):
        if len(values) > MANY_INPUTS:
            yield f"{name} ({len(values):,})"


def _categories(table: Table) -> Iterator[tuple[str, Array]]:
    """Columns of words by their names in short, with what they say."""
    for name, column in table.columns.items():
        if column.dtype.kind == "U":
            yield _short(name), np.unique(column[present(column)])


def _shared_groups(source: Source) -> Iterator[str]:
    if source.groups is None or len(source.owners) < 2:
        return
    names, which = np.unique(source.groups, return_inverse=True)
    shared = np.flatnonzero(_holders(which, source.owner) > 1)
    if len(shared):
        yield f"{len(shared):,} of {len(names):,}, such as {quoted(names[shared[0]], 30)}"
