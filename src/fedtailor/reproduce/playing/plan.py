"""What is to be run for some experiments: checked before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.needs import lacking
from fedtailor.reproduce.declared.schema import Experiment
from fedtailor.reproduce.playing.cell_filter import filter_cells
from fedtailor.reproduce.playing.cells import Cell, Scale, make_cells
from fedtailor.reproduce.playing.play import PlannedRun, plan_run


@dataclass
class ExperimentRuns:
    """An experiment as it is run this time."""

    experiment: Experiment  # as declared
    mark: str  # what differs from the paper; empty where nothing does
    cells: list[tuple[Cell, list[PlannedRun]]]  # those that were asked for, with their runs
    missing: dict[tuple[str, str], str]  # why runs are left out, by the cell's row and column


@dataclass
class ReproductionPlan:
    """Experiments with their runs; `tasks` has each run once, whoever needs it."""

    parts: list[ExperimentRuns]
    out: Path

    @property
    def tasks(self) -> list[PlannedRun]:
        """Runs whose data are there."""
        found: dict[str, PlannedRun] = {}
        for part in self.parts:
            for cell, tasks in part.cells:
                if (cell.row, cell.column) in part.missing:
                    continue
                for task in tasks:
                    there = found.setdefault(task.key, task)
                    # without its models, one that needs them is not finished; then who keeps them
                    if (task.needs_models, task.keep) > (there.needs_models, there.keep):
                        found[task.key] = task
        return list(found.values())

    def folder(self, part: ExperimentRuns) -> Path:
        """Where an experiment's files go."""
        return self.out / part.experiment.paper.key / part.experiment.name

    @property
    def missing(self) -> list[str]:
        """What is to be done about data that are not there."""
        return list(
            dict.fromkeys(reason for part in self.parts for reason in part.missing.values())
        )


def _check_place(out: Path, device: str) -> None:
    """Looks before anything is run; a GPU is asked for, but not used: that is for the workers."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"'{out}' is no folder: choose another --out")
    kind, _, number = device.partition(":")
    if device in ("auto", "cpu"):
        return
    if kind != "cuda" or not (number or "0").isdecimal():
        raise BadInput(f"device '{device}' cannot be used: give cpu, cuda or cuda:N")
    if int(number or 0) >= torch.cuda.device_count():
        raise BadInput(f"device '{device}' is not here: try --device cpu")


def plan_runs(
    experiments: Sequence[Experiment],
    scale: Scale,
    out: Path,
    *,
    only: Sequence[str] = (),
    given: dict[str, Any] | None = None,
    skip_missing: bool = False,
    keep_models: bool = False,
    look_for_data: bool = True,
    only_here: bool = True,
) -> ReproductionPlan:
    """Everything that is to be run.

    Args:
      experiments, scale, out, only, given, skip_missing, keep_models: as of `reproduce`.
      look_for_data: False for runs that are finished, and need none.
      only_here: False where some of `only` may be names of other experiments.

    Raises:
      BadInput: a name, a setting or data are missing; nothing has been run or written then.
    """
    _check_place(out, str((given or {}).get("device", "auto")))
    made = [(e, make_cells(e, scale, given)) for e in experiments]
    chosen = filter_cells(only, [cell for _, cells in made for cell in cells], only_here=only_here)
    parts = []
    for experiment, cells in made:
        part = ExperimentRuns(experiment, scale.mark(experiment), [], {})
        for cell in cells:
            if not chosen.wants(cell):
                continue
            label = f"{experiment.key}: {cell.row}, {cell.column}"
            needs = experiment.shows == "landscape"
            tasks = [
                plan_run(c, out, f"{label}, seed {c.seed}", keep_models, needs)
                for c in cell.configs
            ]
            part.cells.append((cell, tasks))
            reason = lacking(cell.configs[0]) if look_for_data else ""
            if reason:
                part.missing[cell.row, cell.column] = reason
        if part.cells:
            parts.append(part)
    plan = ReproductionPlan(parts, out)
    if plan.missing and not skip_missing:
        raise BadInput(
            f"{'; '.join(plan.missing)}; or say --skip-missing to leave out what needs them"
        )
    return plan
