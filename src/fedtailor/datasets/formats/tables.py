"""csv and parquet files, and which column plays which part."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.datasets.source import Array, Table
from fedtailor.datasets.wording import listed, optional, reason, shown

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
LABEL_NAMES = ("label", "target", "class", "y")
CLIENT_NAMES = ("client", "site", "hospital", "user")

Cells: TypeAlias = Array | list[str] | list[bytes]


@dataclass(frozen=True, eq=False)
class Sheet:
    """A table as read: numbers as an array, text as str, images as bytes.

    Attributes:
      where: how messages call it: the file's name in quotes.
      columns: the cells of each column.
      places: "line 3" or "row 2" of each row, for messages.
      typed: whether the file itself says what is a number (parquet) or all is text (csv).
    """

    where: str
    columns: Mapping[str, Cells]
    places: Sequence[str]
    typed: bool

    def __len__(self) -> int:
        return len(self.places)

    def at(self, row: int) -> str:
        return f"{self.where} {self.places[row]}"


def read_sheet(path: Path) -> Sheet:
    """A csv file with a header row, or a parquet file."""
    sheet = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if not len(sheet):
        raise BadInput(f"'{shown(path)}' has no rows: fill or remove it")
    return sheet


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
                        f"'{shown(path)}' line {line} has {len(row)} fields, not {width} as the "
                        "first line: mend the line"
                    )
                if row:
                    yield line, row
    except csv.Error as error:
        raise BadInput(
            f"'{shown(path)}' line {end + 1} is not csv ({reason(error)}): mend its quotes"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"'{shown(path)}' is not utf-8 ({reason(error)}): save it so") from error
    except OSError as error:
        raise BadInput(f"'{shown(path)}' cannot be read ({reason(error)})") from error
    if not width:
        raise BadInput(f"'{shown(path)}' is empty: fill or remove it")


def _read_csv(path: Path) -> Sheet:
    (_, header), *rows = csv_rows(path)
    names = [name.strip() for name in header]
    check_header(names, f"'{shown(path)}'")
    columns: dict[str, Cells] = {name: [row[i] for _, row in rows] for i, name in enumerate(names)}
    return Sheet(f"'{shown(path)}'", columns, [f"line {line}" for line, _ in rows], typed=False)


def check_header(names: Sequence[str], where: str) -> None:
    """Raise `BadInput` unless every column has a name of its own."""
    for i, name in enumerate(names):
        if not name:
            raise BadInput(f"{where} has no name for column {i + 1}: name it in line 1")
        if name in names[:i]:
            raise BadInput(f"{where} has two columns '{shown(name)}': rename one")


def _read_parquet(path: Path) -> Sheet:
    table = _parquet_table(path)
    check_header(table.column_names, f"'{shown(path)}'")
    columns = {n: _parquet_cells(table.column(n), n, path) for n in table.column_names}
    return Sheet(
        f"'{shown(path)}'", columns, [f"row {i + 1}" for i in range(table.num_rows)], typed=True
    )


def _parquet_table(path: Path) -> Any:
    parquet = optional("pyarrow.parquet", f"reading '{shown(path)}'")
    arrow = optional("pyarrow", f"reading '{shown(path)}'")
    try:
        return parquet.ParquetFile(path).read()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise BadInput(
            f"'{shown(path)}' is not a readable parquet file ({reason(error)}): save it again"
        ) from error


def _parquet_cells(column: Any, name: str, path: Path) -> Cells:
    types = optional("pyarrow.types", "reading parquet")
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    where = f"'{shown(path)}' column '{shown(name)}'"
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
        raise BadInput(f"{where} has type {shown(kind)}: store numbers, text or image bytes")
    if None in cells:
        raise BadInput(f"{where} row {cells.index(None) + 1} holds no image bytes: add them")
    return cells


def class_names_in(path: Path, column: str) -> tuple[str, ...]:
    """The class names that the Hugging Face hub writes into a parquet file's schema."""
    parquet = optional("pyarrow.parquet", f"reading '{shown(path)}'")
    note = (parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    try:
        names = json.loads(note)["info"]["features"][column]["names"]
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


def feature_table(sheets: Sequence[Sheet], names: Sequence[str]) -> list[Table]:
    """One table per sheet, each column of one type over all sheets.

    A csv column is numeric when every cell that is not missing is a number.
    """
    tables: list[dict[str, Array]] = [{} for _ in sheets]
    for name in names:
        cells = [sheet.columns[name] for sheet in sheets]
        for table, array in zip(tables, _typed(cells, name, sheets), strict=True):
            table[name] = array
    return [Table(table) for table in tables]


def _typed(cells: Sequence[Cells], name: str, sheets: Sequence[Sheet]) -> list[Array]:
    out = []
    for sheet, column in zip(sheets, cells, strict=True):
        if isinstance(column, np.ndarray):
            array: Array | int = column.astype(np.float64, copy=False)
        elif any(isinstance(c, bytes) for c in column):
            raise BadInput(f"{sheet.where} column '{shown(name)}' holds bytes: leave it out")
        else:
            array = 0 if sheet.typed else numbers([str(c) for c in column])
        if isinstance(array, int):
            return _all_categories(cells, name, sheets)
        _refuse_infinite(array, name, sheet)
        out.append(array)
    return out


def _all_categories(cells: Sequence[Cells], name: str, sheets: Sequence[Sheet]) -> list[Array]:
    for sheet, column in zip(sheets, cells, strict=True):
        if isinstance(column, np.ndarray) and not np.isnan(column).all():
            raise BadInput(
                f"{sheet.where} column '{shown(name)}' holds numbers but text at another "
                "client: make it one or the other everywhere"
            )
    return [categories([str(c) for c in column]) for column in cells]


def _refuse_infinite(array: Array, name: str, sheet: Sheet) -> None:
    rows = np.flatnonzero(np.isinf(array))
    if len(rows):
        raise BadInput(
            f"{sheet.at(int(rows[0]))} column '{shown(name)}' holds an infinite value: "
            "use a finite number or leave it empty"
        )


def label_names(sheet: Sheet, column: str) -> Array:
    """The class name of each row; an empty, fractional or negative label is an error."""
    cells = sheet.columns[column]
    names = []
    for row, cell in enumerate(cells):
        text = _plain(cell)
        if is_missing(text):
            raise BadInput(
                f"{sheet.at(row)} has no label in column '{shown(column)}': label or remove it"
            )
        if re.fullmatch(r"[-+]?\d*\.\d+(e[-+]?\d+)?", text, re.IGNORECASE):
            raise BadInput(
                f"{sheet.at(row)} has label '{shown(text)}' in column '{shown(column)}': "
                "give class names or whole numbers, not measurements"
            )
        if re.fullmatch(r"-\d+", text):
            raise BadInput(
                f"{sheet.at(row)} has label '{shown(text)}' in column '{shown(column)}', which is "
                "out of range: count classes from 0"
            )
        names.append(text)
    return np.array(names, dtype=np.str_)


def client_names(sheet: Sheet, column: str) -> list[str]:
    """The client of each row; none may be missing."""
    names = [_plain(cell) for cell in sheet.columns[column]]
    for row, name in enumerate(names):
        if not name or name == "nan":
            raise BadInput(f"{sheet.at(row)} has no client in column '{shown(column)}': name it")
    return names


def _plain(cell: object) -> str:
    """A cell as a name: 3.0 and '3.0' are both '3'."""
    text = repr(float(cell)) if isinstance(cell, float | np.floating) else str(cell).strip()
    return re.sub(r"^(-?\d+)\.0*$", r"\1", text)


class Wishes(NamedTuple):
    """The columns that the user named."""

    label: str | None = None
    client: str | None = None
    text: str | None = None

    def refuse(self, why: str) -> None:
        """Raise `BadInput` if a column was named: these data have none."""
        for flag, name in zip(("--label", "--client-column", "--text-column"), self, strict=True):
            if name is not None:
                raise BadInput(f"{flag} '{shown(name)}' {why}: leave it out")


class Roles(NamedTuple):
    """Which column is what; `text` is None where the features make a table."""

    label: str
    client: str | None
    text: str | None
    features: tuple[str, ...]


def roles_of(sheet: Sheet, wishes: Wishes) -> Roles:
    """Settle the columns: as named by the user, else by their usual names."""
    names = tuple(sheet.columns)
    for wish in wishes:
        if wish is not None and wish not in names:
            raise unknown(f"column in {sheet.where}", shown(wish), map(shown, names))
    label = wishes.label or _usual_label(names, sheet.where, wishes)
    client = wishes.client
    if client is None:
        usual = [n for n in names if n.lower() in CLIENT_NAMES and n not in (label, wishes.text)]
        client = usual[0] if len(usual) == 1 else None
    features = tuple(n for n in names if n not in (label, client))
    if len({label, client, wishes.text} - {None}) < 1 + (client is not None) + (
        wishes.text is not None
    ):
        raise BadInput(
            f"{sheet.where}: one column cannot be label '{shown(label)}', client "
            f"'{shown(client)}' and text '{shown(wishes.text)}' at once: name different columns"
        )
    if not features:
        raise BadInput(f"{sheet.where} has only the columns {listed(names)}: add a feature column")
    text = wishes.text
    if text is None and len(features) == 1 and features[0].lower() == "text":
        text = features[0]
    return Roles(label, client, text, features)


def _usual_label(names: Sequence[str], where: str, wishes: Wishes) -> str:
    for usual in LABEL_NAMES:
        for name in names:
            if name.lower() == usual and name not in (wishes.client, wishes.text):
                return name
    raise BadInput(f"{where} has no label column among {listed(names)}: name it with --label")


def texts(sheet: Sheet, column: str) -> tuple[str, ...]:
    """The column as texts."""
    cells = sheet.columns[column]
    if isinstance(cells, np.ndarray) or any(isinstance(c, bytes) for c in cells):
        raise BadInput(f"{sheet.where} column '{shown(column)}' is not text: choose another")
    return tuple(str(c) for c in cells)
