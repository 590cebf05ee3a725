"""The features of tables: every column of one kind over all clients, said where it was guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.features.choices import ColumnChoices, ColumnType
from fedtailor.datasets.features.dates import DateOrder, date_numbers
from fedtailor.datasets.features.kinds import FoundKind, kind_of_numbers, kind_of_texts
from fedtailor.datasets.formats.cells import (
    TRUTH,
    categories,
    is_missing,
    is_truth,
    number_or_none,
    plain,
)
from fedtailor.datasets.formats.tables import Cells, RawTable
from fedtailor.datasets.source import LEFT_OUT, Array, ColumnReading, Raw, Table
from fedtailor.datasets.wording import listed, one_line, quoted

NAMED_WORDS = 12  # places that one line names
KEEP = "--types NAME=category"


class FeatureTables(NamedTuple):
    """What the tables give to learn from."""

    tables: Sequence[Raw]  # of each raw table, its features
    readings: tuple[ColumnReading, ...] = ()  # of every column that could be one
    notes: tuple[str, ...] = ()  # a line for each thing that was guessed or left out
    levels: tuple[float, float] | None = None  # of deep images in a column


def feature_tables(
    tables: Sequence[RawTable], names: Sequence[str], choices: ColumnChoices
) -> FeatureTables:
    """The features of each table, each column of one kind over all tables.

    Args:
      tables: of all clients.
      names: of the columns that may be features.
      choices: what the user said of them.

    Raises:
      BadInput: a column is nothing that a feature can be, or nothing is left.
    """
    columns: dict[str, list[Array]] = {}
    readings = []
    for name in names:
        reading, arrays = _read_column(tables, name, choices)
        readings.append(reading)
        if arrays:
            columns[name] = arrays
    if not columns:
        raise BadInput(
            f"{tables[0].where} has nothing to learn from: {listed(r.name for r in readings)} are "
            f"left out as identifiers or free text; keep one with {KEEP}"
        )
    reads = {r.name: _reads(r) for r in readings if r.used and _reads(r)}
    gaps = {name: how for name, how in choices.missing.items() if name in columns}
    for reading in readings:
        if reading.name in gaps and reading.kind == "category":
            raise BadInput(
                f"--missing names {quoted(reading.name)}, which is a category: a missing one gives "
                "zeros, which tell it apart: leave it out"
            )
    out = [Table({n: columns[n][i] for n in columns}, reads, gaps) for i in range(len(tables))]
    return FeatureTables(out, tuple(readings), tuple(_notes(readings, gaps)))


def _reads(reading: ColumnReading) -> str:
    """What a table must remember, so that new rows are read the same."""
    if reading.kind in ("truth", "date", "date-mdy"):
        return reading.kind
    return "words" if reading.words else ""


def _read_column(
    tables: Sequence[RawTable], name: str, choices: ColumnChoices
) -> tuple[ColumnReading, list[Array]]:
    cells = [table.columns[name] for table in tables]
    for table, column in zip(tables, cells, strict=True):
        if isinstance(column, list) and any(isinstance(c, bytes) for c in column):
            raise BadInput(f"{table.where} column {quoted(name)} holds bytes: leave it out")
    asked = choices.types.get(name)
    kind, why = FoundKind(asked) if asked else _find_kind(tables, name, cells)
    rows, missing = _counts(cells)
    reading = ColumnReading(name, kind, rows, missing, why)
    if kind in LEFT_OUT:
        return reading, []
    if kind == "category":
        return reading, [_names(column, bool(asked)) for column in cells]
    arrays, words = [], []
    for table, column in zip(tables, cells, strict=True):
        array, odd = _numbers(column, kind)
        _refuse_infinite(array, name, table)
        arrays.append(array)
        at = table.at if len(tables) > 1 else table.places.__getitem__
        words += [(at(row), one_line(column[row], 30)) for row in odd]
    if words and len(words) == rows - missing:
        raise BadInput(
            f"{tables[0].where} column {quoted(name)} has {quoted(words[0][1])} ({words[0][0]}), "
            f"and no cell of it is a {asked or kind}: choose another type (--types)"
        )
    if words and choices.strict:
        raise BadInput(
            f"{_of_words(name, kind, words)}: mend the cells, say --types "
            f"{one_line(name)}=category, or leave out --strict"
        )
    return replace(reading, words=tuple(words)), arrays


def moments_of(
    tables: Sequence[RawTable], column: str, asked: ColumnType | None = None
) -> tuple[list[Array], tuple[str, ...]]:
    """When each row was, numbers or days of dates, and what was a guess; none may be missing.

    Args:
      tables: with that column.
      column: its name.
      asked: what somebody said that it is.
    """
    if asked not in (None, "number", "date", "date-mdy"):
        raise BadInput(
            f"column {quoted(column)} is the time of the split, and --types says {asked}: say "
            "number, date or date-mdy"
        )
    found = _find_kind(tables, column, [table.columns[column] for table in tables])
    kind: ColumnType = "number"
    if asked or found.kind in ("date", "date-mdy"):
        kind = asked or ("date" if found.kind == "date" else "date-mdy")
    reading, arrays = _read_column(tables, column, ColumnChoices(types={column: kind}))
    for table, array in zip(tables, arrays, strict=True):
        gone = np.flatnonzero(np.isnan(array))
        if len(gone):
            raise BadInput(
                f"{table.at(int(gone[0]))} has no time in column {quoted(column)}: give a date or "
                "a number in every row"
            )
    guessed = not asked and kind != "number" and found.why
    return arrays, (_date_order(replace(reading, why=found.why)),) if guessed else ()


def _find_kind(tables: Sequence[RawTable], name: str, cells: Sequence[Cells]) -> FoundKind:
    arrays = [c for c in cells if isinstance(c, np.ndarray)]
    told = [c for c in cells if not isinstance(c, np.ndarray)]
    if not told:
        return kind_of_numbers(name, np.concatenate(arrays).astype(np.float64))
    found = kind_of_texts(name, [str(c) for column in told for c in column], tables[0].typed)
    if found.kind == "truth" and all(np.isin(a[~np.isnan(a)], (0, 1)).all() for a in arrays):
        return found
    for table, column in zip(tables, cells, strict=True):
        if isinstance(column, np.ndarray) and not np.isnan(column).all():
            raise BadInput(
                f"{table.where} column {quoted(name)} holds numbers but text at another "
                "client: make it one or the other everywhere"
            )
    return found


def _counts(cells: Sequence[Cells]) -> tuple[int, int]:
    """How many rows there are, and how many without a value."""
    missing = 0
    for column in cells:
        if isinstance(column, np.ndarray):
            missing += int(np.isnan(column.astype(np.float64, copy=False)).sum())
        else:
            missing += sum(is_missing(str(cell)) for cell in column)
    return sum(map(len, cells)), missing


def _names(column: Cells, asked: bool) -> Array:
    """The column as categories; where it might be numbers, 3.0 and 3 are the same."""
    return categories([plain(c) if asked else str(c) for c in column])


def _numbers(column: Cells, kind: str) -> tuple[Array, list[int]]:
    """The column as numbers, and the rows of words among them."""
    if isinstance(column, np.ndarray):
        return column.astype(np.float64, copy=False), []
    texts = [str(c) for c in column]
    array = read_numbers(texts, kind)
    odd = np.flatnonzero(np.isnan(array))
    return array, [int(row) for row in odd if not is_missing(texts[row])]


def read_numbers(texts: Sequence[str], kind: str) -> Array:
    """The cells of a column that is numeric, dates as days; nan where one is missing or a word."""
    if kind == "date" or kind == "date-mdy":
        order: DateOrder = "date" if kind == "date" else "date-mdy"
        return date_numbers(texts, order)
    return np.array([_number(c) for c in texts], dtype=np.float64)


def _number(text: str) -> float:
    if is_truth(text):
        return TRUTH[text.strip().lower()]
    found = number_or_none(text)
    return np.nan if found is None else found


def _refuse_infinite(array: Array, name: str, table: RawTable) -> None:
    rows = np.flatnonzero(np.isinf(array))
    if len(rows):
        raise BadInput(
            f"{table.at(int(rows[0]))} column {quoted(name)} holds an infinite value: "
            "use a finite number or leave it empty"
        )


def _of_words(name: str, kind: str, words: Sequence[tuple[str, str]]) -> str:
    what = "dates" if kind.startswith("date") else "numbers"
    named = ", ".join(f"{quoted(cell)} ({place})" for place, cell in words[:NAMED_WORDS])
    more = f" and {len(words) - NAMED_WORDS:,} more" if len(words) > NAMED_WORDS else ""
    return f"column {quoted(name)} holds {what} but for {named}{more}"


def _date_order(reading: ColumnReading) -> str:
    other = f"--types {one_line(reading.name)}=date-mdy"
    return f"column {quoted(reading.name)}: {reading.why} (else: {other})"


def _notes(readings: Sequence[ColumnReading], gaps: Mapping[str, str]) -> list[str]:
    notes = []
    out = [r for r in readings if not r.used]
    if out:
        named = ", ".join(f"{one_line(r.name, 40)} ({r.kind}: {r.why})" for r in out)
        notes.append(f"left out: {named}; keep one with {KEEP}")
    dates = [r for r in readings if r.used and r.kind.startswith("date")]
    if dates:
        notes.append(f"dates become days since 1970: {listed(r.name for r in dates)}")
    notes += [_date_order(reading) for reading in dates if reading.why]
    filled = [
        f"{one_line(r.name, 40)} ({r.missing + len(r.words):,} of {r.rows:,}: "
        f"{gaps.get(r.name, 'mean')})"
        for r in readings
        if r.used and r.kind != "category" and r.missing + len(r.words)
    ]
    if filled:
        how = "else: --missing NAME=median, or mean+indicator for an input that tells it"
        notes.append(f"missing numbers become those of training rows: {', '.join(filled)}; {how}")
    for reading in readings:
        if reading.words:
            told = _of_words(reading.name, reading.kind, reading.words)
            notes.append(f"{told}: read as missing (--strict refuses)")
    return notes


def types_of_columns(columns: Sequence[tuple[str, bool, str]]) -> dict[str, ColumnType]:
    """The types that make a table's columns what an encoder expects.

    Args:
      columns: of each its name, whether it is numeric, and how it is read.

    Example:
      >>> types_of_columns([("age", True, ""), ("seen", True, "date"), ("ward", False, "")])
      {'age': 'number', 'seen': 'date', 'ward': 'category'}
    """
    found: dict[str, ColumnType] = {}
    for name, numeric, reads in columns:
        if reads == "date" or reads == "date-mdy":
            found[name] = "date" if reads == "date" else "date-mdy"
        else:
            found[name] = "number" if numeric else "category"
    return found
