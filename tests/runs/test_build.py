"""From a configuration to network and method."""

from __future__ import annotations

import pytest
import torch

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg
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
