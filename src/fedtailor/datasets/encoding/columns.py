"""The columns of a table, a label that is a number, and how both are fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.encoding.reading import (
    check_keys,
    number,
    one_of,
    positive,
    string,
    strings,
    strings_or_none,
)
from fedtailor.datasets.source import Array
from fedtailor.datasets.wording import quoted

if TYPE_CHECKING:
    from torch import Tensor

# Below this share of the mean, a deviation is what rounding makes of a constant column.
ROUNDING = 1e-12
INDICATOR = "+indicator"  # an input more, 1 where the value is missing
GAPS = ("", "mean", "median", f"mean{INDICATOR}", f"median{INDICATOR}")
READS = ("", "words", "truth", "date", "date-mdy")


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: (value - shift) / scale, with `fill` in place of a missing value."""

    name: str  # of the column
    fill: float  # for a missing value
    shift: float  # what becomes 0
    scale: float  # what becomes 1, beyond `shift`
    low: float | None = None  # least value in training; None where nobody told it
    high: float | None = None  # largest value in training
    reads: str = ""  # how text becomes its numbers, as `Table.reads` has it; empty: as numbers
    gap: str = ""  # what a missing value becomes, as `Table.gaps` has it; empty: the mean

    @property
    def width(self) -> int:
        return 2 if self.gap.endswith(INDICATOR) else 1

    def apply(self, column: Array) -> Array:
        if column.dtype.kind != "f":
            raise BadInput(f"column {quoted(self.name)} holds text: numbers are expected")
        values = np.where(np.isnan(column), self.fill, column)
        scaled = ((values - self.shift) / self.scale)[:, None]
        return scaled if self.width == 1 else np.hstack([scaled, np.isnan(column)[:, None]])


@dataclass(frozen=True)
class Categorical:
    """A column of categories, one-hot; a value that training never saw gives all zeros."""

    name: str  # of the column
    values: tuple[str, ...]  # the categories, one place each
    # of those, the ones that one client's own training rows had; None: all
    seen: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def known(self) -> tuple[str, ...]:
        """The categories that do not give zeros."""
        return self.values if self.seen is None else self.seen

    def apply(self, column: Array) -> Array:
        if column.dtype.kind != "U":
            raise BadInput(f"column {quoted(self.name)} holds numbers: text is expected")
        hot: Array = column[:, None] == np.array(self.values, dtype=np.str_)[None, :]
        if self.seen is not None:
            hot &= np.isin(self.values, self.seen)[None, :]
        return hot


Column: TypeAlias = Numeric | Categorical


@dataclass(frozen=True)
class Target:
    """A label that is a number: (value - shift) / scale is what a network learns.

    Example:
      >>> Target("price", shift=100.0, scale=50.0).apply(np.array([75.0]))
      array([-0.5], dtype=float32)
    """

    name: str
    shift: float
    scale: float

    def apply(self, labels: Array) -> Array:
        """The labels as a network learns them."""
        return ((labels - self.shift) / self.scale).astype(np.float32)

    def undo(self, values: Tensor) -> Tensor:
        """What a network says, in the label's own unit."""
        return values * self.scale + self.shift


class ColumnSums(NamedTuple):
    """What a client tells of a column so that all clients' numbers can be scaled alike.

    With its count and total, the sum of squares says as much as these deviations do; but the
    difference of two huge sums would be all rounding.
    """

    rows: int  # how many values it has
    total: float  # their sum
    squares: float  # the sum of their squared distances from their own mean

    @classmethod
    def of(cls, column: Array) -> ColumnSums:
        """Of one client's training rows."""
        present = column[~np.isnan(column)]
        if not len(present):
            return cls(0, 0.0, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            total, squares = present.sum(), np.square(present - present.mean()).sum()
        return cls(len(present), float(total), float(squares))


def pooled_numbers(sums: Sequence[ColumnSums], what: str) -> tuple[float, float]:
    """Mean and deviation of all clients' values together; a deviation of 0 becomes 1.

    Args:
      sums: of each client.
      what: the column, for messages.

    Example:
      >>> two = [ColumnSums.of(np.array([1.0, 3.0])), ColumnSums.of(np.array([8.0]))]
      >>> mean, deviation = pooled_numbers(two, "age")
      >>> mean, round(deviation, 4), round(float(np.std([1, 3, 8])), 4)
      (4.0, 2.9439, 2.9439)
    """
    count = sum(s.rows for s in sums)
    if not count:
        return 0.0, 1.0
    mean = sum(s.total for s in sums) / count
    spread = sum(s.squares + s.rows * (s.total / s.rows - mean) ** 2 for s in sums if s.rows)
    deviation = math.sqrt(spread / count) if math.isfinite(spread) else math.inf
    _refuse_huge(mean, deviation, what)
    return mean, deviation if deviation > ROUNDING * abs(mean) else 1.0


def numeric_of_sums(
    name: str, sums: Sequence[ColumnSums], reads: str = "", gap: str = ""
) -> Numeric:
    """The column as a federation can scale it, from each client's sums alone."""
    if gap.startswith("median"):
        raise BadInput(f"--missing {name}={gap}: sums tell no median: use mean, or --normalise own")
    mean, deviation = pooled_numbers(sums, f"column {quoted(name)}")
    return Numeric(name, mean, mean, deviation, reads=reads, gap=gap)


def fit_numeric(name: str, column: Array, scaled: bool, reads: str = "", gap: str = "") -> Numeric:
    """The column as its training rows say."""
    present = column[~np.isnan(column)]
    if not len(present):
        return Numeric(name, 0.0, 0.0, 1.0, reads=reads, gap=gap)
    mean, deviation = _mean_and_deviation(present, f"column {quoted(name)}")
    low, high = float(present.min()), float(present.max())
    numbers = (mean, deviation) if scaled else (0.0, 1.0)
    fill = float(np.median(present)) if gap.startswith("median") else mean
    return Numeric(name, fill, *numbers, low, high, reads, gap)


def fit_categorical(name: str, column: Array) -> Categorical:
    """The column with the categories of its training rows."""
    return Categorical(name, tuple(str(v) for v in np.unique(column) if v))


def fit_target(name: str, labels: Array, scaled: bool) -> Target:
    """The label as its training rows say."""
    numbers = _mean_and_deviation(labels, f"label {quoted(name)}") if scaled else (0.0, 1.0)
    return Target(name, *numbers)


def _mean_and_deviation(values: Array, what: str) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    _refuse_huge(mean, deviation, what)
    # Compared by value: the deviation of a constant column can be a rounding error above 0.
    varies = values.min() < values.max() and deviation > 0
    return mean, deviation if varies else 1.0


def _refuse_huge(mean: float, deviation: float, what: str) -> None:
    if not math.isfinite(mean + deviation):
        raise BadInput(f"{what} holds numbers too large to average: scale them down")


def column_to_json(column: Column) -> dict[str, Any]:
    """For the json module; `column_from_json` reads it back."""
    if isinstance(column, Categorical):
        seen = {} if column.seen is None else {"seen": list(column.seen)}
        return {"name": column.name, "values": list(column.values)} | seen
    told = {"fill": column.fill, "shift": column.shift, "scale": column.scale}
    between = {} if column.low is None else {"low": column.low, "high": column.high}
    reads = {"reads": column.reads} if column.reads else {}
    gap = {"gap": column.gap} if column.gap else {}
    return {"name": column.name} | told | between | reads | gap


def column_from_json(data: Any) -> Column:
    """The column that was described; anything else is a `BadInput`."""
    where = f"encoder column {quoted(data.get('name'))}" if isinstance(data, dict) else "column"
    if isinstance(data, dict) and "values" in data:
        check_keys(data, ("name", "values"), where, ("seen",))
        values, seen = strings(data["values"], where), strings_or_none(data.get("seen"), "seen")
        if not set(seen or ()) <= set(values):
            raise BadInput(f"{where}: 'seen' names others than 'values': save the model again")
        return Categorical(string(data["name"], "name"), values, seen)
    check_keys(data, ("name", "fill", "shift", "scale"), where, ("low", "high", "reads", "gap"))
    fill, shift = number(data["fill"], "fill", where), number(data["shift"], "shift", where)
    scale = positive(data["scale"], "scale", where)
    between = {key: number(data[key], key, where) for key in ("low", "high") if key in data}
    reads = one_of(data.get("reads", ""), READS, "reading")
    gap = one_of(data.get("gap", ""), GAPS, "filling of gaps")
    name = string(data["name"], "name")
    return Numeric(name, fill, shift, scale, **between, reads=reads, gap=gap)


def target_to_json(target: Target | None) -> dict[str, Any] | None:
    """For the json module; `target_from_json` reads it back."""
    return None if target is None else dict(vars(target))


def target_from_json(data: Any) -> Target | None:
    """The target that was described; anything else is a `BadInput`."""
    if data is None:
        return None
    where = "encoder: 'target'"
    check_keys(data, ("name", "shift", "scale"), where)
    shift, scale = number(data["shift"], "shift", where), positive(data["scale"], "scale", where)
    return Target(string(data["name"], "name"), shift, scale)
