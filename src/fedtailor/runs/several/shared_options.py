"""Runs that differ in numbers among their method's options: whether and how they share a program.

Whether a method can be made once for several values is found out by doing so, in a small world: its
runs must come to the same side by side as one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from fedtailor.core.method import Method
from fedtailor.core.steps.run_numbers import NeedsNumber, RunNumber
from fedtailor.core.task import Task
from fedtailor.core.tree import Tree
from fedtailor.engine import Diverged, Simulation, draw_cohort
from fedtailor.engine.culprit import culprit
from fedtailor.engine.side_by_side import OptionValues, SideBySide
from fedtailor.methods.check.failures import listening
from fedtailor.methods.check.world import (
    CLIENTS,
    apart,
    came_to,
    in_float64,
    toy_federation,
    toy_task,
)
from fedtailor.results.config import Config
from fedtailor.runs.build import make_method

ROUNDS = 2


def differ_in_numbers(one: Config, other: Config) -> bool:
    """Whether options, given to both, are the same but for numbers that are no counts."""
    return one.options.keys() == other.options.keys() and all(
        mine == theirs or type(mine) is type(theirs) is float
        for mine, theirs in ((one.options[name], other.options[name]) for name in one.options)
    )


def option_values(configs: Sequence[Config], networks: Sequence[Task]) -> OptionValues | None:
    """What differs among the options of runs that share a program; None if nothing does.

    Args:
      configs: of the runs; equal but for such numbers, as far as methods see.
      networks: of all clients where they differ, the server's first.
    """
    first = configs[0]
    names = [k for k in first.options if len({config.options[k] for config in configs}) > 1]
    if not names:
        return None
    late = {name: RunNumber.of(name, [c.options[name] for c in configs]) for name in names}

    def method(task: Task) -> Method:
        return make_method(replace(first, options=first.options | late), task, networks)

    return OptionValues([{name: c.options[name] for name in names} for c in configs], method)


def why_not_shared(configs: Sequence[Config], task: Task) -> str:
    """Why runs that differ in options cannot share a program; empty if they can."""
    if all(config.options == configs[0].options for config in configs):
        return ""
    # short turns with a common learning rate, so that none diverges early
    quick = [replace(c, seed=0, lr=0.05, epochs=1, batch=8, steps=min(c.steps, 2)) for c in configs]
    kind = "dense" if task.kind == "classification" else task.kind
    with in_float64():
        try:
            found = _differing(quick, toy_task("batch-norm" if task.batch_norm else kind))
        except NeedsNumber as error:
            found = str(error)
        except Exception as error:  # a method may do anything with what is no number
            found = culprit(error)
    return found and f"{configs[0].method} has to be made for each value of its options: {found}"


def _differing(configs: Sequence[Config], task: Task) -> str:
    """What is slower or comes out differently side by side: of two runs, in a small world."""
    networks = [task] if configs[0].models else []
    data, every = toy_federation(task.kind), option_values(configs, networks)
    assert every is not None
    other = next(i for i, config in enumerate(configs) if config.options != configs[0].options)

    def simulations() -> list[Simulation]:
        made = [make_method(configs[i], task, networks) for i in (0, other)]
        return [Simulation(method, data, task, rounds=ROUNDS) for method in made]

    usual, slower = list[str](), list[str]()
    with listening(usual):
        alone = [_played(sim) for sim in simulations()]
    with listening(slower):
        beside = simulations()
        program = SideBySide(
            beside, options=every._replace(of_runs=[every.of_runs[i] for i in (0, other)])
        )
        together = program.play([partial(_played, sim) for sim in beside])
    for found in together:
        if isinstance(found, Exception):
            raise found
    if slower and not usual:
        return slower[0]
    return next(filter(None, map(apart, together, alone)), "")


def _played(sim: Simulation) -> Tree:
    try:
        for number in range(ROUNDS):
            sim.step(draw_cohort(0, number, torch.arange(CLIENTS), 0.6))
    except Diverged:
        return {}
    return came_to(sim)
