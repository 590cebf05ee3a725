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


def test_rounds_are_shown_beside_what_their_operations_suggest(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"loop_seconds": 6.0, "ratio": 60.0, "preparing_seconds": 20.2}
    avg = {"work": "fedavg, cnn", "seconds": 0.1, "expected": 1.0, "expected_from": "1 forward"}
    fml = {"work": "fml, cnn", "seconds": 0.25, "expected": 2.0, "expected_from": "2 forward"}
    rows = [
        times | avg | {"beside_fedavg": 1.0, "of_expected": 1.0},
        times | fml | {"beside_fedavg": 2.5, "of_expected": 1.25},
        {"name": "moon", "failed": "RuntimeError: no memory"},
    ]
    report = {"rows": rows, "command": "python", "commit": "abc", "device": "cpu"}
    monkeypatch.setattr(tables, "read", lambda name: report)
    lines = tables.beside_fedavg("any").splitlines()
    assert lines[2] == (
        "| fedavg, cnn | 6.00 | 0.100 | **60.0×** | 1.00 | 1.00 | +0 % | 20 | 1 forward |"
    )
    assert lines[3] == (
        "| fml, cnn | 6.00 | 0.250 | **60.0×** | 2.50 | 2.00 | +25 % | 20 | 2 forward |"
    )
    assert lines[4].startswith("| moon | failed | RuntimeError: no memory |")
    assert len({line.count("|") for line in lines[:5]}) == 1
