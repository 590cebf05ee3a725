"""The examples run as they are; by default with fewer rounds, with --slow with all of theirs."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedtailor
import fedtailor.methods.check.world as toy_world
from fedtailor.methods.check import laws

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ROUNDS = 2


def briefly(play: Callable[..., Any]) -> Callable[..., Any]:
    """The same with at most two rounds, of larger batches where the example names none.

    Everything else is as it says.
    """

    def played(*args: Any, rounds: int, batch: int = 50, **settings: Any) -> Any:
        return play(*args, rounds=min(rounds, ROUNDS), batch=batch, **settings)

    return played


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--slow"):
        monkeypatch.setattr(toy_world, "ROUNDS", ROUNDS)
        monkeypatch.setattr(laws, "LEARNING", ROUNDS)
        request.getfixturevalue("without_pictures")
        for name in ("run", "compare"):
            monkeypatch.setattr(fedtailor, name, briefly(getattr(fedtailor, name)))
    monkeypatch.chdir(tmp_path)  # what it writes must not land in the repository
    monkeypatch.syspath_prepend(path.parent)  # as for any script
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
