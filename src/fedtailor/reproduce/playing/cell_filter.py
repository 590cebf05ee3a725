"""Which cells somebody asked for: names or globs of rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from fedtailor.core.errors import BadInput, unknown
from fedtailor.reproduce.playing.cells import Cell


class CellFilter(NamedTuple):
    """Names of the rows and columns that are wanted; None where all are."""

    rows: frozenset[str] | None = None
    columns: frozenset[str] | None = None

    def wants(self, cell: Cell) -> bool:
        """Whether a cell is among them."""
        return (self.rows is None or cell.row in self.rows) and (
            self.columns is None or cell.column in self.columns
        )


def _matching(pattern: str, names: Iterable[str]) -> set[str]:
    low = pattern.strip().lower()
    names = list(names)
    exact = {n for n in names if n.lower() == low}  # a name may hold what looks like a glob
    return exact or {n for n in names if fnmatchcase(n.lower(), low)}


def _matches_nothing(pattern: str, cells: Sequence[Cell]) -> BadInput:
    known = list(dict.fromkeys(n for c in cells for n in (c.row, c.column)))
    return unknown("row or column in --only", pattern.strip(), known)


def filter_cells(
    only: Sequence[str], cells: Sequence[Cell], *, only_here: bool = True
) -> CellFilter:
    """What `--only` means: of rows those that are named, of columns those that are named.

    Names or globs, several with commas; some may be of other experiments, unless `only_here`.

    Raises:
      BadInput: one of them matches nothing, or, if they may be of others, all of them do.
    """
    rows, columns = {c.row for c in cells}, {c.column for c in cells}
    chosen_rows: set[str] = set()
    chosen_columns: set[str] = set()
    for text in only:
        whole = _matching(text, rows | columns)
        for pattern in [text] if whole else text.split(","):  # a name may hold a comma
            in_rows, in_columns = _matching(pattern, rows), _matching(pattern, columns)
            if only_here and not in_rows and not in_columns:
                raise _matches_nothing(pattern, cells)
            chosen_rows |= in_rows
            chosen_columns |= in_columns
    if only and not chosen_rows and not chosen_columns:
        raise _matches_nothing(" ".join(only), cells)
    found = CellFilter(
        frozenset(chosen_rows) if chosen_rows else None,
        frozenset(chosen_columns) if chosen_columns else None,
    )
    if only and not any(found.wants(cell) for cell in cells):
        raise BadInput(f"--only {' '.join(only)}: no row that is named has a cell in these columns")
    return found
