"""How committed results become tables of the docs."""

from typing import Any

import pytest

from tests.benchmarks.scripts import load


@pytest.fixture(scope="module")
def tables() -> Any:
    return load("tables")


def cell(status: str, mean: float | None, seeds: int) -> dict[str, Any]:
    paper = {"text": "94.00±0.50", "mean": 94.0}
    known = {"status": status, "mean": mean, "seeds": [{"main": mean}] * seeds, "paper": paper}
    return known | {"difference": -0.8, "outside": False}


def test_a_cell_says_how_many_of_its_seeds_there_are(tables: Any) -> None:
    assert tables._cell(cell("done", 93.2, 3), 3) == "93.20 ≈ / 94.00±0.50"
    assert tables._cell(cell("not finished", 93.2, 1), 3) == "93.20 (1 of 3 seeds) / 94.00±0.50"
    assert tables._cell(cell("not finished", None, 0), 3) == "not run / 94.00±0.50"
    assert tables._cell(cell("failed", None, 0), 3) == "failed / 94.00±0.50"
    diverged = cell("failed", None, 0) | {"reason": "client-4 diverged in round 14"}
    assert tables._cell(diverged, 3) == "diverged / 94.00±0.50"
    assert tables._cell(None, 3) == "–"
