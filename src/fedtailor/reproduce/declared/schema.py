"""What a declaration of an experiment holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedtailor.reproduce.declared.published import Published

Values = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """What a paper leaves out: our value, and why."""

    name: str
    value: str
    reason: str
    settings: Values
    options: Values


@dataclass(frozen=True)
class Column:
    """A setting in which all rows are tried.

    Attributes:
      name: as shown.
      settings: of its runs.
      options: hyper-parameters, `name` or `method.name`.
      x: place on the axis of a sweep.
      method: replaces the row's method.
      suffix: is added to the row's method, e.g. `+ala`.
      metric: what its cells show, if not what the experiment says.
      rounds: its own number of rounds.
    """

    name: str
    settings: Values = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    x: float | None = None
    method: str | None = None
    suffix: str = ""
    metric: str | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Row:
    """A method with its options; `paper` holds a cell per column, or nothing at all."""

    name: str
    method: str
    settings: Values = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    metric: str | None = None
    rounds: int | None = None
    paper: tuple[Published | None, ...] | None = None


@dataclass(frozen=True)
class Small:
    """What an honest smaller version has instead."""

    rounds: int | None = None
    seeds: int | None = None
    settings: Values = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper and what all its experiments share."""

    key: str
    name: str
    title: str
    authors: str
    venue: str
    settings: Values = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)  # figures without experiment, and why
    experiments: tuple[Experiment, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper.

    Attributes:
      paper: without its experiments.
      key: its name on the command line.
      shows: what is drawn; a table is always written.
      small: what `--scale small` has instead.
      x, y: names of the axes.
      note: what a reader must know.
      at: rounds that a `matrix` is shown at; by default first, middle and last.
      record: the record that a `matrix` shows; by default every one that is client × client.
      skip_missing: a cell that the paper leaves out is not run.
      ranks: whose order is compared with the paper's: `rows` within a column (methods), or
        `columns` within a row (values of a setting).
    """

    paper: Paper
    key: str
    name: str
    title: str
    shows: str
    metric: str
    rounds: int
    seeds: int
    choices: tuple[Choice, ...]
    settings: Values
    options: Values
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    small: Small | None
    x: str = ""
    y: str = ""
    note: str = ""
    at: tuple[int, ...] = ()
    record: str = ""
    skip_missing: bool = True
    ranks: str = "rows"
