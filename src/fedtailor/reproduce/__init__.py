"""The tables and figures of the papers, run again: `fedtailor reproduce PAPER/EXPERIMENT`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import BadInput

if TYPE_CHECKING:
    from fedtailor.analysis.landscape import Tell as TellPoints
    from fedtailor.reproduce.playing.plan import ReproductionPlan
    from fedtailor.reproduce.playing.queue import OnEvent, PlayedRuns

__all__ = ["reproduce"]


def write_experiments(
    plan: ReproductionPlan,
    played: PlayedRuns,
    command: str,
    tell: TellPoints = lambda what, done, every: None,
) -> list[dict[str, Any]]:
    """Writes all experiments of a plan, as far as they got.

    Args:
      plan: what was to be run.
      played: what became of it.
      command: as shown in the results.
      tell: called with (method, points done, points in all) while losses are measured.
    """
    from fedtailor.reproduce.shown.finish import write_experiment

    return [
        write_experiment(part, plan.folder(part), played.failed, command, tell)
        for part in plan.parts
    ]


def reproduce(
    *experiments: str,
    only: Sequence[str] = (),
    small: bool = False,
    rounds: int | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    out: str | Path = "reproduction",
    skip_missing: bool = False,
    keep_models: bool = False,
    papers: str | Path | None = None,
    run: bool = True,
    tell: OnEvent | None = None,
    **settings: Any,
) -> dict[str, dict[str, Any]]:
    """Runs experiments of the papers and returns what their `table.json` hold, by name.

    Called again after an interruption it goes on: finished runs are never run again.

    Args:
      experiments: `paper/experiment`, or `paper` for all of it.
      only: names or globs of rows and columns.
      small: the declared smaller version.
      rounds: instead of the paper's.
      seeds: runs per cell, instead of the paper's.
      jobs: processes that share the device.
      out: folder of runs and results.
      skip_missing: leave out cells whose data are not there.
      keep_models: keep models and checkpoints of finished runs, too.
      papers: a folder with declarations of your own; else FedTailor's.
      run: False writes what is finished, from wherever it came, and runs nothing.
      tell: called with what happens.
      settings: data_dir, hub, device, compile, precision, chunk and checkpoint_every; all others
        are the paper's.

    Raises:
      BadInput: a name or data are missing, or a setting is given that is the paper's.
      KeyboardInterrupt: somebody pressed Ctrl-C; what was done is kept and written.
    """
    from fedtailor.reproduce.playing.cells import Scale
    from fedtailor.reproduce.playing.jobs import play_all
    from fedtailor.reproduce.playing.queue import PlayedRuns
    from fedtailor.reproduce.playing.request import ReproductionRequest

    for name, value in (("rounds", rounds), ("seeds", seeds), ("jobs", jobs)):
        if value is not None and value < 1:
            raise BadInput(f"{name} is {value}: give at least 1")
    names = ", ".join(repr(e) for e in experiments)
    asked = ReproductionRequest(
        Scale(small, rounds, seeds),
        only,
        settings,
        Path(papers) if papers else None,
        f"fedtailor.reproduce.reproduce({names}, ...)",
    )
    plan = asked.plan(
        experiments,
        Path(out),
        skip_missing=skip_missing,
        keep_models=keep_models,
        look_for_data=run,
    )
    played = PlayedRuns()
    if run:
        asked.keep(plan)
        played = play_all(plan.tasks, jobs, tell or (lambda news: None))
    found = write_experiments(plan, played, asked.command)
    if played.stopped:
        raise KeyboardInterrupt
    return {outcome["experiment"]: outcome for outcome in found}
