"""The conformance suite: what every method must hold, ours and yours.

fedtailor check fedala
fedtailor check my_package.my_module:my_method --set mu=0.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedtailor.core.errors import BadInput, CohortTooSmall
from fedtailor.core.form import TaskKind
from fedtailor.core.options import shortened
from fedtailor.core.task import TASKS
from fedtailor.engine import Diverged
from fedtailor.methods.check import laws, whole_runs
from fedtailor.methods.check.failures import explained
from fedtailor.methods.check.world import (
    TASK_OF,
    CheckFailed,
    Trial,
    in_float64,
    toy_federation,
    toy_task,
)
from fedtailor.methods.describe import Factory

__all__ = ["CheckResult", "Trial", "check_method", "tasks_of", "toy_federation", "toy_task"]

Check = Callable[[Trial], None]

LAWS: tuple[Check, ...] = (
    laws.check_page,
    laws.check_pure,
    laws.check_state,
    laws.check_wire,
    laws.check_engines,
    laws.check_traced,
    laws.check_absent,
    laws.check_personal,
    laws.check_no_leak,
    laws.check_learns,
    laws.check_not_disabled,
)
RUNS: tuple[Check, ...] = (
    whole_runs.check_resume,
    whole_runs.check_files,
    whole_runs.check_finetune,
    whole_runs.check_private,
    whole_runs.check_networks,
)
# what the kind of task may change
TASK_LAWS: tuple[Check, ...] = (
    laws.check_state,
    laws.check_engines,
    laws.check_traced,
    laws.check_personal,
    laws.check_no_leak,
    laws.check_learns,
)
# by network; DP-SGD does without BatchNorm
PLAN: dict[str, tuple[Check, ...]] = {
    "dense": LAWS + RUNS,
    "batch-norm": LAWS + RUNS[:3],
    **dict.fromkeys(TASK_OF, TASK_LAWS),
}
# takes a minute or more
WITH_COMPILER = PLAN | {"dense": (*LAWS, laws.check_compiled, *RUNS)}


class CheckResult(NamedTuple):
    """What one check found."""

    check: str  # what was looked at
    passed: bool  # whether it holds
    detail: str  # what went wrong, if it does not


def tasks_of(factory: Factory, **options: Any) -> dict[TaskKind, str]:
    """Each kind of task with the reason why a method does not have it; empty where it does.

    Example:
      >>> from fedtailor.methods import METHODS
      >>> tasks_of(METHODS["fedavg"])
      {'classification': '', 'regression': '', 'survival': ''}
    """
    made = {k: factory(toy_task(k if k in TASK_OF else "dense"), **options) for k in TASKS}
    return {kind: method.refuses.get(kind, "") for kind, method in made.items()}


def check_method(
    factory: Factory,
    *,
    engine: str = "vectorised",
    plan: Mapping[str, tuple[Check, ...]] | None = None,
    **options: Any,
) -> list[CheckResult]:
    """Runs every check on every network, in float64.

    Args:
      factory: makes the method from a task, e.g. `fedtailor.METHODS["fedala"]`.
      engine: that methods are played with; `sequential` asks nothing of mapping.
      plan: which checks on which network; None has all.
      options: hyper-parameters, if not the defaults.

    Raises:
      BadInput: it needs more clients in a round than take part here.

    Example:
      >>> from fedtailor.methods import METHODS
      >>> all(result.passed for result in check_method(METHODS["local"]))
      True
    """
    if not callable(factory):
        raise BadInput(
            f"factory is {shortened(factory)}: give a function, e.g. fedtailor.METHODS['fedala']"
        )
    results: list[CheckResult] = []
    told: set[str] = set()

    def note(check: str, problem: str) -> None:
        again = problem in told and bool(problem)
        told.add(problem)
        results.append(CheckResult(check, not problem, "the same as above" if again else problem))

    with in_float64():
        for network, checks in (PLAN if plan is None else plan).items():
            try:
                trial = Trial(factory, options, network, engine)
            except Exception as error:  # a stranger's factory may raise anything
                why = str(error) if isinstance(error, BadInput) else explained(error)
                note(f"it can be built [{network}]", why)
                continue
            refused = trial.method.refuses.get(trial.task.kind)
            if refused:
                note(f"it refuses {network}: {refused}", "")
                continue
            for check in checks:
                note(f"{check.__doc__} [{network}]", _problem(check, trial))
    return results


def _problem(check: Check, trial: Trial) -> str:
    """Why a check does not hold; empty if it does."""
    try:
        check(trial)
    except CheckFailed as error:
        return str(error)
    except CohortTooSmall as error:  # says nothing about the method
        raise BadInput(f"{error}; in checks, five of eight clients take part") from None
    except (BadInput, Diverged) as error:  # say themselves what is wrong
        return str(error)
    except Exception as error:  # a stranger's method may raise anything
        return explained(error)
    return ""
