"""Small federations on Ray workers and on one machine, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine import RoundReport, Simulation
from fedtailor.engine.ray.clients import RayClients
from fedtailor.engine.ray.cluster import BuildGroups, Cluster
from fedtailor.methods.check.world import CLIENTS, NETWORKS, toy_federation
from fedtailor.methods.find import find

ray = pytest.importorskip("ray")  # tests that import this are skipped without it

RECIPE = Recipe(epochs=1, batch=8, lr=0.1)
QUICK: dict[str, dict[str, Any]] = {
    "fedavg-c": {"F": 1},
    "fedprox-c": {"F": 1},
    "fedrep": {"head_epochs": 2},
    "pfedme": {"K": 2},
    "fedala": {"max_ala_epochs": 3},
    "pfedhn": {"hidden": 8, "depth": 1},
}
COHORTS = ([0, 2, 3, 5, 7], [1, 2, 6], [5], [0, 1, 2, 3, 4, 5, 6, 7])  # [5]: one worker is idle


def mostly_slow(names: Any, fast: tuple[str, ...]) -> list[Any]:
    """Starting a worker takes seconds."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


def builder(
    name: str, options: dict[str, Any], recipe: Recipe = RECIPE, network: str = "dense"
) -> BuildGroups:
    """Travels as code: workers cannot import tests."""

    def build(device: str) -> list[Any]:
        task = classification(NETWORKS[network], device=device)
        return [(find(name)(task, recipe=recipe, **options), task, torch.arange(CLIENTS))]

    return build


def start(
    name: str,
    *,
    workers: int = 0,
    build: BuildGroups | None = None,
    recipe: Recipe = RECIPE,
    **how: Any,
) -> Simulation:
    """With no workers on this machine, in chunks of three."""
    build = build or builder(name, QUICK.get(name, {}), recipe)
    (method, task, _), *others = build("cpu")
    cluster = Cluster(build, workers) if workers else None
    return Simulation(
        method,
        toy_federation(),
        task,
        rounds=len(COHORTS),
        chunk=3,
        recipe=recipe,
        others=others,
        cluster=cluster,
        **how,
    )


def ray_clients(simulation: Simulation) -> RayClients:
    assert isinstance(simulation.clients, RayClients)
    return simulation.clients


def report_of(report: RoundReport) -> Tree:
    post = report.post
    assert post is not None
    return {
        "ids": report.ids,
        "taken": report.taken,
        "up": report.up,
        "down": report.down,
        "noisy": report.noisy,
        "post": {"test": post.test, "val": post.val},
        "notes": {k: v for k, v in report.notes.items() if not k.endswith("/")},
    }


def outcome(simulation: Simulation, reports: list[RoundReport]) -> dict[str, Tensor]:
    models = dict(simulation.models(RECIPE))
    scores = simulation.score()
    some = simulation.score(torch.tensor([6, 1]), part="train", finetune=RECIPE)
    kept = {
        str(i): {"ids": k.ids, "rows": k.rows} for i, k in enumerate(simulation.client_states())
    }
    return tree.flatten(
        {
            "server": simulation.server,
            "states": kept,
            "models": {str(i): models[i] for i in sorted(models)},
            "scores": {"loss": scores.test.loss, "right": scores.val.correct},
            "some": {"loss": some.test.loss},
        }
        | {f"report-{i}": report_of(r) for i, r in enumerate(reports)}
    )


def play(
    simulation: Simulation, between: Callable[[int], None] = lambda number: None
) -> dict[str, Tensor]:
    reports = []
    for number, cohort in enumerate(COHORTS):
        between(number)
        reports.append(simulation.step(torch.tensor(cohort), post=True))
    between(len(COHORTS))
    found = outcome(simulation, reports)
    simulation.close()
    return found


def agree(one: dict[str, Tensor], two: dict[str, Tensor], within: float = 1e-9) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=within, atol=within, msg=lambda m, name=name: f"{name}: {m}"
        )


def kill(simulation: Simulation, *numbers: int) -> None:
    for number in numbers:
        ray.kill(ray_clients(simulation)._slots[number].actor)
