"""What a site tells of its training rows before the first round, so that all are encoded alike.

Of tables the names and kinds of columns, of numbers how many there are, their sum and squared
deviations, of categories their names; of images the size, of texts the words; of labels the names
of the classes. No row is told, no sum of few values, no category or word of few rows, and of
numbers neither the least nor the largest; of images with more than 256 grey levels these two are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.form import Kind, TaskKind
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.datasets.encoding.columns import GAPS, READS, ColumnSums
from fedtailor.datasets.encoding.encoder import tokens
from fedtailor.datasets.encoding.reading import (
    check_keys,
    is_list_of,
    number,
    one_of,
    string,
    strings,
)
from fedtailor.datasets.source import Array, Source, Table, take
from fedtailor.federation.protocol.packet import LARGEST

# `empty`: no training row has a value, so the column may be of any kind
ToldKind = Literal["number", "date", "date-mdy", "category", "empty"]
NONE = ColumnSums(0, 0.0, 0.0)


class ToldColumn(NamedTuple):
    """What is told of a column."""

    name: str
    kind: ToldKind
    sums: ColumnSums = NONE  # of numbers; of too few none are told
    values: tuple[str, ...] = ()  # the categories that enough rows have
    reads: str = ""  # how text becomes its numbers, as `Table.reads` has it
    gap: str = ""  # what a missing value becomes, as `Table.gaps` has it


class SiteSurvey(NamedTuple):
    """What a site tells."""

    kind: Kind  # of its data
    task: TaskKind  # that its labels are for
    classes: tuple[str, ...] = ()  # names of the classes that its rows have
    label: str = ""  # name of the column
    target: ColumnSums | None = None  # of a label that is a number
    columns: tuple[ToldColumn, ...] = ()  # of a table
    shape: tuple[int, ...] = ()  # of an image
    levels: tuple[float, float] | None = None  # of deep images, least and largest grey value
    words: Mapping[str, int] = {}  # of texts, those that occur often enough, and how often

    def text(self) -> str:
        """As JSON, which `read_survey` reads back."""
        return json.dumps(self._asdict() | {"columns": [c._asdict() for c in self.columns]})


def survey_of(source: Source, train: Array, *, min_rows: int, min_category: int) -> SiteSurvey:
    """What a site tells of its data.

    Args:
      source: its rows.
      train: the numbers of those for training; of others nothing is told but classes.
      min_rows: of a column, or a label, with fewer values no sums are told.
      min_category: categories and words that fewer rows have are not told.
    """
    classes = tuple(source.classes[i] for i in np.unique(source.labels)) if source.classes else ()
    raw, label = take(source.raw, train), source.label or "label"
    target = ColumnSums.of(source.labels[train]) if source.task == "regression" else None
    if target is not None and target.rows < min_rows:
        target = NONE
    told = SiteSurvey(source.kind, source.task, classes, label, target)
    if isinstance(raw, Table):
        columns = (_told(raw, name, min_rows, min_category) for name in raw.columns)
        return told._replace(columns=tuple(columns))
    if isinstance(raw, tuple):
        if source.window:
            raise BadInput(
                f"data '{source.name}' are read by character, which sites cannot: simulate them "
                "with `fedtailor run`"
            )
        rows = Counter(word for text in raw for word in set(tokens(text)))
        counts = Counter(word for text in raw for word in tokens(text))
        often = {w: n for w, n in counts.items() if rows[w] >= min_category}
        return told._replace(words=often)
    return told._replace(shape=tuple(raw.shape[1:]), levels=source.levels)


def _told(table: Table, name: str, min_rows: int, min_category: int) -> ToldColumn:
    column, reads, gap = table.columns[name], table.reads.get(name, ""), table.gaps.get(name, "")
    if column.dtype.kind == "U":
        values, counts = np.unique(column[column != ""], return_counts=True)
        often = tuple(str(v) for v in values[counts >= min_category])
        return ToldColumn(name, "category" if len(values) else "empty", values=often)
    sums = ColumnSums.of(column)
    if not sums.rows:
        return ToldColumn(name, "empty", gap=gap)
    kind: ToldKind = "number"
    if reads == "date" or reads == "date-mdy":
        kind = "date" if reads == "date" else "date-mdy"
    return ToldColumn(name, kind, sums if sums.rows >= min_rows else NONE, (), reads, gap)


# --- reading what somebody else has written ---


def read_survey(text: str) -> SiteSurvey:
    """What `SiteSurvey.text` wrote, checked: it comes from elsewhere."""
    where = "survey"
    try:
        found = parse_json(text)
    except ValueError as error:
        raise BadInput(f"{where}: not JSON ({error})") from None
    check_keys(found, SiteSurvey._fields, where)
    columns, shape, words = found["columns"], found["shape"], found["words"]
    if not isinstance(columns, list) or not is_list_of(shape, int) or min(shape, default=1) < 1:
        raise BadInput(f"{where}: 'columns' or 'shape' is no such list")
    if not isinstance(words, dict):
        raise BadInput(f"{where}: 'words' is no table")
    read = tuple(_column(c) for c in columns)
    if len({c.name for c in read}) != len(read):
        raise BadInput(f"{where}: a column is named twice")
    levels = found["levels"]
    if levels is not None:
        if not isinstance(levels, list) or len(levels) != 2:
            raise BadInput(f"{where}: 'levels' is no pair")
        levels = (number(levels[0], "levels", where), number(levels[1], "levels", where))
    return SiteSurvey(
        one_of(found["kind"], get_args(Kind), "kind"),
        one_of(found["task"], get_args(TaskKind), "task"),
        strings(found["classes"], "'classes'"),
        string(found["label"], "label"),
        None if found["target"] is None else _sums(found["target"], f"{where}, target"),
        read,
        tuple(shape),
        levels,
        {str(w): _count(n, f"{where}, word") for w, n in words.items()},
    )


def _column(data: Any) -> ToldColumn:
    check_keys(data, ToldColumn._fields, "survey column")
    name = string(data["name"], "name")
    return ToldColumn(
        name,
        one_of(data["kind"], get_args(ToldKind), "kind of column"),
        _sums(data["sums"], f"survey column '{name[:80]}'"),
        strings(data["values"], "'values'"),
        one_of(data["reads"], READS, "reading"),
        one_of(data["gap"], GAPS, "filling of gaps"),
    )


def _sums(data: Any, where: str) -> ColumnSums:
    if not isinstance(data, list) or len(data) != len(ColumnSums._fields):
        raise BadInput(f"{where}: no sums")
    squares = number(data[2], "squares", where)
    if squares < 0:
        raise BadInput(f"{where}: 'squares' is {squares:g}: give 0 or more")
    return ColumnSums(_count(data[0], where), number(data[1], "total", where), squares)


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise BadInput(f"{where}: {str(value)[:24]} is no number of rows")
    return value
