"""Tables as CSV that spreadsheets may open: no cell of it is taken for a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

# with quotes before it: a text that begins so itself must come back as it was
_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def quoted_cell(value: Any) -> Any:
    """A cell as it is written: a text that a spreadsheet would run gets a quote before it.

    Example:
      >>> quoted_cell("=1+1"), quoted_cell("-0.5"), quoted_cell(-0.5), quoted_cell("ward")
      ("'=1+1", '-0.5', -0.5, 'ward')
    """
    runs = isinstance(value, str) and _FORMULA.match(value) and not _is_number(value)
    return f"'{value}" if runs else value


def unquoted_cell(text: str) -> str:
    """The text that `quoted_cell` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text[1:]) else text


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a line of names.

    Example:
      >>> csv_text(["client", "rows"], [["@ward", 3]])
      "client,rows\\n'@ward,3\\n"
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([quoted_cell(cell) for cell in row])
    return out.getvalue()


def csv_cells(text: str) -> tuple[list[str], list[list[str]]]:
    """The names and rows of a table that `csv_text` wrote, cells as texts.

    Raises:
      ValueError: it is no such table.
    """
    try:
        rows = [[unquoted_cell(c) for c in row] for row in csv.reader(io.StringIO(text))]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("not a table")
    return rows[0], rows[1:]
