"""What hardly any federation lacks: tiny clients, missing classes, cohorts of one, strangers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor.core import tree
from fedtailor.core.form import Form
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData
from fedtailor.methods import METHODS
from tests.methods.worlds import QUICK, gap, make, models, play, simulate

# a row; three rows of one class; plenty; a row that is held out
LABELS = ([1], [2, 2, 2], [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1], [0, 0, 0, 0, 2, 2, 2], [1])
COHORTS = ([0], [1], [0, 1, 2, 3], [3], [0, 1])
RECIPE = Recipe(epochs=2, batch=4, lr=0.1)
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("fedproto", {"proto_from": "running"}),
    ("fedproto", {"keep": False, "predict": "own_nearest"}),
    ("fedtgp", {"lag": True}),
    ("fedrod", {"hyper": True}),
    ("feddbe", {"mean_from": "last"}),
    ("fedas", {"align_first": False, "trace": "mean"}),
    ("knn-per", {"choose": "fixed", "capacity": 2}),
    ("pfedsim", {"warmup": 0.0}),
    ("pfedgraph", {"difference": "head", "reference": "approx"}),
    ("fedselect", {"sends": "shared", "every": 1}),
    ("moon", {"buffer": 2}),
    ("feddistill", {"share_model": True, "targets": "logits"}),
    ("fedkd", {"literal": True}),
]


def four_classes() -> Task:
    """Of which the last is nobody's."""
    net = lambda: nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)
    )
    return classification(net, form=Form("table", (3,), 4))


def world() -> ClientData:
    maker = np.random.default_rng(5)
    y = np.concatenate([np.array(labels) for labels in LABELS])
    x = maker.normal(size=(len(y), 3)) + y[:, None]
    own = np.split(np.arange(len(y)), np.cumsum([len(labels) for labels in LABELS])[:-1])
    return ClientData.of(
        torch.tensor(x, dtype=torch.get_default_dtype()), torch.tensor(y), own, own, own
    )


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_nothing_is_infinite_whoever_there_is(name: str, options: dict[str, Any]) -> None:
    task, data = four_classes(), world()
    method = make(name, task, RECIPE, **QUICK.get(name, {}) | options)
    sim = simulate(method, data, task, held_out=torch.tensor([4]))
    for cohort in COHORTS:
        play(sim, [cohort])
        kept = {"server": sim.server, "states": sim.states.rows, "models": models(sim)}
        bad = [k for k, v in tree.flatten(kept).items() if not v.isfinite().all()]
        assert not bad
    said = sim.outputs()
    assert said.test.isfinite().all()
    assert sim.outputs(finetune=RECIPE).test.isfinite().all()
    assert sim.score().test.loss.isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_held_out_clients_change_nobody_else(name: str) -> None:
    """Four clients end as they would if the two that never train were not there."""
    task = four_classes()
    maker = torch.Generator().manual_seed(5)
    x = torch.randn(30, 3, generator=maker, dtype=torch.get_default_dtype())
    y = torch.arange(30) % 3
    rows = np.split(np.arange(30), [5, 8, 16, 21, 24])
    ends = []
    for count, held_out in ((4, None), (6, torch.tensor([4, 5]))):
        method = make(name, task, RECIPE, **QUICK.get(name, {}))
        sim = simulate(method, ClientData.of(x, y, *[rows[:count]] * 3), task, held_out=held_out)
        play(sim, [[0, 1, 2, 3], [0, 2], [1, 3]])
        ends.append({str(cid): model for cid, model in sim.models(ids=torch.arange(4))})
    assert gap(*ends) < 1e-6


# prototypes that nobody has trained long enough are far from all features
LONGER = QUICK | {"fedtgp": {"server_epochs": 100, "server_lr": 0.1}}


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_one_client_alone_learns(name: str, options: dict[str, Any]) -> None:
    task, data = four_classes(), world()
    alone = ClientData.of(data.x, data.y, *[[np.arange(4, 15)]] * 3)
    sim = simulate(make(name, task, RECIPE, **LONGER.get(name, {}) | options), alone, task)
    before = float(sim.score().test.loss.sum())
    play(sim, 4 if name == "knn-per" else 2)  # whose neighbours say little of few rows
    assert float(sim.score().test.loss.sum()) < before
