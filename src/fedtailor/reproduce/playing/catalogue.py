"""What can be reproduced: data and runs of every experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.reproduce.declared.declare import find_experiments, read_papers
from fedtailor.reproduce.declared.needs import lacking
from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.playing.cells import Scale, make_cells, run_key
from fedtailor.results.config import Config


def _runs(experiment: Experiment, scale: Scale, given: dict[str, Any]) -> list[Config]:
    """Different runs of an experiment."""
    cells = make_cells(experiment, scale, given)
    return list({run_key(c): c for cell in cells for c in cell.configs}.values())


def describe(experiment: Experiment, given: dict[str, Any]) -> dict[str, Any]:
    """One line of the list."""
    runs = _runs(experiment, Scale(), given)
    data = {config.data: config for config in runs}
    small = _runs(experiment, Scale(small=True), given) if experiment.small else []
    return {
        "experiment": experiment.key,
        "title": experiment.title,
        "shows": experiment.shows,
        "data": {Path(name).name: lacking(config) is None for name, config in data.items()},
        "runs": len(runs),
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "small": f"{len(small)} runs" if small else "–",
    }


def catalogue(
    names: Sequence[str], given: dict[str, Any], folder: Path | None = None
) -> list[dict[str, Any]]:
    """All experiments, or those (or those of papers) that are named."""
    papers = read_papers(folder)
    return [describe(e, given) for e in find_experiments(names or list(papers), papers)]
