"""Spreadsheets, xlsx and ods: the first sheet, its first row being the header."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.cells import plain
from fedtailor.datasets.wording import optional, quoted, reason

ENGINES = {".xlsx": "openpyxl", ".ods": "odf"}


class Sheet(NamedTuple):
    """A sheet's cells as a csv file would have them."""

    header: list[str]
    rows: list[list[str]]
    places: list[str]  # what a person calls each row: its number in the sheet
    notes: tuple[str, ...]  # which sheet, where there are several


def read_sheet(path: Path) -> Sheet:
    """The first sheet of a file; rows without any cell are left out."""
    engine = ENGINES[path.suffix.lower()]
    pandas = optional("pandas", f"reading {quoted(path)}", "sheets")
    optional(engine, f"reading {quoted(path)}", "sheets")
    try:
        found = pandas.read_excel(
            path, sheet_name=None, header=None, dtype=object, engine=engine, na_filter=False
        )
    except Exception as error:  # a broken file makes the reader fail in any way
        raise BadInput(
            f"{quoted(path)} is not a readable spreadsheet ({reason(error)}): save it again"
        ) from error
    name, frame = next(iter(found.items()))
    cells = [[_text(cell) for cell in row] for row in frame.itertuples(index=False)]
    filled = [(i, row) for i, row in enumerate(cells, start=1) if any(row)]
    if not filled:
        raise BadInput(f"{quoted(path)} is empty: fill or remove it")
    several = f"{quoted(path)} has {len(found)} sheets: {quoted(name)}, the first, is read"
    (_, header), *rows = filled
    return Sheet(
        header,
        [row for _, row in rows],
        [f"row {i}" for i, _ in rows],
        (several,) if len(found) > 1 else (),
    )


def _text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, date):  # a moment is one, too
        return cell.isoformat()
    return cell if isinstance(cell, str) else plain(cell)
