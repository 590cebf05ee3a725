"""What a declaration of an experiment holds: each class is a table of a paper's TOML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import setting
from fedtailor.core.options import Count, Whole
from fedtailor.reproduce.declared.measures import measure_of
from fedtailor.reproduce.declared.published import Published, read_published
from fedtailor.results.config import MERE_PLACE
from fedtailor.results.config import settings as known_settings

Values = dict[str, Any]
# said by an entry of their own, or by whoever runs the experiment
NOT_SETTINGS = MERE_PLACE | {"rounds", "seed", "hub"}


@dataclass(frozen=True, kw_only=True)
class Level:
    """A place where settings and options may be declared; the more special one goes first."""

    settings: Values = setting("settings of its runs", {})
    options: Values = setting("hyper-parameters, `name` or `method.name`", {})

    def __post_init__(self) -> None:
        known = [name for name in known_settings() if name not in NOT_SETTINGS]
        for name in self.settings:
            if name in NOT_SETTINGS:
                raise BadInput(
                    f"setting '{name}' is not for settings: rounds and seeds have entries of their "
                    "own, the others are said when the experiment is run"
                )
            if name not in known:
                raise unknown("setting", name, known)
        metric = getattr(self, "metric", None)
        if metric is not None:
            measure_of(metric)


@dataclass(frozen=True)
class Choice(Level):
    """What a paper leaves out: our value, and why; its name is that of its table."""

    value: str = setting("text: what was chosen")
    reason: str = setting("text: why")
    name: str = ""


@dataclass(frozen=True)
class Column(Level):
    """A setting in which all rows are tried."""

    name: str = setting("its name")
    x: float | None = setting("a number: its place on the axis of a sweep", None)
    method: str | None = setting("what replaces the row's method", None)
    suffix: str = setting("what is added to the row's method, e.g. `+ala`", "")
    metric: str | None = setting("what its cells show", None)
    rounds: Count | None = setting("its own number of rounds", None)


@dataclass(frozen=True)
class Row(Level):
    """A method with its options; `paper` holds a cell per column, or nothing at all."""

    name: str = setting("its name")
    method: str = setting("what is run")
    metric: str | None = setting("what its cells show", None)
    rounds: Count | None = setting("its own number of rounds", None)
    paper: tuple[str, ...] | None = setting("a cell per column", None)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.published  # a cell that cannot be read is said at once

    @cached_property
    def published(self) -> tuple[Published | None, ...] | None:
        """What the paper prints, column by column; None where it prints nothing of the kind."""
        return None if self.paper is None else tuple(read_published(text) for text in self.paper)


@dataclass(frozen=True)
class Small(Level):
    """What an honest smaller version has instead."""

    rounds: Count | None = setting("instead of the paper's", None)
    seeds: Count | None = setting("instead of the paper's", None)
    columns: tuple[str, ...] = setting("names of those that are kept", ())
    rows: tuple[str, ...] = setting("names of those that are kept", ())


@dataclass(frozen=True)
class PaperNames:
    """What a paper is called, and who wrote it."""

    name: str = setting("what it is called for short")
    title: str = setting("its title")
    authors: str = setting("who wrote it")
    venue: str = setting("where it was published")


@dataclass(frozen=True)
class PaperFile(Level):
    """A whole file, as it is read; experiments are checked when all else is known."""

    paper: PaperNames = setting("name, title, authors and venue")
    experiments: tuple[Values, ...] = setting("at least one")
    choices: dict[str, Choice] = setting("what the paper leaves open", {})
    not_run: dict[str, str] = setting("figures without an experiment, and why", {})


@dataclass(frozen=True, kw_only=True)
class Paper(PaperNames):
    """A paper and what all its experiments share."""

    key: str
    settings: Values = field(default_factory=dict)
    options: Values = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)  # figures without experiment, and why
    experiments: tuple[Experiment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment(Level):
    """One table or figure of a paper."""

    paper: Paper  # without its experiments
    name: str = setting("its name")
    title: str = setting("its title")
    shows: Literal["table", "curves", "sweep", "spread", "matrix", "bytes", "landscape", "join"] = (
        setting("the kind of picture; a table is always written", "table")
    )
    metric: str = setting("what a cell shows")
    rounds: Count = setting("a whole number")
    seeds: Count = setting("runs per cell", 1)
    first_seed: Whole = setting("the seed of the first of them", 0)
    choices: tuple[str, ...] = setting("names of the paper's choices that it rests on", ())
    columns: tuple[Column, ...] = setting("at least one")
    rows: tuple[Row, ...] = setting("at least one")
    small: Small | None = setting("what `--scale small` has instead", None)
    x: str = setting("name of the axis", "")
    y: str = setting("name of the axis", "")
    note: str = setting("what a reader must know", "")
    # of a `matrix`: by default the first, middle and last round, and all client × client records
    at: tuple[Count, ...] = setting("rounds that are shown", ())
    record: str = setting("the record that is shown", "")
    skip_missing: bool = setting("whether a cell that the paper leaves out is not run", True)
    # rows within a column (methods), or columns within a row (values of a setting)
    ranks: Literal["rows", "columns"] = setting("whose order is compared", "rows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.replace("-", "").replace("_", "").isalnum():
            raise BadInput("the name is part of a path: use letters, digits, - and _")
        columns, rows = [c.name for c in self.columns], [r.name for r in self.rows]
        check_once(columns, "column")
        check_once(rows, "row")
        for row in self.rows:
            if row.paper is not None and len(row.paper) != len(columns):
                counted = f"paper has {len(row.paper)} cells for {len(columns)} columns"
                raise BadInput(f"row '{row.name}': {counted}: give one each")
        if self.shows == "sweep":
            if not self.x:
                raise BadInput("x is missing: give text")
            for column in self.columns:
                if column.x is None:
                    raise BadInput(f"column '{column.name}': x is missing: give a number")
        small = self.small or Small()
        named = (
            ("choice", self.choices, self.paper.choices),
            ("column", small.columns, columns),
            ("row", small.rows, rows),
        )
        for kind, names, known in named:
            for name in names:
                if name not in known:
                    raise unknown(kind, name, known)

    @property
    def key(self) -> str:
        """Its name on the command line."""
        return f"{self.paper.key}/{self.name}"

    @property
    def chosen(self) -> tuple[Choice, ...]:
        """What was chosen where the paper says nothing."""
        return tuple(self.paper.choices[name] for name in self.choices)


def check_once(names: Sequence[str], kind: str) -> None:
    """Refuses a name that is there twice."""
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{kind} '{name}' is there twice: name it once")
