"""The experiments of the papers, as their TOML files declare them: read and checked strictly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import check_table, naming, read_toml
from fedtailor.reproduce.declared.schema import Experiment, Paper, PaperFile, Values, check_once


def _experiment(found: Values, paper: Paper, where: str) -> Experiment:
    named = f"experiment '{found['name']}'" if "name" in found else "an experiment"
    return check_table(found, Experiment, f"{where}, {named}", paper=paper)


def read_paper(path: Path) -> Paper:
    """A paper's experiments from its TOML file; what is wrong there is said with its place."""
    where = path.name
    found = check_table(read_toml(path, "declaration"), PaperFile, where)
    paper = Paper(
        **vars(found.paper),
        key=path.stem,
        settings=found.settings,
        options=found.options,
        choices={name: replace(choice, name=name) for name, choice in found.choices.items()},
        not_run=found.not_run,
    )
    experiments = tuple(_experiment(e, paper, where) for e in found.experiments)
    with naming(where):
        check_once([e.name for e in experiments], "experiment")
    return replace(paper, experiments=experiments)


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
