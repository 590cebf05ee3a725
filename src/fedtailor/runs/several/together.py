"""Runs that differ in seed, split, learning rate or numbers among options, in one program.

Each ends as if it had been played alone, with its own folder, history and checkpoints; one that was
stopped goes on from its own checkpoint. Runs that cannot share a program, or do not fit on the
device together, are played one after another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core.errors import Interrupted
from fedtailor.core.steps.run_numbers import NeedsNumber
from fedtailor.engine import Diverged
from fedtailor.engine.local_clients import LocalClients
from fedtailor.engine.memory import free_memory
from fedtailor.engine.side_by_side import SideBySide
from fedtailor.methods.combine import built_in
from fedtailor.results import folder as files
from fedtailor.results.config import Config
from fedtailor.results.lock import lock_folder
from fedtailor.results.outputs import RunOutputs
from fedtailor.runs.data import RunData, load_run_data
from fedtailor.runs.interruption import ctrl_c
from fedtailor.runs.resume import restored
from fedtailor.runs.run import Runner, Watcher
from fedtailor.runs.several.shared_options import differ_in_numbers, option_values, why_not_shared

MAY_DIFFER = ("seed", "split_seed", "lr")
SHARE = 0.4  # of the free memory, for the rows of runs whose data differ
log = logging.getLogger("fedtailor")


class RunToPlay(NamedTuple):
    """One of several runs.

    Attributes:
      config: what to run.
      folder: where to keep everything, or where it was: with a checkpoint there it goes on from it.
      data: its data, if they are there already.
      announce: called when it begins; gives what is called with each line of its history.
      until: if not 0, it rests after this round, see `Runner.play`.
    """

    config: Config
    folder: Path | None = None
    data: RunData | None = None
    announce: Callable[[], Watcher | None] = lambda: None
    until: int = 0


class RunEnd(NamedTuple):
    """How one of several runs ended.

    Attributes:
      result: what it came to; empty if an error ended it.
      history: a line for each round.
      outputs: what its models said; None if an error ended it.
      error: what ended it before its end; None if nothing did.
      runner: what played it; None if it was finished before.
    """

    result: dict[str, Any]
    history: list[files.Line]
    outputs: RunOutputs | None = None
    error: Exception | None = None
    runner: Runner | None = None


def play_together(
    runs: Sequence[RunToPlay | Config], *, side_by_side: bool = True, keep_going: bool = False
) -> list[RunEnd]:
    """Plays runs, as many side by side as can be; each ends as if it had been alone.

    Args:
      runs: what to play. Those that differ in nothing but seed, split, learning rate and numbers
        among their method's options go together.
      side_by_side: whether any are to; else one is played after another.
      keep_going: whether the others are still played when one of them cannot go on, since its rate
        diverges, say; else what ended it is raised when those beside it have ended.

    Returns:
      How each ended, in their order.

    Raises:
      Interrupted: somebody pressed Ctrl-C.
      BadInput: one cannot be played at all.

    Example:
      >>> from fedtailor.results.config import make_config
      >>> shared = {"model": "mlp", "clients": 3, "rounds": 1}
      >>> rates = [make_config("fedavg", shared | {"lr": lr}, {}) for lr in (0.05, 0.1)]
      >>> [end.result["side_by_side"] for end in play_together(rates)]
      [2, 2]
    """
    asked = [run if isinstance(run, RunToPlay) else RunToPlay(run) for run in runs]
    left, ends = dict(enumerate(asked)), dict[int, RunEnd]()
    loaded: list[tuple[Config, RunData]] = []
    apart: list[RunToPlay] = []  # runs whose like cannot share a program
    one_value: list[RunToPlay] = []  # runs whose like cannot, with several values of options
    told: set[str] = set()

    def tell(why: str) -> None:
        if why and why not in told:
            told.add(why)
            log.info("runs are played one after another: %s", why)

    while left:
        first = next(iter(left))
        run = left[first]
        others = [n for n in left if n != first and _like(left[n], run)]
        with ExitStack() as held:
            together = {first: _prepared(run, loaded, held)}
            most, why = (1, "")
            if side_by_side and others and not any(_like(run, one) for one in apart):
                most, why = _room(together[first])
            configs = [run.config, *(left[n].config for n in others[: most - 1])]
            known = any(_like(run, one) for one in one_value)
            if not known and (problem := why_not_shared(configs, together[first].task)):
                one_value.append(run)
                known = True
                tell(problem)
            if known:
                others = [n for n in others if left[n].config.options == run.config.options]
            for number in others[: most - 1]:
                runner = _prepared(left[number], loaded, held)
                why = _why_apart(together[first], runner)
                if why:
                    runner.simulation.close()
                    break
                together[number] = runner
            if why:
                apart.append(run)
            tell(why)
            some = {number: left.pop(number) for number in together}
            ends |= dict(zip(together, _played(together, some), strict=True))
        for number in together:  # the small world that options are tried in has not shown all
            if isinstance(error := ends[number].error, NeedsNumber):
                one_value.append(run)
                tell(f"{run.config.method}: {error}")
                left[number] = some[number]
        for n, end in ends.items():
            if end.error and n not in left and not keep_going:
                raise _named(end.error, asked[n])
    return [ends[number] for number in range(len(asked))]


def _named(error: Exception, run: RunToPlay) -> Exception:
    """What ended a run; where training diverged the run is named, since there are others."""
    if not isinstance(error, Diverged):
        return error
    name = run.folder.name if run.folder else run.config.method
    return Diverged(error.clients, error.round, name)


def _like(one: RunToPlay, other: RunToPlay) -> bool:
    """Whether two runs differ in nothing but what may differ, as far as they were asked for."""
    same = {name: getattr(other.config, name) for name in (*MAY_DIFFER, "options")}
    objects = zip(one.config.objects, other.config.objects, strict=True)
    return (
        replace(one.config, **same) == other.config
        and differ_in_numbers(one.config, other.config)
        and all(a is b for a, b in objects)
    )


def _prepared(run: RunToPlay, loaded: list[tuple[Config, RunData]], held: ExitStack) -> Runner:
    """A run that is ready to be played; its folder is held, and rows are loaded once."""
    data = run.data
    if data is None:
        key = replace(run.config, method="", seed=0, lr=0.0, options={})
        data = next((found for config, found in loaded if config == key), None)
    if data is None:
        data = load_run_data(run.config)
        loaded.append((key, data))
    folder = run.folder
    if folder is not None and files.has_checkpoint(folder):
        held.enter_context(lock_folder(folder))
        return restored(folder, run.config.objects, data)
    runner = Runner(run.config, data, kept=folder is not None)
    if folder is not None:
        files.open_folder(folder, overwrite=True)
        held.enter_context(lock_folder(folder))
        runner.keep_in(folder)
    return runner


def _room(runner: Runner) -> tuple[int, str]:
    """How many such runs the device has room for, whole cohorts at a time; and why no more."""
    config, sim = runner.config, runner.simulation
    if not isinstance(sim.clients, LocalClients) or sim.engine != "vectorised":
        return 1, f"engine is '{config.engine}'"
    cohort = max(1, round(config.participation * len(runner.data.trained)))
    most = sim.clients.room // cohort
    if most < 2:
        return 1, (
            f"one run's {cohort} clients are as many as {sim.device} has room for at a time "
            f"({sim.clients.room})"
        )
    return most, ""


def _why_apart(first: Runner, other: Runner) -> str:
    """Why two runs cannot share a program; empty if they can."""
    one, two = first.config, other.config
    for field in fields(Config):
        name = field.name
        if name not in (*MAY_DIFFER, "options", "objects") and getattr(one, name) != getattr(
            two, name
        ):
            return f"they differ in {name.replace('_', '-')}"
    if not differ_in_numbers(one, two):
        return "they differ in options"
    for name in ("dropout", "deadline"):
        if getattr(one, name):
            return f"with --{name} their rounds have unequal numbers of clients"
    if first.data.encoder.form != other.data.encoder.form:
        return "their data are encoded to different shapes"
    if first.simulation.loop_mode != other.simulation.loop_mode:
        return "they have unequal work, and run their steps in different ways"
    kept, theirs = first.task.constants, other.task.constants
    if any(not torch.equal(kept[name], theirs[name]) for name in kept):
        return "frozen parameters are drawn with the seed"
    if one.lr != two.lr:
        if first.method.one_rate:
            return f"{one.method}: {first.method.one_rate}"
        if one.objects.factory() is not None or not built_in(one.method):
            return f"whether {one.method} computes with the learning rate itself is not known"
    x, y = first.simulation.client_data[:2]
    if other.simulation.client_data.x is not x:
        size = sum(part.numel() * part.element_size() for part in (x, y))
        if size > SHARE * free_memory(x.device):
            return f"their rows do not fit on {x.device} twice"
    return ""


def _played(runners: dict[int, Runner], runs: dict[int, RunToPlay]) -> list[RunEnd]:
    """Plays some runs to their end."""
    several = list(runners.values())
    watch = {number: runs[number].announce() for number in runs}
    works = [
        partial(runner.play, watch[number], runs[number].until)
        for number, runner in runners.items()
    ]
    for runner in several:
        runner.together = len(several)
    if len(several) == 1:
        outcomes = [_outcome(works[0])]
    else:
        # a first Ctrl-C is read by every run between its rounds
        with ctrl_c():
            rates = [runner.config.lr for runner in several]
            first = several[0]
            tasks = [g.task for g in first.simulation.groups if g.task is not first.task]
            networks = [first.task, *tasks] if first.config.models else []
            options = option_values([runner.config for runner in several], networks)
            program = SideBySide([runner.simulation for runner in several], rates, options)
            outcomes = program.play(works)
    ends = []
    for runner, found in zip(several, outcomes, strict=True):
        if isinstance(found, Interrupted) or (
            isinstance(found, BaseException) and not isinstance(found, Exception)
        ):
            raise found
        history, said = runner.progress.history, runner.said
        if isinstance(found, Exception):
            ends.append(RunEnd({}, history, said, found, runner))
        else:
            ends.append(RunEnd(found, history, said, None, runner))
    return ends


def _outcome(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | Exception:
    try:
        return work()
    except Exception as error:
        return error
