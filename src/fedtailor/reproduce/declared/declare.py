"""The experiments of the papers, as their TOML files declare them: read and checked strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.reproduce.declared.fields import Fields
from fedtailor.reproduce.declared.measures import MEASURES
from fedtailor.reproduce.declared.published import read_published
from fedtailor.reproduce.declared.schema import (
    Choice,
    Column,
    Experiment,
    Paper,
    Row,
    Small,
    Values,
)
from fedtailor.results.config import MERE_PLACE
from fedtailor.results.config import settings as known_settings

SHOWS = ("table", "curves", "sweep", "spread", "matrix", "bytes", "landscape", "join")
RANKS = ("rows", "columns")
# said by an entry of their own, or by whoever runs the experiment
NOT_SETTINGS = MERE_PLACE | {"rounds", "seed", "hub"}
PAPER = ("paper", "choices", "settings", "options", "experiments", "not_run")


def _entries(kind: Any, *without: str) -> list[str]:
    """What a table may hold: the attributes of what it becomes."""
    return [f.name for f in dataclasses.fields(kind) if f.name not in without]


def _settings(fields: Fields) -> Values:
    values: Values = fields.get("settings", dict, {})
    known = [name for name in known_settings() if name not in NOT_SETTINGS]
    for name in values:
        if name in NOT_SETTINGS:
            raise BadInput(
                f"{fields.where}: setting '{name}' is not for settings: rounds and seeds have "
                "entries of their own, the others are said when the experiment is run"
            )
        if name not in known:
            raise BadInput(f"{fields.where}: {unknown('setting', name, known)}")
    return values


def _options(fields: Fields) -> Values:
    values: Values = fields.get("options", dict, {})
    return values


def _metric(fields: Fields) -> str | None:
    found: str | None = fields.get("metric", str)
    if found is not None and found not in MEASURES:
        raise BadInput(f"{fields.where}: {unknown('metric', found, MEASURES)}")
    return found


def _once(names: list[str], kind: str, where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{where}: {kind} '{name}' is there twice: name it once")


def _choice(name: str, found: Any, where: str) -> Choice:
    fields = Fields(found, f"{where}, choice '{name}'", _entries(Choice, "name"))
    value = fields.need("value", str)
    return Choice(name, value, fields.need("reason", str), _settings(fields), _options(fields))


def _column(found: Any, where: str, sweep: bool) -> Column:
    fields = Fields(found, f"{where}, a column", _entries(Column))
    name = fields.need("name", str)
    fields.where = f"{where}, column '{name}'"
    x = fields.need("x", float) if sweep else fields.get("x", float)
    return Column(
        name,
        _settings(fields),
        _options(fields),
        x,
        fields.get("method", str),
        fields.get("suffix", str, ""),
        _metric(fields),
        fields.count("rounds"),
    )


def _row(found: Any, where: str, columns: int) -> Row:
    fields = Fields(found, f"{where}, a row", _entries(Row))
    name = fields.need("name", str)
    fields.where = f"{where}, row '{name}'"
    texts = fields.texts("paper") if "paper" in found else None
    if texts is not None and len(texts) != columns:
        raise BadInput(
            f"{fields.where}: paper has {len(texts)} cells for {columns} columns: give one each"
        )
    try:
        paper = None if texts is None else tuple(read_published(t) for t in texts)
    except BadInput as error:
        raise BadInput(f"{fields.where}: {error}") from None
    return Row(
        name,
        fields.need("method", str),
        _settings(fields),
        _options(fields),
        _metric(fields),
        fields.count("rounds"),
        paper,
    )


def _small(found: Any, where: str, columns: list[str], rows: list[str]) -> Small:
    fields = Fields(found, f"{where}, small", _entries(Small))
    chosen, kept = fields.texts("columns"), fields.texts("rows")
    for kind, names, known in (("column", chosen, columns), ("row", kept, rows)):
        for name in names:
            if name not in known:
                raise BadInput(f"{fields.where}: {unknown(kind, name, known)}")
    return Small(
        fields.count("rounds"),
        fields.count("seeds"),
        _settings(fields),
        _options(fields),
        chosen,
        kept,
    )


def _experiment(found: Any, paper: Paper, where: str) -> Experiment:
    fields = Fields(found, f"{where}, an experiment", _entries(Experiment, "paper", "key"))
    name = fields.need("name", str)
    where = fields.where = f"{where}, experiment '{name}'"
    if Path(name).name != name or not name.replace("-", "").replace("_", "").isalnum():
        raise BadInput(f"{where}: the name is part of a path: use letters, digits, - and _")
    shows = fields.get("shows", str, "table")
    if shows not in SHOWS:
        raise BadInput(f"{where}: {unknown('kind of picture (shows)', shows, SHOWS)}")
    ranks = fields.get("ranks", str, "rows")
    if ranks not in RANKS:
        raise BadInput(f"{where}: {unknown('order (ranks)', ranks, RANKS)}")
    columns = [_column(c, where, shows == "sweep") for c in fields.need("columns", list)]
    rows = [_row(r, where, len(columns)) for r in fields.need("rows", list)]
    _once([c.name for c in columns], "column", where)
    _once([r.name for r in rows], "row", where)
    if shows == "sweep":
        fields.need("x", str)
    names = fields.texts("choices")
    for choice in names:
        if choice not in paper.choices:
            raise BadInput(f"{where}: {unknown('choice', choice, paper.choices)}")
    fields.need("metric", str)
    fields.need("rounds", int)
    small = fields.get("small", dict)
    return Experiment(
        paper,
        f"{paper.key}/{name}",
        name,
        fields.need("title", str),
        shows,
        _metric(fields) or "",
        fields.count("rounds") or 1,
        fields.count("seeds", 1) or 1,
        tuple(paper.choices[c] for c in names),
        _settings(fields),
        _options(fields),
        tuple(columns),
        tuple(rows),
        None
        if small is None
        else _small(small, where, [c.name for c in columns], [r.name for r in rows]),
        fields.get("x", str, ""),
        fields.get("y", str, ""),
        fields.get("note", str, ""),
        fields.counts("at"),
        fields.get("record", str, ""),
        fields.get("skip_missing", bool, True),
        ranks,
    )


def _not_run(found: dict[str, Any], where: str) -> dict[str, str]:
    fields = Fields(found, f"{where}, not_run", list(found))
    return {name: fields.need(name, str) for name in found}


def read_paper(path: Path) -> Paper:
    """A paper's experiments from its TOML file.

    Raises:
      BadInput: the file is not what it should be; the message says where.
    """
    where = path.name
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"'{path}' cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"'{path}' is not valid TOML: {error}") from None
    fields = Fields(found, where, PAPER)
    about = Fields(
        fields.need("paper", dict), f"{where}, paper", ("name", "title", "authors", "venue")
    )
    choices = fields.get("choices", dict, {})
    paper = Paper(
        path.stem,
        about.need("name", str),
        about.need("title", str),
        about.need("authors", str),
        about.need("venue", str),
        _settings(fields),
        _options(fields),
        {name: _choice(name, choice, where) for name, choice in choices.items()},
        _not_run(fields.get("not_run", dict, {}), where),
    )
    experiments = [_experiment(e, paper, where) for e in fields.need("experiments", list)]
    _once([e.name for e in experiments], "experiment", where)
    return replace(paper, experiments=tuple(experiments))


def shipped() -> Path:
    """Where FedTailor's own declarations lie."""
    return Path(str(resources.files(__package__) / "papers"))


@cache
def read_papers(folder: Path | None = None) -> dict[str, Paper]:
    """All declared papers by name.

    Args:
      folder: with the TOML files; None takes FedTailor's own.
    """
    found = {path.stem: read_paper(path) for path in sorted((folder or shipped()).glob("*.toml"))}
    if not found:
        raise BadInput(f"--papers '{folder}' has no TOML file: name a folder with declarations")
    return found


def find_experiments(names: Sequence[str], papers: dict[str, Paper]) -> list[Experiment]:
    """The experiments that `names` mean: PAPER/EXPERIMENT, or PAPER for all of it."""
    known = {e.key: e for paper in papers.values() for e in paper.experiments}
    absent = {f"{p.key}/{k}": why for p in papers.values() for k, why in p.not_run.items()}
    found: dict[str, Experiment] = {}
    for name in names:
        if name in papers:
            found |= {e.key: e for e in papers[name].experiments}
        elif name in known:
            found[name] = known[name]
        elif name in absent:
            raise BadInput(f"{name} cannot be run: {absent[name]}")
        else:
            raise unknown("experiment", name, [*papers, *known])
    return list(found.values())
