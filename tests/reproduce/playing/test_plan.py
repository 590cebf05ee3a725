"""What is to be run for several experiments together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.reproduce.playing.cells import Scale
from fedtailor.reproduce.playing.plan import plan_runs


@pytest.mark.parametrize("keep_models", [False, True])
@pytest.mark.parametrize("picture_first", [False, True])
def test_who_needs_the_models_of_a_run_goes_before_who_does_not(
    experiments: Any, tmp_path: Path, keep_models: bool, picture_first: bool
) -> None:
    table = experiments["fig1"]
    both = [table, replace(table, name="surface-of-fig1", shows="landscape")]
    plan = plan_runs(
        both[::-1] if picture_first else both, Scale(), tmp_path, keep_models=keep_models
    )
    assert len(plan.tasks) == 2  # each run once
    assert all(task.needs_models for task in plan.tasks)


def test_who_keeps_the_models_goes_before_who_does_not(experiments: Any, tmp_path: Path) -> None:
    kept = plan_runs([experiments["fig1"]], Scale(), tmp_path, keep_models=True)
    plan = plan_runs([experiments["table1"]], Scale(), tmp_path)
    plan.parts += kept.parts
    shared = {task.key for task in kept.tasks}
    assert {task.key for task in plan.tasks if task.keep} == shared
