"""What a column is: numbers, truth values, categories, dates; or nothing to learn from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.datasets.features.dates import as_days, date_order
from fedtailor.datasets.formats.cells import NEARLY, is_missing, is_truth, number_or_none
from fedtailor.datasets.source import Array, ColumnKind
from fedtailor.datasets.wording import one_line, quoted

# Words among numbers are slips where the numbers are surely measured; codes stay categories.
MEASURED = 10  # different numbers, or any fraction
LEAST_ROWS = 10  # below, nothing but cells that are all of one kind says anything
MANY = 20  # different values: fewer are categories, whatever they look like
# a number with thousands or a unit, which no cell of a column of numbers may have
_AMOUNT = re.compile(r"[<>≤≥~]?\s*[-+]?\d[\d.,' \u00a0]*[^\W\d_]*(?:[%/][^\W\d_]*)?")
_ID_NAME = re.compile(
    r"(?:^|[\W_])(?:ids?|uuid|guid|mrn|ssn|identifier|barcode|accession)(?:$|[\W_])"
    r"|[a-z0-9]I[Dd]$|^(?:pat|patient|subject|case|study|record|visit|sample)id$",
)
_COUNTER_NAME = re.compile(
    r"unnamed: \d+|index|row|row[ _]?(?:number|names?|num|nr|no)|nr|no|lfd\.?[ _]?nr\.?", re.I
)


class FoundKind(NamedTuple):
    """What a column looks like."""

    kind: ColumnKind
    why: str = ""


def kind_of_numbers(name: str, values: Array) -> FoundKind:
    """What a column of numbers is: numbers, unless they only tell rows apart.

    Example:
      >>> kind_of_numbers("patient_id", np.arange(100.0)).kind
      'identifier'
      >>> kind_of_numbers("income", np.arange(100.0)).kind
      'number'
    """
    present = values[~np.isnan(values)]
    if not np.isfinite(present).all():
        return FoundKind("number")  # refused by line
    if not len(present) or (np.floor(present) != present).any():
        return FoundKind("number")
    distinct = len(np.unique(present))
    if _names_rows(name) and _mostly_own(distinct, len(present)):
        return _identifier(distinct, len(present))
    steps = np.diff(values)
    if _COUNTER_NAME.fullmatch(name) and len(values) >= LEAST_ROWS and (steps == 1).all():
        return FoundKind("identifier", "it counts the rows")
    return FoundKind("number")


def kind_of_texts(name: str, cells: Sequence[str], typed: bool) -> FoundKind:
    """What a column of texts is.

    Args:
      name: of the column.
      cells: of all rows.
      typed: the file itself tells numbers from text: these are no numbers.

    Example:
      >>> kind_of_texts("crp", [f"{i / 3:.2f}" for i in range(30)] + ["<5"], typed=False).kind
      'number'
      >>> kind_of_texts("ward", ["A", "B", "B"], typed=False).kind
      'category'
    """
    written = [c.strip() for c in cells if not is_missing(c)]
    if not written:
        return FoundKind("category" if typed else "number")
    values = [number_or_none(c) for c in written]
    numeric = [v for v in values if v is not None]
    truths = sum(map(is_truth, written))
    if truths and truths + sum(v in (0.0, 1.0) for v in numeric) == len(written):
        return FoundKind("truth")
    if not typed and len(numeric) == len(written):
        return kind_of_numbers(name, np.array(numeric))
    order, shown = date_order(written)
    dated = sum(as_days(c, order) is not None for c in written)
    if dated == len(written) or (len(written) >= LEAST_ROWS and dated >= NEARLY * len(written)):
        why = "" if shown else "day or month may come first: read as day first"
        return FoundKind(order, why)
    if not typed and _nearly_numbers(numeric, len(written)):
        return FoundKind("number")
    return _kind_of_words(name, written)


def _nearly_numbers(numeric: Sequence[float], written: int) -> bool:
    if len(numeric) < LEAST_ROWS or len(numeric) < NEARLY * written:
        return False
    return len(set(numeric)) > MEASURED or any(v % 1 for v in numeric)


def _kind_of_words(name: str, written: Sequence[str]) -> FoundKind:
    distinct = len(set(written))
    if _names_rows(name) and _mostly_own(distinct, len(written)):
        return _identifier(distinct, len(written))
    if distinct <= MANY:
        return FoundKind("category")
    each = sum(len(c.split()) for c in written) / len(written)
    if each >= 4 and 10 * distinct >= 3 * len(written):
        return FoundKind("free text", f"{each:.0f} words each")
    if 2 * distinct > len(written):
        found = _identifier(distinct, len(written))
        amounts = [c for c in written if _AMOUNT.fullmatch(c)]
        if 2 * len(amounts) <= len(written):
            return found
        odd = next((c for c in amounts if number_or_none(c) is None), "")
        cure = f"--types {one_line(name)}=number takes the words for missing"
        if odd:
            cure = f"write numbers such as {quoted(odd, 30)} without separators and units"
        return FoundKind(found.kind, f"{found.why}, but most are numbers: {cure}")
    return FoundKind("category")


def _identifier(distinct: int, rows: int) -> FoundKind:
    return FoundKind("identifier", f"{distinct:,} values in {rows:,} rows")


def _names_rows(name: str) -> bool:
    return _ID_NAME.search(name) is not None or _ID_NAME.search(name.lower()) is not None


def _mostly_own(distinct: int, rows: int) -> bool:
    """Whether a column that is called an identifier is one: a patient may have many rows."""
    if rows < LEAST_ROWS:
        return distinct == rows > 1
    return 2 * distinct >= rows or (distinct > MANY and 10 * distinct >= rows)
