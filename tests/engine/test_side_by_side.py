"""Runs side by side are what they are alone: every method, other seeds, rates and rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.options import Option
from fedtailor.core.steps.run_numbers import RunNumber
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe, RunRate
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientData, Diverged, Simulation, draw_cohort, mapper
from fedtailor.engine.side_by_side import OptionValues, SideBySide
from fedtailor.methods import METHODS
from fedtailor.methods.describe import page
from tests.methods.worlds import QUICK, conv_net, mlp, ragged

pytestmark = pytest.mark.usefixtures("float64")

QUICKLY = (
    "local", "fedavg", "scaffold", "ditto", "fedrep", "fedala", "fedfomo", "pfedhn", "apfl", "cfl",
    "perfedavg-fo", "centralised", "fedavg-data",
)  # fmt: skip
ROUNDS = 2


def flat(values: Tree) -> Tensor:
    return torch.cat([torch.zeros(0), *(leaf.flatten().double() for leaf in tree.leaves(values))])


def recipe(lr: float) -> Recipe:
    return Recipe(epochs=1, batch=8, lr=RunRate(lr))


def make_task() -> Task:
    return classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def make(name: str, seed: int, lr: float, data: ClientData, **more: Any) -> Simulation:
    task = make_task()
    method = METHODS[name](task, recipe=recipe(lr), **QUICK.get(name, {}))
    return Simulation(method, data, task, seed=seed, rounds=ROUNDS, **more)


def played(sim: Simulation, lr: float) -> Tensor:
    """All that a run leaves behind, in a row."""
    found = []
    for number in range(ROUNDS):
        cohort = draw_cohort(sim.seed, number, torch.arange(sim.client_data.clients), 0.6)
        report = sim.step(cohort, post=True)
        post = [] if report.post is None else [report.post.test.flatten()]
        found += [*post, report.up.double(), report.down.double(), flat(report.notes)]
        said = sim.outputs()
        found += [said.test.flatten(), said.val.flatten()]
    found.append(sim.outputs(finetune=recipe(lr)).test.flatten())
    found += [flat(model) for _, model in sim.models()]
    found += [flat(states.rows) for states in sim.client_states()]
    return torch.cat([*found, flat(sim.server)])


Run = tuple[int, float, ClientData]


def both_ways(name: str, runs: list[Run], **more: Any) -> Iterator[tuple[Tensor, Any]]:
    """Each run alone, and beside the others."""
    alone = [played(make(name, *run, **more), run[1]) for run in runs]
    sims = [make(name, *run, **more) for run in runs]
    works: list[Callable[[], Any]] = [
        lambda sim=sim, run=run: played(sim, run[1]) for sim, run in zip(sims, runs, strict=True)
    ]
    together = SideBySide(sims, [run[1] for run in runs]).play(works)
    yield from zip(alone, together, strict=True)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICKLY else [pytest.mark.slow]) for n in METHODS]
)
def test_a_run_ends_as_if_it_were_alone(name: str) -> None:
    """Another seed, learning rate and rows at the clients, of whom some are drawn each round."""
    rate = 0.1 if name == "apple" else 0.03  # which refuses several rates
    for alone, together in both_ways(name, [(0, 0.1, ragged()), (1, rate, ragged(seed=3))]):
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


def test_what_computes_with_the_rate_itself_says_so() -> None:
    refusing = [name for name, made in METHODS.items() if made(make_task()).one_rate]
    assert refusing == ["apple"]
    (_, _), (alone, together) = both_ways("apple", [(0, 0.1, ragged()), (0, 0.03, ragged())])
    assert not torch.allclose(alone, together, rtol=1e-9, atol=1e-9)  # and is right


@pytest.mark.parametrize("more", [{"loop_mode": "traced"}, {"chunk": 2}, {"place": "host"}])
def test_it_does_not_matter_how_clients_are_played(more: dict[str, Any]) -> None:
    data = ragged()
    for alone, together in both_ways("ditto", [(0, 0.1, data), (1, 0.1, data)], **more):
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


OPTIONS = {f"{n}.{o.name}": o for n in METHODS for o in page(METHODS[n]).options if o.kind is float}
QUICK_OPTIONS = (
    "ditto.lam", "fedprox.mu", "plgu-lf.rho", "moon.mu", "fedala.eta", "pfedme.lam", "pfedme.eta",
    "apfl.alpha", "feddyn.alpha", "fedproto.lam",
)  # fmt: skip


def two_values(option: Option) -> list[float]:
    if option.search is None:
        usual = option.default or 0.5
        return [usual, 0.75 * usual]
    low, high = option.search.low, option.search.high
    return [low + share * (high - low) for share in (0.3, 0.6)]


def with_option(name: str, option: str, value: Any, task: Task) -> Any:
    return METHODS[name](task, recipe=recipe(0.1), **(QUICK.get(name, {}) | {option: value}))


def with_values(
    name: str, option: str, values: list[float], network: Callable[[], nn.Module], **more: Any
) -> list[Simulation]:
    task, data = classification(network), ragged(image=network is conv_net)
    methods = [with_option(name, option, value, task) for value in values]
    return [Simulation(method, data, task, rounds=ROUNDS, **more) for method in methods]


@cache  # several ways of playing side by side are held against them
def plainly(name: str, option: str, value: float, network: Callable[[], nn.Module]) -> Tensor:
    (sim,) = with_values(name, option, [value], network)
    return played(sim, 0.1)


def options_both_ways(
    name: str, option: str, values: list[float], network: Callable[[], nn.Module], **more: Any
) -> tuple[list[Tensor], list[Any]]:
    """Runs that differ in an option alone: plainly one after another, and side by side."""
    alone = [plainly(name, option, value, network) for value in values]
    late = lambda task: with_option(name, option, RunNumber.of(option, values), task)
    shared = OptionValues([{option: value} for value in values], late)
    beside = with_values(name, option, values, network, **more)
    works = [lambda sim=sim: played(sim, 0.1) for sim in beside]
    return alone, SideBySide(beside, options=shared).play(works)


@pytest.mark.parametrize(
    "named",
    [pytest.param(n, marks=[] if n in QUICK_OPTIONS else [pytest.mark.slow]) for n in OPTIONS],
)
def test_a_value_of_an_option_ends_as_if_it_were_alone(named: str) -> None:
    name, _, option = named.rpartition(".")
    alone, together = options_both_ways(name, option, two_values(OPTIONS[named]), mlp)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    if named in QUICK_OPTIONS:  # or equality would say nothing
        assert not torch.allclose(alone[0], alone[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("named", ["ditto.lam", "fedala.eta", "plgu-lf.rho"])
@pytest.mark.parametrize(
    ("network", "more"),
    [
        (mlp, {"loop_mode": "traced"}),
        (conv_net, {"loop_mode": "traced"}),
        (conv_net, {"loop_mode": "fused"}),  # without a GPU: the kernels' formulas in plain torch
        (mlp, {"chunk": 2}),
    ],
)
def test_options_are_inputs_of_prepared_steps(
    named: str,
    network: Callable[[], nn.Module],
    more: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, _, option = named.rpartition(".")
    alone, together = options_both_ways(name, option, [0.3, 0.9], network, **more)
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(alone[0], alone[1], rtol=1e-3, atol=1e-3)
    # no step had to go a plainer way
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_values_that_part_a_branch_do_not_share_a_call() -> None:
    with pytest.raises(TypeError, match="depends on 'eq"):
        options_both_ways("moon", "mu", [0.0, 1.0], mlp)


def test_runs_share_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = mapper.MAPPERS["vectorised"]

    def counting(fn: Any) -> Any:
        def mapped(client: Any) -> Any:
            sizes.append(len(client.cid))
            return real(fn)(client)

        return mapped

    monkeypatch.setitem(mapper.MAPPERS, "vectorised", counting)
    data = ragged()
    sims = [make("fedavg", seed, 0.1, data) for seed in range(3)]
    everyone = torch.arange(data.clients)
    SideBySide(sims).play([lambda sim=sim: sim.step(everyone) for sim in sims])  # type: ignore[misc]
    # each server's messages are made on their own, then all clients train in one call
    assert sizes == [data.clients] * 3 + [3 * data.clients]


def test_a_run_that_ends_first_leaves_the_others_what_was_prepared() -> None:
    """Several share it: the last one gives it back."""
    sims = [make("fedavg", seed, 0.1, ragged(), loop_mode="traced") for seed in (0, 1)]
    everyone, left = torch.arange(sims[0].client_data.clients), []

    def play(rounds: int) -> None:
        sim = sims[rounds - 1]
        for _ in range(rounds):
            sim.step(everyone)
        left.append(len(sim.clients.runner._programs))
        sim.close()

    SideBySide(sims).play([lambda: play(1), lambda: play(2)])
    assert left[0] > 0 and left[1] >= left[0]
    assert not sims[0].clients.runner._programs


def test_a_run_that_is_behind_catches_up() -> None:
    data, everyone = ragged(), torch.arange(6)
    ahead, behind = make("ditto", 0, 0.1, data), make("ditto", 1, 0.1, data)
    ahead.step(everyone)

    def work(sim: Simulation) -> Tensor:
        while sim.round < 3:
            sim.step(everyone)
        return flat(sim.server)

    found = SideBySide([ahead, behind]).play([lambda: work(ahead), lambda: work(behind)])
    for seed, server in enumerate(found):
        torch.testing.assert_close(
            server, work(make("ditto", seed, 0.1, data)), rtol=1e-9, atol=1e-9
        )


def test_one_that_diverges_leaves_the_others_alone() -> None:
    data, everyone = ragged(), torch.arange(6)
    sims = [make("fedavg", 0, lr, data) for lr in (0.1, inf, 0.2)]

    def work(sim: Simulation) -> Tensor:
        for _ in range(ROUNDS):
            sim.step(everyone)
        return flat(sim.server)

    first, second, third = SideBySide(sims, [0.1, inf, 0.2]).play(
        [lambda sim=sim: work(sim) for sim in sims]  # type: ignore[misc]
    )
    assert isinstance(second, Diverged)
    for lr, found in ((0.1, first), (0.2, third)):
        alone = work(make("fedavg", 0, lr, data))
        torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-9)


def test_too_little_memory_halves_the_chunks_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mapper.MAPPERS["vectorised"]

    def cramped(fn: Any) -> Any:
        def mapped(client: Any) -> Any:
            if client.message is not None and len(client.cid) > 6:
                raise RuntimeError("CUDA out of memory")
            return real(fn)(client)

        return mapped

    data, everyone = ragged(), torch.arange(6)
    alone = make("fedavg", 1, 0.1, data)
    alone.step(everyone)
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", cramped)
    sims = [make("fedavg", seed, 0.1, data) for seed in range(2)]
    SideBySide(sims).play([lambda sim=sim: sim.step(everyone) for sim in sims])  # type: ignore[misc]
    assert [sim.chunk for sim in sims] == [3, 3]
    torch.testing.assert_close(flat(sims[1].server), flat(alone.server), rtol=1e-9, atol=1e-9)


def test_stopping_at_once_ends_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    data, ended = ragged(), []

    def interrupted(fn: Any) -> Any:
        def mapped(client: Any) -> Any:
            if client.message is not None:
                raise KeyboardInterrupt
            return vectorised(fn)(client)

        return mapped

    vectorised = mapper.MAPPERS["vectorised"]
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", interrupted)
    sims = [make("fedavg", seed, 0.1, data) for seed in range(2)]

    def work(sim: Simulation) -> None:
        try:
            sim.step(torch.arange(6))
        finally:
            ended.append(sim.seed)

    with pytest.raises(KeyboardInterrupt):
        SideBySide(sims).play([lambda sim=sim: work(sim) for sim in sims])  # type: ignore[misc]
    assert sorted(ended) == [0, 1]
    assert all(sim.clients.joint is None for sim in sims)  # type: ignore[attr-defined]


def test_bad_input_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(fn: Any) -> Any:
        def mapped(client: Any) -> Any:
            raise BadInput("no")

        return mapped

    data = ragged()
    sims = [make("fedavg", seed, 0.1, data) for seed in range(2)]
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", refusing)
    found = SideBySide(sims).play([lambda sim=sim: sim.outputs() for sim in sims])  # type: ignore[misc]
    assert all(isinstance(one, BadInput) for one in found)
