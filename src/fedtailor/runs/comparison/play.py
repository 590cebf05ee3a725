"""Several methods on the same data, from the same start, with the same draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.results import folder as files
from fedtailor.results.outputs import read_outputs
from fedtailor.runs.comparison.plan import ComparisonPlan
from fedtailor.runs.comparison.summary import Played, PlayedRun, summarise_runs
from fedtailor.runs.run import Watcher
from fedtailor.runs.several.together import RunToPlay, play_together

# (method, seed, how many runs are done, how many there are) -> what is told of each round
Announce = Callable[[str, int, int, int], Watcher | None]
Histories = dict[tuple[str, int], list[files.Line]]  # by method and seed


def _play(
    plan: ComparisonPlan, folder: Path | None, announce: Announce | None, side_by_side: bool
) -> Played:
    """All runs of the plan; those that are finished already are read, half ones resumed.

    Raises:
      BadInput: a finished one is broken, or the data have changed since.
    """
    plan.load_data()
    played: Played = {}
    left: dict[tuple[str, int], RunToPlay] = {}
    begun = 0

    def begin(method: str, seed: int) -> Watcher | None:
        nonlocal begun
        begun += 1
        return announce(method, seed, begun - 1, len(plan.configs)) if announce else None

    for (method, seed), config in plan.configs.items():
        place = files.run_folder(folder, method, seed) if folder else None
        data = plan.load_data(config.split_seed)
        if place and files.is_finished(place):
            begin(method, seed)
            result = files.read_result(place)
            rows = data.rows_digest()
            if result.get("rows_digest", rows) != rows:
                raise BadInput(
                    f"the data have changed since '{place}' was run, so others cannot be compared "
                    "with it: put them back, or compare anew with another --out"
                )
            played[method, seed] = PlayedRun(result, files.read_history(place), read_outputs(place))
        else:
            left[method, seed] = RunToPlay(config, place, data, partial(begin, method, seed))
    for run, end in zip(
        left, play_together(list(left.values()), side_by_side=side_by_side), strict=True
    ):
        place = left[run].folder
        history = files.read_history(place) if place else end.history
        played[run] = PlayedRun(end.result, history, end.outputs)
    return {run: played[run] for run in plan.configs}


def play_comparison(
    plan: ComparisonPlan,
    folder: Path | None,
    announce: Announce | None = None,
    *,
    side_by_side: bool = True,
) -> tuple[dict[str, Any], Histories]:
    """Plays what is left of a comparison and sums it up; whoever calls it holds the folder.

    Returns:
      The summary, and every run's history by method and seed.

    Raises:
      Interrupted: somebody pressed Ctrl-C.
    """
    played = _play(plan, folder, announce, side_by_side)
    summary = summarise_runs(plan, played)
    if folder:
        write_json(folder / files.SUMMARY, summary)
    return summary, {run: found.history for run, found in played.items()}


def open_comparison(plan: ComparisonPlan, folder: Path, *, overwrite: bool = False) -> Path:
    """The folder of a new comparison."""
    files.open_folder(folder, overwrite=overwrite, marks=(files.COMPARISON, files.CONFIG))
    write_atomically(folder / files.COMPARISON, plan.to_json())
    return folder
