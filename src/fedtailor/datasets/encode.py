"""Preprocessing that is fitted on the training rows only and can be saved with a model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import Form, Kind
from fedtailor.datasets.source import Array, Raw, Source, Table, take
from fedtailor.datasets.wording import listed, one_line, quoted

NORMALISATIONS = ("auto", "pooled", "none")
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: (value - shift) / scale, with `fill` in place of a missing value."""

    name: str
    fill: float
    shift: float
    scale: float

    width = 1

    def apply(self, column: Array) -> Array:
        if column.dtype.kind != "f":
            raise BadInput(f"column {quoted(self.name)} holds text: numbers are expected")
        values = np.where(np.isnan(column), self.fill, column)
        return ((values - self.shift) / self.scale)[:, None]


@dataclass(frozen=True)
class Categorical:
    """A column of categories, one-hot; a value that training never saw gives all zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.values)

    def apply(self, column: Array) -> Array:
        if column.dtype.kind != "U":
            raise BadInput(f"column {quoted(self.name)} holds numbers: text is expected")
        return column[:, None] == np.array(self.values, dtype=np.str_)[None, :]  # type: ignore[no-any-return]


Column: TypeAlias = Numeric | Categorical


@dataclass(frozen=True)
class Encoder:
    """Turns raw examples into what a network takes, always as it was fitted.

    Attributes:
      form: the shape of the encoded problem.
      classes: the class names.
      columns: of a table, in the order of the features.
      words: of a text, the word with number 2 first (0 is padding, 1 any unknown word).
    """

    form: Form
    classes: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def apply(self, raw: Raw) -> Array:
        """uint8 [n, c, h, w], float32 [n, f] or int64 [n, length]."""
        if isinstance(raw, Table) and self.form.kind == "table":
            return self._table(raw)
        if isinstance(raw, tuple) and self.form.kind == "text":
            return self._text(raw)
        if isinstance(raw, np.ndarray) and self.form.kind == "image":
            if raw.dtype != np.uint8 or raw.shape[1:] != self.form.shape:
                raise BadInput(
                    f"images of shape {raw.shape[1:]} ({raw.dtype}) do not fit: "
                    f"uint8 {self.form.shape} is expected"
                )
            return raw
        raise BadInput(f"{type(raw).__name__} does not fit: {self.form.kind} data is expected")

    def _table(self, table: Table) -> Array:
        absent = [c.name for c in self.columns if c.name not in table.columns]
        if absent:
            raise BadInput(
                f"the table lacks the columns {listed(absent)}: "
                f"give {listed(c.name for c in self.columns)}"
            )
        out = np.empty((len(table), *self.form.shape), dtype=np.float32)
        start = 0
        for column in self.columns:
            stop = start + column.width
            with np.errstate(over="ignore"):
                out[:, start:stop] = column.apply(table.columns[column.name])
            if not np.isfinite(out[:, start:stop]).all():
                raise BadInput(
                    f"column {quoted(column.name)} holds numbers too large for 32 bits: "
                    "scale them down"
                )
            start = stop
        return out

    def _text(self, texts: Sequence[str]) -> Array:
        number = {word: FIRST_WORD + i for i, word in enumerate(self.words)}
        out = np.full((len(texts), *self.form.shape), PADDING, dtype=np.int64)
        for row, text in zip(out, texts, strict=True):
            found = [number.get(word, UNKNOWN) for word in tokens(text)[: len(row)]]
            row[: len(found)] = found
        return out

    def to_json(self) -> dict[str, Any]:
        """A dictionary that the json module can write; `from_json` reads it back."""
        return {
            "kind": self.form.kind,
            "shape": list(self.form.shape),
            "classes": list(self.classes),
            "columns": [_column_to_json(c) for c in self.columns],
            "words": list(self.words),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Encoder:
        """The encoder that `to_json` described; anything else is a `BadInput`."""
        _exact_keys(data, ("kind", "shape", "classes", "columns", "words"), "encoder")
        kind, shape, classes = data["kind"], data["shape"], _strings(data["classes"], "classes")
        if kind not in get_args(Kind):
            raise unknown("kind of data in the encoder", one_line(kind), get_args(Kind))
        if not _is_list_of(shape, int) or not all(0 < s < 2**31 for s in shape):
            raise BadInput(f"encoder: 'shape' is {one_line(shape)}: give positive whole numbers")
        words = _strings(data["words"], "words")
        if not isinstance(data["columns"], list):
            raise BadInput(f"encoder: 'columns' is {one_line(data['columns'])}: give a list")
        columns = tuple(_column_from_json(c) for c in data["columns"])
        vocabulary = FIRST_WORD + len(words) if kind == "text" else 0
        return Encoder(Form(kind, tuple(shape), len(classes), vocabulary), classes, columns, words)


def _check(encoder: Encoder) -> None:
    form = encoder.form
    dimensions = {"image": 3, "table": 1, "text": 1}[form.kind]
    width = sum(c.width for c in encoder.columns)
    wrong = (
        "'shape'" if len(form.shape) != dimensions
        else "'classes'" if len(set(encoder.classes)) != form.classes or form.classes < 2
        else "'columns'" if (width != form.shape[0] if form.kind == "table" else encoder.columns)
        else "'words'" if encoder.words and form.kind != "text"
        else "'words'" if len(set(encoder.words)) != len(encoder.words)
        else None
    )  # fmt: skip
    if wrong:
        raise BadInput(f"encoder: {wrong} does not fit {form.kind} data of shape {form.shape}")


def tokens(text: str) -> list[str]:
    """Lower-case runs of letters and digits.

    Example:
      >>> tokens("It's 3 o'clock")
      ['it', 's', '3', 'o', 'clock']
    """
    return _WORD.findall(text.lower())


def encode(
    source: Source,
    train_rows: Array,
    *,
    normalise: str = "auto",
    length: int = 200,
    vocabulary: int = 0,
) -> tuple[Encoder, Array]:
    """Fit an encoder on the training rows and encode all rows with it.

    Args:
      source: the data.
      train_rows: row numbers (or a mask); nothing else influences the encoder.
      normalise: numeric columns of tables: `pooled` gives them mean 0 and deviation 1 over all
        training rows, `none` leaves them as they are, `auto` is `pooled`. Images stay uint8: the
        network scales them.
      length: words per text.
      vocabulary: how many of the most frequent words to know; 0 for all.

    Example:
      >>> from fedtailor.datasets import source_of
      >>> source = source_of({"north": ([[1.0], [3.0]], ["well", "ill"])})
      >>> encoder, x = encode(source, np.array([0, 1]))
      >>> encoder.classes, x.tolist()
      (('ill', 'well'), [[-1.0], [1.0]])
    """
    if normalise not in NORMALISATIONS:
        raise unknown("normalisation", one_line(normalise), NORMALISATIONS)
    if length < 1 or vocabulary < 0:
        raise BadInput(
            f"text length {length} and vocabulary {vocabulary}: use at least 1 and 0 (all words)"
        )
    train = take(source.raw, _row_numbers(train_rows, len(source)))
    classes = source.classes
    count = len(classes)
    if isinstance(train, Table):
        columns = tuple(_fit(n, c, normalise != "none") for n, c in train.columns.items())
        width = sum(c.width for c in columns)
        if not width:
            raise BadInput(f"data {quoted(source.name)} has no feature with a value in training")
        encoder = Encoder(Form("table", (width,), count), classes, columns=columns)
    elif isinstance(train, tuple):
        words = _frequent_words(train, vocabulary)
        form = Form("text", (length,), count, FIRST_WORD + len(words))
        encoder = Encoder(form, classes, words=words)
    else:
        encoder = Encoder(Form("image", train.shape[1:], count), classes)
    return encoder, encoder.apply(source.raw)


def _row_numbers(rows: Array, count: int) -> Array:
    rows = np.asarray(rows)
    if rows.dtype == np.bool_:
        if rows.shape != (count,):
            raise BadInput(f"training mask of shape {rows.shape}: give one entry per row ({count})")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu":
        raise BadInput(f"training rows of shape {rows.shape}: give at least one row number")
    if rows.min() < 0 or rows.max() >= count:
        raise BadInput(f"training rows reach from {rows.min()} to {rows.max()}: use 0..{count - 1}")
    return rows


def _fit(name: str, column: Array, standardise: bool) -> Column:
    if column.dtype.kind == "U":
        return Categorical(name, tuple(str(v) for v in np.unique(column) if v))
    present = column[~np.isnan(column)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(present.mean()) if len(present) else 0.0
        deviation = float(present.std()) if len(present) else 0.0
    if not math.isfinite(mean + deviation):
        raise BadInput(f"column {quoted(name)} holds numbers too large to average: scale them down")
    if not standardise:
        return Numeric(name, mean, 0.0, 1.0)
    # Compared by value: the deviation of a constant column can be a rounding error above 0.
    varies = len(present) and present.min() < present.max() and deviation > 0
    return Numeric(name, mean, mean, deviation if varies else 1.0)


def _frequent_words(texts: Iterable[str], most: int) -> tuple[str, ...]:
    counts = Counter(word for text in texts for word in tokens(text))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ordered[:most] if most else ordered)


def _column_to_json(column: Column) -> dict[str, Any]:
    if isinstance(column, Categorical):
        return {"name": column.name, "values": list(column.values)}
    return {
        "name": column.name, "fill": column.fill, "shift": column.shift, "scale": column.scale
    }  # fmt: skip


def _column_from_json(data: Any) -> Column:
    where = f"encoder column {quoted(data.get('name'))}" if isinstance(data, dict) else "column"
    if isinstance(data, dict) and "values" in data:
        _exact_keys(data, ("name", "values"), where)
        return Categorical(_string(data["name"], "name"), _strings(data["values"], where))
    _exact_keys(data, ("name", "fill", "shift", "scale"), where)
    for key in ("fill", "shift", "scale"):
        number = data[key]
        if type(number) not in (int, float) or not math.isfinite(number):
            raise BadInput(f"{where}: '{key}' is {one_line(number)}: give a finite number")
    if data["scale"] <= 0:
        raise BadInput(f"{where}: 'scale' is {data['scale']}: give a positive number")
    return Numeric(
        _string(data["name"], "name"), float(data["fill"]), float(data["shift"]),
        float(data["scale"]),
    )  # fmt: skip


def _exact_keys(data: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise BadInput(f"{where} is {one_line(data)}: give the keys {listed(keys)}")
    absent = [k for k in keys if k not in data]
    if absent:
        raise BadInput(f"{where} lacks the keys {listed(absent)}: save the model again")
    extra = [k for k in data if k not in keys]
    if extra:
        raise unknown(f"key of the {where}", one_line(extra[0]), keys)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(v) is kind for v in value)


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"encoder: '{what}' is {one_line(value)}: give text")
    return value


def _strings(value: Any, what: str) -> tuple[str, ...]:
    if not _is_list_of(value, str):
        raise BadInput(f"encoder: {what} is {one_line(value)}: give a list of texts")
    return tuple(value)
