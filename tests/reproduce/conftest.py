"""A small paper of our own, and what its experiments came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtailor.reproduce import reproduce
from fedtailor.reproduce.declared.declare import read_papers
from fedtailor.reproduce.declared.schema import Experiment

PAPERS = Path(__file__).parent / "papers"


@pytest.fixture(scope="session")
def experiments() -> dict[str, Experiment]:
    """The declared experiments by name."""
    return {e.name: e for e in read_papers(PAPERS)["tiny"].experiments}


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """(folder, outcomes) of a table and a figure that share runs, as in the paper."""
    out = tmp_path_factory.mktemp("reproduction")
    found = reproduce("tiny/table1", "tiny/fig1", papers=PAPERS, out=out, device="cpu")
    return out, found
