"""Preprocessing that is fitted on the training rows only and can be saved with a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.form import Form, Kind, TaskKind
from fedtailor.datasets.encoding.columns import (
    Categorical,
    Column,
    Target,
    column_from_json,
    column_to_json,
    target_from_json,
    target_to_json,
)
from fedtailor.datasets.encoding.reading import (
    check_keys,
    is_list_of,
    number,
    one_of,
    strings,
    strings_or_none,
)
from fedtailor.datasets.source import Array, Raw, Table
from fedtailor.datasets.wording import listed, one_line, quoted

Normalisation = Literal["own", "pooled", "federated", "none"]
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"[^\W_]+")
# What version 0.1 did not write yet, and what it meant by that.
LATER: Mapping[str, Any] = {
    "task": "classification", "normalise": "pooled", "target": None, "seen": None, "clients": {},
    "levels": None, "characters": False,
}  # fmt: skip


@dataclass(frozen=True)
class OwnFit:
    """What one client's own training rows say, in place of what an encoder has for all."""

    columns: tuple[Column, ...] = ()  # of a table, as many and as wide as the encoder's
    target: Target | None = None  # of a regression
    seen: tuple[str, ...] | None = None  # of a text, the words that are known here; None: all


@dataclass(frozen=True)
class Encoder:
    """Turns raw examples into what a network takes, always as it was fitted."""

    form: Form  # the shape of the encoded problem
    classes: tuple[str, ...]  # the class names; empty unless classes are learnt
    columns: tuple[Column, ...] = ()  # of a table, in the order of the features
    # of a text, the word with number 2 first (0 is padding, 1 any unknown word)
    words: tuple[str, ...] = ()
    # whose training rows scale numbers: `own` those of the client itself, `pooled` all clients'
    # rows, `federated` all clients' sums, `none` nobody's
    normalise: Normalisation = "pooled"
    target: Target | None = None  # of a regression, how its label is scaled
    seen: tuple[str, ...] | None = None  # of a text, the words that are known here; None: all
    # by name, what is each client's own
    clients: Mapping[str, OwnFit] = field(default_factory=dict)
    levels: tuple[float, float] | None = None  # what of deep images becomes 0 and 255
    # whether `words` are single characters: then the last ones of a text are taken, as they are
    characters: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def of_client(self, name: str) -> Encoder:
        """The encoder of one client's rows.

        Raises:
          BadInput: clients have their own, and this one has none.
        """
        if not self.clients:
            return self
        if name not in self.clients:
            raise BadInput(
                f"the preprocessing has nothing of client {quoted(name)}: it has "
                f"{listed(self.clients)}"
            )
        return self.with_fit(self.clients[name])

    def with_fit(self, own: OwnFit) -> Encoder:
        """The encoder of the client whose fit this is."""
        return replace(self, columns=own.columns, target=own.target, seen=own.seen, clients={})

    def without_clients(self) -> Encoder:
        """What all clients share: nothing in it is one client's own."""
        return replace(self, clients={})

    def labels(self, labels: Array) -> Array:
        """Labels as a network learns them: int64 classes, or float32 numbers."""
        if self.target is not None:
            return self.target.apply(labels)
        return labels if self.form.task == "classification" else labels.astype(np.float32)

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
        known = set(self.words if self.seen is None else self.seen)
        number = {w: FIRST_WORD + i for i, w in enumerate(self.words) if w in known}
        out = np.full((len(texts), *self.form.shape), PADDING, dtype=np.int64)
        for row, text in zip(out, texts, strict=True):
            pieces = self.pieces(text)
            pieces = pieces[-len(row) :] if self.characters else pieces[: len(row)]
            row[: len(pieces)] = [number.get(piece, UNKNOWN) for piece in pieces]
        return out

    def pieces(self, text: str) -> list[str]:
        """A text's words, or its characters."""
        return pieces_of(text, self.characters)

    def to_json(self) -> dict[str, Any]:
        """A dictionary that the json module can write; `from_json` reads it back."""
        levels = {} if self.levels is None else {"levels": list(self.levels)}
        characters = {"characters": True} if self.characters else {}
        return (
            levels
            | characters
            | {
                "kind": self.form.kind,
                "shape": list(self.form.shape),
                "classes": list(self.classes),
                "columns": [column_to_json(c) for c in self.columns],
                "words": list(self.words),
                "task": self.form.task,
                "normalise": self.normalise,
                "target": target_to_json(self.target),
                "seen": None if self.seen is None else list(self.seen),
                "clients": {
                    name: _own_to_json(own, self.columns) for name, own in self.clients.items()
                },
            }
        )

    @staticmethod
    def from_json(data: Any) -> Encoder:
        """The encoder that `to_json` described; anything else is a `BadInput`."""
        check_keys(data, ("kind", "shape", "classes", "columns", "words"), "encoder", tuple(LATER))
        data = {**LATER, **data}
        shape, classes = data["shape"], strings(data["classes"], "classes")
        kind = one_of(data["kind"], get_args(Kind), "kind of data")
        task = one_of(data["task"], get_args(TaskKind), "task")
        normalise = one_of(data["normalise"], get_args(Normalisation), "normalisation")
        if not is_list_of(shape, int) or not all(0 < s < 2**31 for s in shape):
            raise BadInput(f"encoder: 'shape' is {one_line(shape)}: give positive whole numbers")
        words = strings(data["words"], "words")
        if not isinstance(data["columns"], list):
            raise BadInput(f"encoder: 'columns' is {one_line(data['columns'])}: give a list")
        columns = tuple(column_from_json(c) for c in data["columns"])
        target, seen = target_from_json(data["target"]), strings_or_none(data["seen"], "seen")
        vocabulary = FIRST_WORD + len(words) if kind == "text" else 0
        form = Form(kind, tuple(shape), len(classes), vocabulary, task)
        if not isinstance(data["clients"], Mapping):
            raise BadInput(f"encoder: 'clients' is {one_line(data['clients'])}: give a table")
        clients = {str(n): _own_from_json(own, columns, n) for n, own in data["clients"].items()}
        levels = data["levels"]
        if levels is not None:
            if not isinstance(levels, list) or len(levels) != 2:
                raise BadInput(f"encoder: 'levels' is {one_line(levels)}: give two numbers")
            if number(levels[0], "levels", "encoder") > number(levels[1], "levels", "encoder"):
                raise BadInput(f"encoder: 'levels' is {one_line(levels)}: give the lower one first")
            levels = (levels[0], levels[1])
        characters = data["characters"]
        if not isinstance(characters, bool):
            raise BadInput(f"encoder: 'characters' is {one_line(characters)}: give true or false")
        return Encoder(
            form, classes, columns, words, normalise, target, seen, clients, levels, characters
        )


def _check(encoder: Encoder) -> None:
    form = encoder.form
    dimensions = {"image": 3, "table": 1, "text": 1}[form.kind]
    width = form.shape[0] if form.kind == "table" else 0
    least = 2 if form.task == "classification" else 0
    wrong = (
        "'shape'" if len(form.shape) != dimensions
        else "'classes'" if len(set(encoder.classes)) != form.classes or form.classes < least
        else "'classes'" if form.classes and form.task != "classification"
        else "'columns'" if _width(encoder.columns) != width
        else "'words'" if encoder.words and form.kind != "text"
        else "'words'" if len(set(encoder.words)) != len(encoder.words)
        else "'characters'" if encoder.characters and form.kind != "text"
        else "'words'" if encoder.characters and any(len(w) != 1 for w in encoder.words)
        else "'target'" if (encoder.target is None) == (form.task == "regression")
        else "'seen'" if not set(encoder.seen or ()) <= set(encoder.words)
        else None
    )  # fmt: skip
    if wrong:
        raise BadInput(f"encoder: {wrong} does not fit {form.kind} data of shape {form.shape}")
    for name, own in encoder.clients.items():
        if _places(own.columns) != _places(encoder.columns):
            raise BadInput(f"encoder: client {quoted(name)} has other columns than all others")
        encoder.with_fit(own)


def _width(columns: Sequence[Column]) -> int:
    return sum(c.width for c in columns)


def _places(columns: Sequence[Column]) -> list[tuple[str, tuple[str, ...]]]:
    """Which features a column gives: what all clients must agree on."""
    return [(c.name, c.values if isinstance(c, Categorical) else ()) for c in columns]


def tokens(text: str) -> list[str]:
    """Lower-case runs of letters and digits.

    Example:
      >>> tokens("It's 3 o'clock")
      ['it', 's', '3', 'o', 'clock']
    """
    return _WORD.findall(text.lower())


def pieces_of(text: str, characters: bool) -> list[str]:
    """What of a text gets a number: its words, or its characters.

    Example:
      >>> pieces_of("To be", characters=True), pieces_of("To be", characters=False)
      (['T', 'o', ' ', 'b', 'e'], ['to', 'be'])
    """
    return list(text) if characters else tokens(text)


def _own_to_json(own: OwnFit, columns: Sequence[Column]) -> dict[str, Any]:
    """Only what differs from all others: the categories' names are long, and clients many."""
    told = []
    for mine, common in zip(own.columns, columns, strict=True):
        if mine != common:
            told.append({k: v for k, v in column_to_json(mine).items() if k != "values"})
    return {
        "columns": told,
        "target": target_to_json(own.target),
        "seen": None if own.seen is None else list(own.seen),
    }


def _own_from_json(data: Any, columns: Sequence[Column], client: Any) -> OwnFit:
    where = f"encoder client {quoted(client)}"
    check_keys(data, ("columns", "target", "seen"), where)
    if not isinstance(data["columns"], list):
        raise BadInput(f"{where}: 'columns' is {one_line(data['columns'])}: give a list")
    own = {c.name: c for c in columns}
    for told in data["columns"]:
        name = told.get("name") if isinstance(told, dict) else None
        if not isinstance(name, str) or name not in own:
            raise unknown(f"column of the {where}", one_line(name), map(one_line, own))
        common = own[name]
        values = {"values": list(common.values)} if isinstance(common, Categorical) else {}
        own[name] = column_from_json(told | values)
    seen = strings_or_none(data["seen"], "seen")
    return OwnFit(tuple(own.values()), target_from_json(data["target"]), seen)
