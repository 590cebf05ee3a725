"""FedFomo's Table 1 with the same ten clients: the declared settings, and whose accuracy counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.results.config import config_of
from tests.benchmarks.scripts import load


@pytest.fixture(scope="module")
def same_ten() -> Any:
    return load("same_ten")


def test_only_who_takes_part_differs_from_the_declared_table(same_ten: Any) -> None:
    found = same_ten.configs("data", "cpu")
    assert list(found) == ["Local Training", "FedFomo (n=5)"]
    for config, _ in found.values():
        assert (config.clients, config.held_out, config.participation) == (100, 90, 1.0)
        assert (config.rounds, config.epochs, config.lr, config.partition) == (
            *(100, 5, 0.1),
            "noniid1:2",
        )
    assert found["FedFomo (n=5)"][1] == "92.10±5.20"


def test_the_accuracy_is_that_of_those_who_trained(same_ten: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = fedtailor.run(
        "local", out=folder, clients=8, held_out=5, rounds=1, model="mlp", batch=50, lr=0.1
    )
    config = replace(config_of(folder))
    same_ten.HELD_OUT = 5
    found = same_ten.of_the_ten(folder, config)
    trained = json.loads((folder / "history.jsonl").read_text())["cohort"]
    each = list(result["per_client"].values())
    assert found["clients"] == trained
    assert len(trained) == 3
    assert found["accuracy"] == pytest.approx(sum(each[i] for i in trained) / 3, abs=1e-6)
    assert found["worst"] == min(each[i] for i in trained)
    with pytest.raises(AssertionError):
        same_ten.of_the_ten(folder, replace(config, lr=0.2))
