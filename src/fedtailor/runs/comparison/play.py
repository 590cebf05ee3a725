"""Several methods on the same data, from the same start, with the same draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.results import folder as files
from fedtailor.results.outputs import read_outputs
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.comparison.summary import Played, PlayedRun, summarise_runs
from fedtailor.runs.prepared import Line
from fedtailor.runs.resume import resume_run
from fedtailor.runs.run import Watcher, play_config

# (method, seed, how many runs are done, how many there are) -> what is told of each round
Announce = Callable[[str, int, int, int], Watcher | None]
Histories = dict[tuple[str, int], list[Line]]  # by method and seed


def _play(plan: ComparisonPlan, folder: Path | None, announce: Announce | None) -> Played:
    """All runs of the plan; those that are finished already are read, half ones resumed.

    Raises:
      BadInput: a finished one is broken, or the data have changed since.
    """
    plan.load_data()
    played: Played = {}
    for done, ((method, seed), config) in enumerate(plan.configs.items()):
        lines: list[Line] = []
        told = announce(method, seed, done, len(plan.configs)) if announce else None

        def watch(
            line: Line, rounds: int, lines: list[Line] = lines, told: Watcher | None = told
        ) -> None:
            lines.append(line)
            if told:
                told(line, rounds)

        place = files.run_folder(folder, method, seed) if folder else None
        data = plan.load_data(config.split_seed)
        if place and files.is_finished(place):
            result = files.read_result(place)
            rows = data.rows_digest()
            if result.get("rows_digest", rows) != rows:
                raise BadInput(
                    f"the data have changed since '{place}' was run, so others cannot be compared "
                    "with it: put them back, or compare anew with another --out"
                )
            outputs = read_outputs(place)
        elif place and files.has_checkpoint(place):
            result = resume_run(place, watch=watch, objects=config.objects)
            outputs = read_outputs(place)
        else:
            if place:
                files.open_folder(place, overwrite=True)
            result, outputs = play_config(config, place, data=data, watch=watch)
        played[method, seed] = PlayedRun(
            result, files.read_history(place) if place else lines, outputs
        )
    return played


def play_comparison(
    plan: ComparisonPlan, folder: Path | None, announce: Announce | None = None
) -> tuple[dict[str, Any], Histories]:
    """Plays what is left of a comparison and sums it up; whoever calls it holds the folder.

    Returns:
      The summary, and every run's history by method and seed.

    Raises:
      Interrupted: somebody pressed Ctrl-C.
    """
    played = _play(plan, folder, announce)
    summary = summarise_runs(plan, played)
    if folder:
        write_json(folder / files.SUMMARY, summary)
    return summary, {run: found.history for run, found in played.items()}


def open_comparison(plan: ComparisonPlan, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a new comparison."""
    files.open_folder(folder, overwrite=overwrite, marks=(files.COMPARISON, files.CONFIG))
    write_atomically(folder / files.COMPARISON, plan.to_json())
    return folder
