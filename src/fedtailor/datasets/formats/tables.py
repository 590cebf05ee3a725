"""Files of rows and columns: csv and its kin, parquet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.datasets.formats.cells import (
    TRUTH,
    is_missing,
    is_truth,
    numbers,
    plain,
    truth_names,
)
from fedtailor.datasets.formats.delimited import (
    csv_rows,
    find_separator,
    maybe_thousands,
    table_ending,
    text_encoding,
    with_points,
)
from fedtailor.datasets.formats.spreadsheets import ENGINES, read_sheet
from fedtailor.datasets.source import Array
from fedtailor.datasets.wording import listed, one_line, optional, quoted, reason

TABLES = (".csv", ".tsv", ".parquet", *ENGINES)

Cells: TypeAlias = Array | list[str] | list[bytes]


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table as read: numbers as an array, text as str, images as bytes."""

    where: str  # how messages call it: the file's name in quotes
    columns: Mapping[str, Cells]  # the cells of each column
    places: Sequence[str]  # "line 3" or "row 2" of each row, for messages
    typed: bool  # whether the file itself says what is a number (parquet) or all is text (csv)
    notes: tuple[str, ...] = ()  # how it was read, where that was a guess

    def __len__(self) -> int:
        return len(self.places)

    def at(self, row: int) -> str:
        return f"{self.where} {self.places[row]}"


def is_table(path: Path) -> bool:
    """Whether it is a file that `read_raw_table` reads."""
    return table_ending(path) in TABLES


def read_raw_table(path: Path, unused: Collection[str] = ()) -> RawTable:
    """A csv file with a header row, or a parquet file.

    Truth values are text, 'True' or 'False', and dates are text as ISO 8601 has them, whatever the
    format: a model that learnt from one is fed from another. Columns that are `unused` may be of
    any type; they are empty where the format has types.
    """
    if path.suffix.lower() in ENGINES:
        table = _read_spreadsheet(path)
    else:
        parquet = table_ending(path) == ".parquet"
        table = _read_parquet(path, unused) if parquet else _read_csv(path)
    if not len(table):
        raise BadInput(f"{quoted(path)} has no rows: fill or remove it")
    return table


def _read_csv(path: Path) -> RawTable:
    encoding = text_encoding(path)
    separator = find_separator(path, encoding)
    (_, header), *rows = csv_rows(path, separator, encoding)
    names = [name.strip() for name in header]
    check_header(names, quoted(path))
    columns: dict[str, Cells] = {}
    commas, points = [], []
    for i, name in enumerate(names):
        cells = truth_names([row[i] for _, row in rows])
        pointed = with_points(cells, separator)
        if pointed is not None:
            commas.append(name)
        elif maybe_thousands(cells, separator):
            points.append(name)
        columns[name] = cells if pointed is None else pointed
    guesses = []
    if encoding == "cp1252":
        guesses.append("as cp1252, since it is not utf-8")
    if commas:
        guesses.append(f"with decimal commas in {listed(commas)}")
    if points:
        guesses.append(
            f"with decimal points in {listed(points)} (1.050 is 1.05; if it is 1050, write it so)"
        )
    notes = (f"{quoted(path)} is read {' and '.join(guesses)}",) if guesses else ()
    return RawTable(quoted(path), columns, [f"line {line}" for line, _ in rows], False, notes)


def _read_spreadsheet(path: Path) -> RawTable:
    sheet = read_sheet(path)
    names = [name.strip() for name in sheet.header]
    check_header(names, quoted(path))
    columns = {n: truth_names([row[i] for row in sheet.rows]) for i, n in enumerate(names)}
    return RawTable(quoted(path), columns, sheet.places, False, sheet.notes)


def check_header(names: Sequence[str], where: str) -> None:
    """Raise `BadInput` unless every column has a name of its own."""
    for i, name in enumerate(names):
        if not name:
            raise BadInput(f"{where} has no name for column {i + 1}: name it in line 1")
        if name in names[:i]:
            raise BadInput(f"{where} has two columns {quoted(name)}: rename one")


def _read_parquet(path: Path, unused: Collection[str]) -> RawTable:
    found = _parquet_table(path)
    check_header(found.column_names, quoted(path))
    noted = (found.schema.pandas_metadata or {}).get("columns", [])
    named = {c["name"] for c in noted if c["pandas_type"] == "categorical"}
    columns: dict[str, Cells] = {
        n: np.full(found.num_rows, np.nan)
        if n in unused
        else _parquet_cells(found.column(n), n, path)
        for n in found.column_names
    }
    for n in named - {*unused}:
        if isinstance(cells := columns[n], np.ndarray):
            columns[n] = ["" if np.isnan(c) else plain(c) for c in cells]
    return RawTable(quoted(path), columns, numbered_rows(found.num_rows), typed=True)


def numbered_rows(count: int) -> list[str]:
    """The rows' places where there are no lines."""
    return [f"row {i + 1}" for i in range(count)]


def _parquet_table(path: Path) -> Any:
    parquet = optional("pyarrow.parquet", f"reading {quoted(path)}")
    arrow = optional("pyarrow", f"reading {quoted(path)}")
    try:
        return parquet.ParquetFile(path).read()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise BadInput(
            f"{quoted(path)} is not a readable parquet file ({reason(error)}): save it again"
        ) from error


def _parquet_cells(column: Any, name: str, path: Path) -> Cells:
    types = optional("pyarrow.types", "reading parquet")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    where = f"{quoted(path)} column {quoted(name)}"
    if types.is_string(kind) or types.is_large_string(kind):
        return [text if text is not None else "" for text in column.to_pylist()]
    if types.is_boolean(kind):
        return ["" if truth is None else str(truth) for truth in column.to_pylist()]
    if types.is_timestamp(kind):  # Python knows no nanoseconds
        arrow = optional("pyarrow", "reading parquet")
        column = column.cast(arrow.timestamp("us", kind.tz), safe=False)
    if types.is_timestamp(kind) or types.is_date(kind):
        return ["" if date is None else str(date) for date in column.to_pylist()]
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_integer(kind) and not column.null_count:
        # whole numbers stay so: an identity of 18 digits must not be rounded
        return np.array(column.to_pylist(), np.uint64 if types.is_uint64(kind) else np.int64)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        plainly = types.is_dictionary(column.type) or types.is_decimal(kind)
        values = column.to_pylist() if plainly else column
        array = values.to_numpy() if values is column else np.array(values, dtype=object)
        return np.array([np.nan if v is None else v for v in array], dtype=np.float64)
    if types.is_struct(kind) and "bytes" in [field.name for field in kind]:
        cells: list[Any] = [(cell or {}).get("bytes") for cell in column.to_pylist()]
    elif types.is_binary(kind) or types.is_large_binary(kind):
        cells = column.to_pylist()
    else:
        raise BadInput(
            f"{where} has type {one_line(kind)}: store numbers, text or image bytes, or "
            "leave it out (--drop)"
        )
    if None in cells:
        raise BadInput(f"{where} row {cells.index(None) + 1} holds no image bytes: add them")
    return cells


def class_names_in(path: Path, column: str) -> tuple[str, ...]:
    """The class names that the Hugging Face hub writes into a parquet file's schema."""
    parquet = optional("pyarrow.parquet", f"reading {quoted(path)}")
    note = (parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    try:
        names = parse_json(note)["info"]["features"][column]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (KeyError, TypeError, ValueError):
        return ()


def label_names(table: RawTable, column: str) -> Array:
    """The label of each row as text, from which a number can be read again; none is missing."""
    names = [plain(cell) for cell in table.columns[column]]
    if missing := [row for row, text in enumerate(names) if is_missing(text)]:
        first, others = missing[0], len(missing) - 1
        more = f" ({others:,} more {'has' if others == 1 else 'have'} none)" if others else ""
        told, cure = "has no label", f"label or remove {'them' if others else 'it'}"
        if names[first] not in ("", "nan"):
            told = f"has {quoted(names[first])}, which stands for no label,"
            cure += ", or write the class in another way"
        raise BadInput(f"{table.at(first)} {told} in column {quoted(column)}{more}: {cure}")
    return np.array(names, dtype=np.str_)


def times_and_events(table: RawTable, time: str, event: str) -> Array:
    """Two numbers of each row, [n, 2]: how long it was seen, and whether the event came."""
    found = []
    for column in (time, event):
        names = label_names(table, column)
        truths = column == event and all(map(is_truth, names))
        values = numbers([str(TRUTH[n.lower()]) if truths else str(n) for n in names])
        if isinstance(values, int):
            wanted = "use 0 and 1" if column == event else "give numbers"
            raise BadInput(
                f"{table.at(values)} column {quoted(column)} is {quoted(names[values])}: {wanted}"
            )
        found.append(values)
    return np.stack(found, axis=1)


def client_names(table: RawTable, column: str, what: str = "client") -> list[str]:
    """The client (or the group) of each row; none may be missing."""
    names = [plain(cell) for cell in table.columns[column]]
    for row, name in enumerate(names):
        if not name or name == "nan":
            raise BadInput(f"{table.at(row)} has no {what} in column {quoted(column)}: name it")
    return names


def texts(table: RawTable, column: str) -> tuple[str, ...]:
    """The column as texts."""
    cells = table.columns[column]
    if isinstance(cells, np.ndarray) or any(isinstance(c, bytes) for c in cells):
        raise BadInput(f"{table.where} column {quoted(column)} is not text: choose another")
    return tuple(str(c) for c in cells)
