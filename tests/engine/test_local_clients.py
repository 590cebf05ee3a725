"""Blocks: chunks that do not fit, and what a round costs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientData, Simulation, mapper
from fedtailor.engine import chunk as engine_chunk
from fedtailor.engine.mapper import ClientContext, vectorised
from fedtailor.methods import METHODS, ditto, fedavg

pytestmark = pytest.mark.usefixtures("float64")

RECIPE = Recipe(epochs=1, batch=3, lr=0.1)
ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    "python": MemoryError(),
}


def world(clients: int = 9, rows: int = 5) -> ClientData:
    deck = iter(range(10**6))
    deal = lambda k: [np.array([next(deck) for _ in range(k)]) for _ in range(clients)]
    x = rng.normal(rng.key(0), clients * (rows + 4), 4)
    return ClientData.of(x, (x[:, 0] > 0).long(), deal(rows), deal(2), deal(2))


def make_task(width: int = 6) -> Task:
    return classification(lambda: nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)))


def flat(values: Tree) -> Tensor:
    return torch.cat([torch.zeros(0), *(leaf.flatten().double() for leaf in tree.leaves(values))])


class Cramped:
    """A mapper on a device with room for so many clients; counts how often there was too little."""

    def __init__(self, room: int, error: Exception) -> None:
        self.room, self.error, self.refused = room, error, 0

    def __call__(self, fn: Callable[[ClientContext], Any]) -> Callable[[ClientContext], Any]:
        def run(client: ClientContext) -> Any:
            found = vectorised(fn)(client)  # memory runs out late: all work is done by then
            if len(client.cid) > self.room:
                self.refused += 1
                raise self.error
            return found

        return run


def start(name: str = "ditto", chunk: int = 8, recipe: Recipe = RECIPE, **options: Any) -> Any:
    task = make_task()
    method = METHODS[name](task, recipe=recipe)
    return Simulation(method, world(), task, rounds=3, chunk=chunk, recipe=recipe, **options)


def play(simulation: Simulation) -> Tensor:
    reports = [simulation.step(torch.arange(9), post=True) for _ in range(2)]
    reports.append(simulation.step(torch.tensor([1, 4, 7]), post=True))
    scores = simulation.score(finetune=RECIPE)
    models = dict(simulation.models())
    assert [list(r.ids) for r in reports[:2]] == [list(range(9))] * 2
    return torch.cat(
        [
            flat(simulation.server),
            flat(simulation.states.rows),
            *(flat(models[i]) for i in range(9)),
            *scores.test,
            *(part for r in reports for part in (r.post.test.flatten(), *r.noisy.T)),
        ]
    )


PLACES = ("device", "host", "disk")


@cache
def halved(place: Any) -> Tensor:
    """What a run in chunks of two comes to."""
    simulation = start(chunk=2, place=place)
    found = play(simulation)
    simulation.close()
    return found


@pytest.mark.parametrize(
    (
        "kind",
        "place",
    ),  # every error, and every place: what is done about one does not see the other
    [
        pytest.param(
            kind, place, marks=[] if "gpu" in kind or place == "device" else pytest.mark.slow
        )
        for kind in ERRORS
        for place in PLACES
    ],
)
def test_a_chunk_that_does_not_fit_is_halved_for_good(
    kind: str, place: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = halved(place)
    cramped = Cramped(3, ERRORS[kind])
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", cramped)
    simulation = start(place=place)
    with caplog.at_level(logging.WARNING, "fedtailor"):
        assert torch.equal(play(simulation), wanted)
    assert simulation.chunk == 2
    assert cramped.refused == 2  # 8 and 4 clients; never tried again
    assert [r.getMessage() for r in caplog.records if r.name == "fedtailor"] == [
        "out of memory on cpu with 8 clients at a time: going on with 4",
        "out of memory on cpu with 4 clients at a time: going on with 2",
    ]
    simulation.close()


@pytest.mark.parametrize("name", ["fedavg", "fedfomo", "pfedhn", "scaffold"])
def test_memory_that_runs_out_later_leaves_the_round_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, simulation = start(name), start(name)
    wanted.step(torch.arange(9))
    simulation.step(torch.arange(9))
    for _ in range(2):
        wanted.step(torch.arange(9))
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", Cramped(3, ERRORS["gpu"]))
    for _ in range(2):
        simulation.step(torch.arange(9))
    torch.testing.assert_close(flat(simulation.server), flat(wanted.server), rtol=1e-9, atol=1e-9)
    rows = [flat(s.states.rows) for s in (simulation, wanted)]
    torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-9)
    assert simulation.round == 3 and simulation.chunk == 2


@pytest.mark.parametrize("what", ["score", "models"])
def test_scores_and_models_do_with_smaller_chunks_too(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = start()
    simulation.step(torch.arange(9))
    find: Callable[[], Tensor] = lambda: (
        simulation.score().test.loss
        if what == "score"
        else torch.stack([flat(model) for _, model in sorted(simulation.models())])
    )
    before = find()
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", Cramped(1, ERRORS["cpu"]))
    torch.testing.assert_close(find(), before, rtol=1e-12, atol=1e-12)
    assert simulation.chunk == 1


def test_scoring_has_chunks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = start()
    simulation.step(torch.arange(9))
    before = simulation.score().test.loss
    simulation.clients._scoring = 6
    cramped = Cramped(3, ERRORS["gpu"])
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", cramped)
    torch.testing.assert_close(simulation.score().test.loss, before, rtol=1e-12, atol=1e-12)
    assert cramped.refused == 1 and simulation.clients._scoring == 3
    assert simulation.chunk == 8  # that training takes more at a time is no matter


def test_models_that_everybody_is_sent_lie_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_chunk, "free_memory", lambda device: 300_000)
    alone, everybody = (start(name, chunk=0).clients for name in ("fedavg", "apple"))
    assert alone.chunk == everybody.chunk == 9
    # those of several runs are stacked, client by client
    assert everybody.room < 0.6 * alone.room


def test_noisy_gradients_of_a_failed_chunk_are_not_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = Recipe(batch=3, lr=0.1, dp_clip=1.0, dp_noise=0.5)
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", Cramped(3, ERRORS["cpu"]))
    report = start("fedavg", recipe=recipe).step(torch.arange(9))
    assert report.noisy[:, :2].tolist() == [[2, 1]] * 9  # 5 rows in batches of 3, once


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_one_client_that_does_not_fit_is_bad_input(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mapper.MAPPERS, engine, Cramped(0, ERRORS["gpu"]))
    simulation = start(engine=engine)
    before = flat(simulation.server)
    with pytest.raises(BadInput, match=r"44 parameters with batch 3 .* on cpu.*lower --batch") as e:
        simulation.step(torch.arange(9))
    assert "\n" not in str(e.value)
    assert torch.equal(flat(simulation.server), before)
    assert simulation.round == 0 and not bool(simulation.states.met.any())


def test_what_cannot_be_mapped_is_played_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = start()
    cramped = Cramped(3, RuntimeError("no rule for aten::strange"))
    monkeypatch.setitem(mapper.MAPPERS, "vectorised", cramped)
    simulation = start()
    for sim in (simulation, plain):
        if sim is plain:
            monkeypatch.undo()
        sim.step(torch.arange(9))
        sim.step(torch.arange(9))
    assert simulation.chunk == 8
    assert torch.allclose(flat(simulation.server), flat(plain.server), rtol=1e-5, atol=1e-6)
    (said,) = [r.getMessage() for r in caplog.records if r.name == "fedtailor"]
    assert "one after another" in said and "aten::strange" in said


def test_an_error_of_one_client_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("vectorised", "sequential"):
        monkeypatch.setitem(mapper.MAPPERS, engine, Cramped(0, RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        start().step(torch.arange(9))


class Made(TorchDispatchMode):
    """Bytes that operations make, what they write into or look at aside; the most at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
                self.total += leaf.untyped_storage().nbytes()
        return out


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_round_costs_its_cohort_not_the_federation(place: Any) -> None:
    """Ditto, whose clients keep a model each: 50 of 100 against 50 of 4,000."""
    made = []
    for clients in (100, 4_000):
        task = make_task(width=40)
        recipe = Recipe(batch=5)
        method = ditto(task, recipe=recipe)
        simulation = Simulation(method, world(clients), task, chunk=25, place=place, recipe=recipe)
        cohort = torch.arange(0, clients, clients // 50)
        simulation.step(cohort)  # the second round meets clients that have states
        with Made() as counted:
            simulation.step(cohort)
        simulation.close()
        made.append(counted)
    few, many = made
    model = 282 * 8
    assert few.largest >= 25 * 200 * 8  # chunks of models are counted
    assert many.largest <= max(few.largest, 8 * 4_000)  # a list of ids may be longer
    assert many.total - few.total < 40 * 8 * 4_000  # lists of ids, and by far no model each
    assert many.total - few.total < 4_000 * model / 4


def test_fedavg_keeps_nothing_of_ten_thousand() -> None:
    task = make_task()
    simulation = Simulation(fedavg(task, recipe=RECIPE), world(100), task)
    assert simulation.states.rows == {}
    assert [kept.rows for kept in simulation.client_states()] == [{}]
