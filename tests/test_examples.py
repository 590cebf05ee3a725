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

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ROUNDS = 2


def briefly(play: Callable[..., Any]) -> Callable[..., Any]:
    """The same with at most two rounds; everything else as the example says."""

    def played(*args: Any, rounds: int, **settings: Any) -> Any:
        return play(*args, rounds=min(rounds, ROUNDS), **settings)

    return played


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_example(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--slow"):
        monkeypatch.setattr(toy_world, "ROUNDS", ROUNDS)
        for name in ("run", "compare"):
            monkeypatch.setattr(fedtailor, name, briefly(getattr(fedtailor, name)))
    monkeypatch.chdir(tmp_path)  # what it writes must not land in the repository
    monkeypatch.syspath_prepend(path.parent)  # as for any script
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
