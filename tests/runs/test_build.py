"""From a configuration to network and method."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg
from fedtailor.partition import Partition
from fedtailor.results.config import make_config
from fedtailor.runs.build import make_method


class WithoutHead(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_fedfomo_needs_validation_rows() -> None:
    task = classification(lambda: torch.nn.Linear(2, 2))
    for name in ("fedfomo", "fedfomo-ma", "pmixfed", "fedsim+mix"):
        with pytest.raises(BadInput, match="raise --val"):
            make_method(make_config(name, {"val": 0}, {}), task)


def _without_validation(lacking: int) -> Partition:
    """Four clients of digits, of whom some have no validation rows."""
    rows = np.arange(160).reshape(4, 40)
    val = [r[20:20] if k < lacking else r[20:30] for k, r in enumerate(rows)]
    train, test = [r[:20] for r in rows], [r[30:] for r in rows]
    return Partition(("ann", "bob", "cem", "dan"), train, val, test, scheme="own", seed=0)


@pytest.mark.parametrize("settings", [{"method": "fedfomo"}, {"method": "fedavg", "patience": 1}])
def test_a_partition_without_validation_rows_is_refused_where_they_are_needed(settings) -> None:
    how = {"data": "digits", "model": "linear", "rounds": 1}
    with pytest.raises(BadInput, match="no client has validation rows, but"):
        fedtailor.run(**settings, **how, partition=_without_validation(4))
    fedtailor.run("fedavg", **how, partition=_without_validation(4))


def test_a_comparison_without_validation_rows_is_refused_before_it_begins(tmp_path: Path) -> None:
    how = {"data": "digits", "model": "linear", "rounds": 1, "out": tmp_path / "c"}
    with pytest.raises(BadInput, match="no client has validation rows, but fedfomo"):
        fedtailor.compare("fedavg", "fedfomo", **how, partition=_without_validation(4))
    assert not list(tmp_path.rglob("history.jsonl"))


def test_clients_without_validation_rows_are_named(caplog: pytest.LogCaptureFixture) -> None:
    how = {"data": "digits", "model": "linear", "rounds": 1}
    with caplog.at_level(logging.WARNING, "fedtailor"):
        fedtailor.run("pmixfed", **how, partition=_without_validation(2))
        assert "no validation rows at ann, bob: pmixfed looks at them" in caplog.text
        caplog.clear()
        fedtailor.run("fedavg", **how, partition=_without_validation(2))
        fedtailor.run("pmixfed", **how, partition=_without_validation(0))
        assert "no validation rows" not in caplog.text


def test_what_a_method_refuses_names_it_once() -> None:
    task = classification(lambda: torch.nn.Linear(2, 2))
    with pytest.raises(BadInput, match=r"^method 'fedrep': nothing is left to share"):
        make_method(make_config("fedrep", {}, {}), task)
    with pytest.raises(BadInput, match=r"^FedPAC aligns features, but"):
        make_method(make_config("fedpac", {}, {}), classification(WithoutHead))


def test_a_factory_returns_a_method() -> None:
    def forgetful(task: Task, *, recipe: Recipe = Recipe()) -> None:
        """Makes one, and keeps it."""
        fedavg(task, recipe=recipe)

    with pytest.raises(BadInput, match=r"'.*forgetful' is a factory that returns NoneType: let it"):
        fedtailor.run(forgetful, data="digits", model="linear", clients=2, rounds=1)


def test_predictions_of_another_shape_are_named() -> None:
    def most_likely(task: Task, *, recipe: Recipe = Recipe()) -> Method:
        """Predicts classes, where outputs are asked for."""
        method = fedavg(task, recipe=recipe)
        return method._replace(predict=lambda model, x: task.predict(model, x).argmax(1))

    with pytest.raises(
        BadInput, match=r"outputs of shape \((\d+),\) for \1 examples: give \(\1, 10"
    ):
        fedtailor.run(most_likely, data="digits", model="linear", clients=2, rounds=1)
