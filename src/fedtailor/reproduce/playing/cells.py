"""From a declaration to the runs of its cells: whose setting goes before whose is said here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import naming
from fedtailor.methods import METHODS
from fedtailor.methods.describe import page
from fedtailor.methods.find import find
from fedtailor.reproduce.declared.allowed_settings import check_allowed
from fedtailor.reproduce.declared.published import Published
from fedtailor.reproduce.declared.schema import Column, Experiment, Row, Values
from fedtailor.results.config import MERE_PLACE, Config, make_config
from fedtailor.results.config import settings as known_settings

# a run that is finished elsewhere, or on data that came from elsewhere, is finished
ELSEWHERE = MERE_PLACE | {"hub"}


def _declared(experiment: Experiment, row: Row, column: Column) -> int:
    return row.rounds or column.rounds or experiment.rounds


def declared_rounds(
    experiment: Experiment, places: Collection[tuple[str, str]] | None = None
) -> set[int]:
    """Numbers of rounds that a paper has, in all cells or in some (row, column)."""
    return {
        _declared(experiment, row, column)
        for row in experiment.rows
        for column in experiment.columns
        if places is None or (row.name, column.name) in places
    }


@dataclass(frozen=True)
class Scale:
    """How an experiment is run, where that is not as in the paper; None is as in the paper."""

    small: bool = False
    rounds: int | None = None
    seeds: int | None = None
    patience: int | None = None  # as the setting: a run may end before its rounds do

    def mark(self, experiment: Experiment) -> str:
        """What differs from the paper, in words; empty where nothing does."""
        words = []
        if self.small:
            words.append("small scale")
        rounds, seeds = self.rounds_of(experiment), self.seeds_of(experiment)
        declared = declared_rounds(experiment)
        if rounds is not None and declared != {rounds}:
            words.append(f"{rounds} rounds instead of {' or '.join(map(str, sorted(declared)))}")
        if seeds < experiment.seeds:
            words.append(f"{seeds} of {experiment.seeds} seeds")
        elif seeds > experiment.seeds:
            words.append(f"{seeds} seeds instead of {experiment.seeds}")
        if self.patience:
            words.append(f"until {self.patience} tests brought nothing on validation rows")
        return ", ".join(words)

    def rounds_of(self, experiment: Experiment) -> int | None:
        """The number of rounds for every run; None leaves it to the declaration."""
        small = experiment.small if self.small else None
        return self.rounds or (small.rounds if small else None)

    def seeds_of(self, experiment: Experiment) -> int:
        """Runs per cell."""
        small = experiment.small if self.small else None
        return self.seeds or (small.seeds if small else None) or experiment.seeds


@dataclass(frozen=True)
class Cell:
    """One row in one column: what is run, and what the paper has there."""

    row: str
    column: str
    x: float | None
    metric: str
    published: Published | None
    configs: tuple[Config, ...]  # one a seed


def run_key(config: Config) -> str:
    """Names the run: equal runs of several tables are one, wherever they were played."""
    defaults = {name: known_settings()[name][0].default for name in ELSEWHERE}
    return replace(config, **defaults).fingerprint()[:20]


def world_key(config: Config) -> str:
    """Runs with the same key share their data, laid out by client."""
    concerned = {
        name
        for name, (_, field) in known_settings().items()
        if field.metadata["panel"] in ("Data", "Clients")
    } | {"model", "batch", "device", "engine"}
    kept = {k: v for k, v in config.values().items() if k in concerned}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:20]


@cache
def option_names(method: str) -> frozenset[str]:
    """The hyper-parameters of a method."""
    return frozenset(o.name for o in page(find(method)).options)


def _own(options: Values, method: str) -> Values:
    """Those of one level's options that concern a method, without its name.

    `name` is for every method that has it, `method.name` for one, and for it with a part added.
    """
    known = option_names(method)
    host = method.partition("+")[0]
    general = {k: v for k, v in options.items() if "." not in k and k in known}
    special: Values = {}
    for whose in (host, method):
        for name, value in options.items():
            owner, _, short = name.rpartition(".")
            if owner == whose and short in known:
                special[short] = value
    return general | special


def _check_options(experiment: Experiment, methods: Sequence[str]) -> None:
    """Every option must be somebody's: a slip of the pen would go unseen."""
    for level in _shared(experiment, *experiment.columns, small=True):
        for name in level:
            owner, dot, short = name.rpartition(".")
            # a choice may speak of methods that are in another table of the paper
            having = [owner] if dot else methods
            known = sorted({name for m in having for name in option_names(m)})
            elsewhere = not dot and any(name in option_names(m) for m in METHODS)
            if short not in known and not elsewhere:
                raise BadInput(f"{experiment.key}: {unknown('option', name, known)}")
    for row in experiment.rows:
        for name in row.options:
            if "." in name:
                raise BadInput(
                    f"{experiment.key}, row '{row.name}': option '{name}': it is the row's own "
                    "method: leave the dot out"
                )


def _shared(experiment: Experiment, *columns: Column, small: bool) -> list[Values]:
    """Options of all levels but the row's, the weakest first."""
    levels = [experiment.paper.options, *(c.options for c in experiment.chosen)]
    levels += [experiment.options, *(c.options for c in columns)]
    if small and experiment.small:
        levels.append(experiment.small.options)
    return levels


def _options(experiment: Experiment, column: Column, row: Row, method: str, small: bool) -> Values:
    out: Values = {}
    for level in _shared(experiment, column, small=False):
        out |= _own(level, method)
    known = option_names(method)
    for name in row.options:
        if name not in known:
            raise unknown("option", name, sorted(known) or ["(this method has none)"])
    out |= row.options
    if small and experiment.small:
        out |= _own(experiment.small.options, method)
    return out


def _settings(experiment: Experiment, column: Column, row: Row, scale: Scale) -> Values:
    out: Values = dict(experiment.paper.settings)
    for choice in experiment.chosen:
        out |= choice.settings
    out |= experiment.settings | column.settings | row.settings
    if scale.small and experiment.small:
        out |= experiment.small.settings
    rounds = scale.rounds_of(experiment) or _declared(experiment, row, column)
    patience = {"patience": scale.patience} if scale.patience else {}
    return out | {"rounds": rounds} | patience


def method_of(row: Row, column: Column) -> str:
    """What is run in a cell."""
    return (column.method or row.method) + column.suffix


def _cell(
    experiment: Experiment, row: Row, number: int, scale: Scale, given: dict[str, Any]
) -> Cell | None:
    column = experiment.columns[number]
    published = row.published[number] if row.published is not None else None
    if row.published is not None and published is None and experiment.skip_missing:
        return None
    method = method_of(row, column)
    with naming(f"{experiment.key}, row '{row.name}', column '{column.name}'"):
        settings = _settings(experiment, column, row, scale) | given
        options = _options(experiment, column, row, method, scale.small)
        first = make_config(method, settings, options)
    seeds = range(experiment.first_seed, experiment.first_seed + scale.seeds_of(experiment))
    configs = tuple(replace(first, seed=seed) for seed in seeds)
    metric = row.metric or column.metric or experiment.metric
    return Cell(row.name, column.name, column.x, metric, published, configs)


def make_cells(
    experiment: Experiment, scale: Scale = Scale(), given: dict[str, Any] | None = None
) -> list[Cell]:
    """All cells that are run, column by column.

    Raises:
      BadInput: a cell cannot be run as declared, and the message says which; or a setting is
        given that is the paper's.
    """
    check_allowed(given or {})
    small = experiment.small if scale.small else None
    if scale.small and small is None:
        raise BadInput(f"{experiment.key} has no small version: use --rounds and --seeds instead")
    methods = sorted({method_of(r, c) for r in experiment.rows for c in experiment.columns})
    usable = [m for m in methods if _exists(m)]
    _check_options(experiment, usable)
    kept = [
        (number, row)
        for number, column in enumerate(experiment.columns)
        for row in experiment.rows
        if not (small and small.columns and column.name not in small.columns)
        and not (small and small.rows and row.name not in small.rows)
    ]
    cells = [_cell(experiment, row, number, scale, given or {}) for number, row in kept]
    return [cell for cell in cells if cell is not None]


def _exists(method: str) -> bool:
    try:
        find(method)
    except BadInput:
        return False  # a cell that the paper leaves out: if it were run, it would be said there
    return True
