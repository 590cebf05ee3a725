"""Single cells of a table: what is missing, what is a number, what is a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedtailor.datasets.source import Array

MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
TRUTH = {"true": 1.0, "false": 0.0}
NEARLY = 0.9  # of the cells that are not missing: so many make a column what it is


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def number_or_none(text: str) -> float | None:
    """The cell as a number (missing: nan); None where it is none."""
    if is_missing(text):
        return np.nan
    try:
        # Python reads 1_000 as a number; in a table it is more likely a code.
        return None if "_" in text else float(text)
    except ValueError:
        return None


def numbers(cells: Sequence[str]) -> Array | int:
    """The cells as float64 (missing = nan), or the row of the first that is no number."""
    out = np.empty(len(cells))
    for i, text in enumerate(cells):
        found = number_or_none(text)
        if found is None:
            return i
        out[i] = found
    return out


def categories(cells: Sequence[str]) -> Array:
    """The cells as a unicode array, every way to write a missing one as ''."""
    return np.array(["" if is_missing(c) else c.strip() for c in cells], dtype=np.str_)


def plain(cell: object) -> str:
    """A cell as a name: 3.0 and '3.0' are both '3'."""
    text = repr(float(cell)) if isinstance(cell, float | np.floating) else str(cell).strip()
    return re.sub(r"^(-?\d+)\.0*$", r"\1", text) if "." in text else text


def is_truth(text: str) -> bool:
    """Whether it is how csv files write a truth value."""
    return text.strip().lower() in TRUTH


def truth_names(cells: Sequence[str]) -> list[str]:
    """Truth values as every format writes them, if there are no others; else the cells.

    Example:
      >>> truth_names(["true", "FALSE"]), truth_names(["true", "maybe"])
      (['True', 'False'], ['true', 'maybe'])
    """
    if not all(is_truth(c) for c in cells if not is_missing(c)):  # mostly the first cell tells
        return list(cells)
    return [c.strip().capitalize() if is_truth(c) else c for c in cells]
