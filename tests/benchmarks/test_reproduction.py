"""What is published of the papers' experiments."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import load

reproduction = load("reproduction")


@pytest.mark.parametrize("name", list(reproduction.PUBLISHED))
def test_what_is_published_is_declared_and_committed(name: str, tmp_path: Path) -> None:
    table = reproduction.PUBLISHED[name]
    asked = reproduction.ReproductionRequest(table.scale, table.only)
    (part,) = asked.plan([table.experiment], tmp_path, look_for_data=False).parts
    kept: dict[str, Any] = json.loads((reproduction.RESULTS / f"{name}.json").read_text())
    assert kept["experiment"] == table.experiment
    assert kept["scale"] == part.mark
    assert {(c["row"], c["column"]) for c in kept["cells"]} <= {
        (cell.row, cell.column) for cell, _ in part.cells
    }
    assert kept["commit"] and "H200" in kept["device"]


def test_nothing_else_is_committed() -> None:
    assert {p.stem for p in reproduction.RESULTS.iterdir()} == set(reproduction.PUBLISHED)


def test_cells_that_were_played_elsewhere_are_named() -> None:
    cells = [
        {"row": "A", "column": "x", "devices": ["cuda:0"]},
        {"row": "B", "column": "x", "devices": ["cpu"]},
        {"row": "C", "column": "x", "devices": []},
    ]
    assert reproduction.where(cells, "a GPU") == "a GPU; on two CPU cores: B, x"
    assert reproduction.where(cells[:1], "a GPU") == "a GPU"


def test_the_command_is_what_would_be_typed() -> None:
    table = reproduction.Table("fedala/table2", ["MNIST pat"], reproduction.Scale(rounds=5))
    assert (
        reproduction.command_of(table)
        == "fedtailor reproduce fedala/table2 --only 'MNIST pat' --rounds 5"
    )
