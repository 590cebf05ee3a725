"""csv and parquet files, and which column plays which part."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.datasets.source import Array, Table
from fedtailor.datasets.wording import listed, one_line, optional, quoted, reason

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
LABEL_NAMES = ("label", "target", "class", "y")
CLIENT_NAMES = ("client", "site", "hospital", "user")

Cells: TypeAlias = Array | list[str] | list[bytes]


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table as read: numbers as an array, text as str, images as bytes."""

    where: str  # how messages call it: the file's name in quotes
    columns: Mapping[str, Cells]  # the cells of each column
    places: Sequence[str]  # "line 3" or "row 2" of each row, for messages
    typed: bool  # whether the file itself says what is a number (parquet) or all is text (csv)

    def __len__(self) -> int:
        return len(self.places)

    def at(self, row: int) -> str:
        return f"{self.where} {self.places[row]}"


def read_raw_table(path: Path) -> RawTable:
    """A csv file with a header row, or a parquet file."""
    table = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if not len(table):
        raise BadInput(f"{quoted(path)} has no rows: fill or remove it")
    return table


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a csv file with the line each begins on; blank lines are left out."""
    width = 0
    line, end = 1, 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                line, end = end + 1, reader.line_num
                width = width or len(row)
                if row and len(row) != width:
                    raise BadInput(
                        f"{quoted(path)} line {line} has {len(row)} fields, not {width} as the "
                        "first line: mend the line"
                    )
                if row:
                    yield line, row
    except csv.Error as error:
        raise BadInput(
            f"{quoted(path)} line {end + 1} is not csv ({reason(error)}): mend its quotes"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{quoted(path)} is not utf-8 ({reason(error)}): save it so") from error
    except OSError as error:
        raise BadInput(f"{quoted(path)} cannot be read ({reason(error)})") from error
    if not width:
        raise BadInput(f"{quoted(path)} is empty: fill or remove it")


def _read_csv(path: Path) -> RawTable:
    (_, header), *rows = csv_rows(path)
    names = [name.strip() for name in header]
    check_header(names, quoted(path))
    columns: dict[str, Cells] = {name: [row[i] for _, row in rows] for i, name in enumerate(names)}
    return RawTable(quoted(path), columns, [f"line {line}" for line, _ in rows], typed=False)


def check_header(names: Sequence[str], where: str) -> None:
    """Raise `BadInput` unless every column has a name of its own."""
    for i, name in enumerate(names):
        if not name:
            raise BadInput(f"{where} has no name for column {i + 1}: name it in line 1")
        if name in names[:i]:
            raise BadInput(f"{where} has two columns {quoted(name)}: rename one")


def _read_parquet(path: Path) -> RawTable:
    found = _parquet_table(path)
    check_header(found.column_names, quoted(path))
    columns = {n: _parquet_cells(found.column(n), n, path) for n in found.column_names}
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
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        values = column.to_pylist() if types.is_dictionary(column.type) else column
        array = values.to_numpy() if values is column else np.array(values, dtype=object)
        return np.array([np.nan if v is None else v for v in array], dtype=np.float64)
    if types.is_struct(kind) and "bytes" in [field.name for field in kind]:
        cells: list[Any] = [(cell or {}).get("bytes") for cell in column.to_pylist()]
    elif types.is_binary(kind) or types.is_large_binary(kind):
        cells = column.to_pylist()
    else:
        raise BadInput(f"{where} has type {one_line(kind)}: store numbers, text or image bytes")
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


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def numbers(cells: Sequence[str]) -> Array | int:
    """The cells as float64 (missing = nan), or the row of the first that is no number."""
    out = np.empty(len(cells))
    for i, text in enumerate(cells):
        try:
            # Python reads 1_000 as a number; in a table it is more likely a code.
            out[i] = np.nan if is_missing(text) else float("_" if "_" in text else text)
        except ValueError:
            return i
    return out


def categories(cells: Sequence[str]) -> Array:
    """The cells as a unicode array, every way to write a missing one as ''."""
    return np.array(["" if is_missing(c) else c.strip() for c in cells], dtype=np.str_)


def feature_tables(tables: Sequence[RawTable], names: Sequence[str]) -> list[Table]:
    """The features of each table, each column of one type over all tables.

    A csv column is numeric when every cell that is not missing is a number.
    """
    columns = {name: _typed([t.columns[name] for t in tables], name, tables) for name in names}
    return [Table({name: columns[name][i] for name in names}) for i in range(len(tables))]


def _typed(cells: Sequence[Cells], name: str, tables: Sequence[RawTable]) -> list[Array]:
    out = []
    for table, column in zip(tables, cells, strict=True):
        if isinstance(column, np.ndarray):
            array: Array | int = column.astype(np.float64, copy=False)
        elif any(isinstance(c, bytes) for c in column):
            raise BadInput(f"{table.where} column {quoted(name)} holds bytes: leave it out")
        else:
            array = 0 if table.typed else numbers([str(c) for c in column])
        if isinstance(array, int):
            return _all_categories(cells, name, tables)
        _refuse_infinite(array, name, table)
        out.append(array)
    return out


def _all_categories(cells: Sequence[Cells], name: str, tables: Sequence[RawTable]) -> list[Array]:
    for table, column in zip(tables, cells, strict=True):
        if isinstance(column, np.ndarray) and not np.isnan(column).all():
            raise BadInput(
                f"{table.where} column {quoted(name)} holds numbers but text at another "
                "client: make it one or the other everywhere"
            )
    return [categories([str(c) for c in column]) for column in cells]


def _refuse_infinite(array: Array, name: str, table: RawTable) -> None:
    rows = np.flatnonzero(np.isinf(array))
    if len(rows):
        raise BadInput(
            f"{table.at(int(rows[0]))} column {quoted(name)} holds an infinite value: "
            "use a finite number or leave it empty"
        )


def label_names(table: RawTable, column: str) -> Array:
    """The label of each row as text, from which a number can be read again; none is missing."""
    names = [plain(cell) for cell in table.columns[column]]
    for row, text in enumerate(names):
        if is_missing(text):
            raise BadInput(
                f"{table.at(row)} has no label in column {quoted(column)}: label or remove it"
            )
    return np.array(names, dtype=np.str_)


def times_and_events(table: RawTable, time: str, event: str) -> Array:
    """Two numbers of each row, [n, 2]: how long it was seen, and whether the event came."""
    found = []
    for column in (time, event):
        names = label_names(table, column)
        values = numbers([str(n) for n in names])
        if isinstance(values, int):
            wanted = "use 0 and 1" if column == event else "give numbers"
            raise BadInput(
                f"{table.at(values)} column {quoted(column)} is {quoted(names[values])}: {wanted}"
            )
        found.append(values)
    return np.stack(found, axis=1)


def client_names(table: RawTable, column: str) -> list[str]:
    """The client of each row; none may be missing."""
    names = [plain(cell) for cell in table.columns[column]]
    for row, name in enumerate(names):
        if not name or name == "nan":
            raise BadInput(f"{table.at(row)} has no client in column {quoted(column)}: name it")
    return names


def plain(cell: object) -> str:
    """A cell as a name: 3.0 and '3.0' are both '3'."""
    text = repr(float(cell)) if isinstance(cell, float | np.floating) else str(cell).strip()
    return re.sub(r"^(-?\d+)\.0*$", r"\1", text)


FLAGS = ("--label", "--client-column", "--text-column", "--time-column", "--event-column")


class NamedColumns(NamedTuple):
    """The columns that the user named; None where the usual names are looked for."""

    label: str | None = None
    client: str | None = None
    text: str | None = None
    time: str | None = None
    event: str | None = None

    def refuse(self, why: str) -> None:
        """Raise `BadInput` if a column was named: these data have none."""
        for flag, name in zip(FLAGS, self, strict=True):
            if name is not None:
                raise BadInput(f"{flag} {quoted(name)} {why}: leave it out")

    @property
    def survival(self) -> bool:
        """Whether a time or an event was named."""
        return self.time is not None or self.event is not None


class ColumnRoles(NamedTuple):
    """Which column is what; `text` is None where the features make a table."""

    labels: tuple[str, ...]  # the label, or time and event
    client: str | None
    text: str | None
    features: tuple[str, ...]


def column_roles(table: RawTable, named: NamedColumns, survival: bool = False) -> ColumnRoles:
    """Settle the columns: as named by the user, else by their usual names."""
    names = tuple(table.columns)
    for name in named:
        if name is not None and name not in names:
            raise unknown(f"column in {table.where}", one_line(name), map(one_line, names))
    labels: tuple[str, ...]
    if survival:
        labels = _time_and_event(names, table.where, named)
    else:
        labels = (named.label or _usual_label(names, table.where, named),)
    client = named.client
    if client is None:
        taken = (*labels, named.text)
        usual = [n for n in names if n.lower() in CLIENT_NAMES and n not in taken]
        client = usual[0] if len(usual) == 1 else None
    features = tuple(n for n in names if n not in (*labels, client))
    roles = [name for name in (*labels, client, named.text) if name is not None]
    if len(set(roles)) < len(roles):
        twice = next(name for name in roles if roles.count(name) > 1)
        raise BadInput(
            f"{table.where}: column {quoted(twice)} cannot be two of label, time, event, client "
            "and text at once: name different columns"
        )
    if not features:
        raise BadInput(f"{table.where} has only the columns {listed(names)}: add a feature column")
    text = named.text
    if text is None and len(features) == 1 and features[0].lower() == "text":
        text = features[0]
    return ColumnRoles(labels, client, text, features)


def _usual_label(names: Sequence[str], where: str, named: NamedColumns) -> str:
    for usual in LABEL_NAMES:
        for name in names:
            if name.lower() == usual and name not in (named.client, named.text):
                return name
    raise BadInput(f"{where} has no label column among {listed(names)}: name it with --label")


def _time_and_event(names: Sequence[str], where: str, named: NamedColumns) -> tuple[str, str]:
    if named.label is not None:
        raise BadInput(
            f"--label {quoted(named.label)} beside a time and an event: for survival name these "
            "with --time-column and --event-column alone; else say --task classification or "
            "regression without them"
        )
    found = []
    for what, name in (("time", named.time), ("event", named.event)):
        usual = [n for n in names if n.lower() == what]
        if name is None and not usual:
            raise BadInput(
                f"{where} has no {what} column among {listed(names)}: name it with --{what}-column"
            )
        found.append(name or usual[0])
    return found[0], found[1]


def texts(table: RawTable, column: str) -> tuple[str, ...]:
    """The column as texts."""
    cells = table.columns[column]
    if isinstance(cells, np.ndarray) or any(isinstance(c, bytes) for c in cells):
        raise BadInput(f"{table.where} column {quoted(column)} is not text: choose another")
    return tuple(str(c) for c in cells)
