"""A table column by column: what it holds, at whom, and how many inputs it becomes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from fedtailor.core.inputs.plain_text import counted
from fedtailor.datasets.features.suspicions import present
from fedtailor.datasets.source import Array, ColumnReading, Source, Table
from fedtailor.datasets.wording import listed, one_line

SHOWN_CATEGORIES = 8
APART = 0.5  # of the deviation of all rows: so far apart, clients' means differ
GAP = 0.1  # a share of missing values that differs by more


@dataclass(frozen=True)
class ColumnSummary:
    """What a column holds, over all rows or at one client."""

    missing: int
    rows: int
    low: float | None = None  # of numbers
    high: float | None = None
    mean: float | None = None
    categories: dict[str, int] = field(default_factory=dict)  # rows of each, most of them first

    def words(self, dates: bool = False) -> str:
        """Its range or its categories."""
        if self.low is not None and self.high is not None:
            return f"{_shown(self.low, dates)} to {_shown(self.high, dates)}"
        named = [f"{one_line(n, 30)} ({c})" for n, c in self.categories.items()]
        return listed(named, SHOWN_CATEGORIES) if named else "no value"


@dataclass(frozen=True)
class DescribedColumn:
    """A column as `fedtailor inspect` shows it."""

    name: str
    kind: str  # what it was taken for
    inputs: int  # that it becomes
    encoding: str  # how, in words
    overall: ColumnSummary
    clients: dict[str, ColumnSummary]  # of each client
    differs: tuple[str, ...]  # clients whose values are unlike all others'

    @property
    def dates(self) -> bool:
        """Whether its numbers are days."""
        return self.kind.startswith("date")

    def to_json(self) -> dict[str, Any]:
        """For the json module."""
        return asdict(self)


def described_columns(source: Source) -> list[DescribedColumn]:
    """Every column that could be a feature, also those that are left out."""
    if not isinstance(source.raw, Table):
        return []
    readings = source.readings or tuple(
        ColumnReading(n, "number" if c.dtype.kind == "f" else "category", len(c), 0)
        for n, c in source.raw.columns.items()
    )
    return [_described(reading, source, source.raw) for reading in readings]


def _described(reading: ColumnReading, source: Source, table: Table) -> DescribedColumn:
    if not reading.used:
        overall = ColumnSummary(reading.missing, reading.rows)
        left_out = f"left out ({reading.why})"
        return DescribedColumn(reading.name, reading.kind, 0, left_out, overall, {}, ())
    column = table.columns[reading.name]
    overall = _summary(column)
    each = {o: _summary(column[source.owner == i]) for i, o in enumerate(source.owners)}
    scale = float(np.nanstd(column)) if column.dtype.kind == "f" and overall.mean is not None else 0
    differs = tuple(o for o, mine in each.items() if _differs(mine, overall, scale))
    gap = table.gaps.get(reading.name, "mean")
    inputs = 1 + gap.endswith("indicator") if column.dtype.kind == "f" else len(overall.categories)
    encoding = _encoding(reading, inputs, gap)
    return DescribedColumn(reading.name, reading.kind, inputs, encoding, overall, each, differs)


def _encoding(reading: ColumnReading, inputs: int, gap: str) -> str:
    words = {
        "number": "scaled",
        "truth": "1 where true, scaled",
        "date": "days since 1970, scaled",
        "date-mdy": "days since 1970 (month first), scaled",
        "category": f"one-hot, {counted(inputs, 'value')}",
    }[reading.kind]
    if reading.words:
        words += f"; {counted(len(reading.words), 'word')} as missing"
    if reading.missing or reading.words:
        becomes = "all zeros" if reading.kind == "category" else f"the {gap.partition('+')[0]}"
        words += f"; missing becomes {becomes}"
    if gap.endswith("indicator"):
        words += ", and an input tells it"
    return words


def _summary(column: Array) -> ColumnSummary:
    there = present(column)
    values = column[there]
    missing = len(column) - len(values)
    if not len(values):
        return ColumnSummary(missing, len(column))
    if column.dtype.kind == "f":
        low, high, mean = float(values.min()), float(values.max()), float(values.mean())
        return ColumnSummary(missing, len(column), low, high, mean)
    names, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    categories = {str(names[i]): int(counts[i]) for i in order}
    return ColumnSummary(missing, len(column), categories=categories)


def _differs(mine: ColumnSummary, overall: ColumnSummary, scale: float) -> bool:
    if not mine.rows:
        return False
    if abs(mine.missing / mine.rows - overall.missing / overall.rows) > GAP:
        return True
    if mine.mean is not None and overall.mean is not None:
        return scale > 0 and abs(mine.mean - overall.mean) > APART * scale
    return set(mine.categories) != set(overall.categories)


def _shown(value: float, dates: bool) -> str:
    if not dates:
        return f"{value:.6g}"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)
    return f"{moment:%Y-%m-%d}"
