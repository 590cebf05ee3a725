"""The tables and figures of the papers, run again: `fedtailor reproduce PAPER/EXPERIMENT`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import BadInput

if TYPE_CHECKING:
    from fedtailor.reproduce.playing.queue import OnEvent, PlayedRuns
    from fedtailor.reproduce.playing.request import ReproductionRequest

__all__ = ["reproduce"]


Showing = Callable[..., AbstractContextManager[Callable[..., None]]]


def _unseen(*_: Any) -> AbstractContextManager[Callable[..., None]]:
    return nullcontext(lambda *told: None)


def run_request(
    request: ReproductionRequest,
    experiments: Sequence[str],
    out: Path,
    *,
    jobs: int = 1,
    run: bool = True,
    skip_missing: bool = False,
    keep_models: bool = False,
    playing: Showing = _unseen,
    measuring: Showing = _unseen,
) -> tuple[list[dict[str, Any]], PlayedRuns]:
    """Plays what a request asks for and writes its tables: (what `table.json` hold, what failed).

    Args:
      experiments, out, jobs, run, skip_missing, keep_models: as of `reproduce`.
      playing: entered with the plan while it is played; what it gives is called with events.
      measuring: entered while results are written; what it gives is called with (method, points
        done, points in all) while losses are measured.
    """
    from fedtailor.reproduce.playing.jobs import play_all
    from fedtailor.reproduce.playing.queue import PlayedRuns
    from fedtailor.reproduce.shown.finish import write_experiment

    how = {"skip_missing": skip_missing, "keep_models": keep_models, "look_for_data": run}
    plan, played = request.plan(experiments, out, **how), PlayedRuns()
    if run:
        request.keep(plan)
        with playing(plan) as on_event:
            played = play_all(plan.tasks, jobs, on_event)
    with measuring() as tell:
        found = [
            write_experiment(part, plan.folder(part), played.failed, request.command, tell)
            for part in plan.parts
        ]
    return found, played


def reproduce(
    *experiments: str,
    only: Sequence[str] = (),
    small: bool = False,
    rounds: int | None = None,
    seeds: int | None = None,
    patience: int | None = None,
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
      patience: a run ends when so many tests in a row brought nothing on validation rows.
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
    from fedtailor.reproduce.playing.request import ReproductionRequest

    for name, value in (
        ("rounds", rounds),
        ("seeds", seeds),
        ("patience", patience),
        ("jobs", jobs),
    ):
        if value is not None and value < 1:
            raise BadInput(f"{name} is {value}: give at least 1")
    names = ", ".join(repr(e) for e in experiments)
    request = ReproductionRequest(
        Scale(small, rounds, seeds, patience),
        only,
        settings,
        Path(papers) if papers else None,
        f"fedtailor.reproduce.reproduce({names}, ...)",
    )
    found, played = run_request(
        request,
        experiments,
        Path(out),
        jobs=jobs,
        run=run,
        skip_missing=skip_missing,
        keep_models=keep_models,
        playing=(lambda plan: nullcontext(tell)) if tell else _unseen,
    )
    if played.stopped:
        raise KeyboardInterrupt
    return {outcome["experiment"]: outcome for outcome in found}
