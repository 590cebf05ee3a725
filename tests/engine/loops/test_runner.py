"""Every way of running loops gives the same result."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedtailor.core import rng, tree, wire
from fedtailor.core.method import ClientCount, Upload
from fedtailor.core.steps.scan import Loop, Steps, scan
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import flatten
from fedtailor.engine import ClientData, Simulation
from fedtailor.engine.kernels.reference import plain_convolution
from fedtailor.engine.loops import cuda_graph
from fedtailor.engine.loops import runner as runner_module
from fedtailor.engine.loops.cuda_graph import CapturedLoop, CapturePool, sizes
from fedtailor.engine.loops.runner import LoopRunner, Workload, choose_loop_mode
from fedtailor.methods import METHODS
from fedtailor.methods.prototypes import fedtgp
from tests.methods.worlds import QUICK

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ROWS = (31, 7, 24, 12, 30, 9, 18, 0, 25, 14, 8)
FEW = (14, 7, 17, 0, 9)  # tracing takes its time for each number of clients


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3)
    )


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip


def world(rows: Sequence[int] = ROWS) -> ClientData:
    draw = np.random.default_rng(0)
    total = sum(rows) + 10 * len(rows)
    x, y = draw.standard_normal((total, 4)), draw.integers(0, 3, total)
    ends = np.cumsum([0, *(n + 10 for n in rows)])
    cut = [np.arange(low, low + n + 10) for low, n in zip(ends, rows, strict=False)]
    parts = [[c[:n] for c, n in zip(cut, rows, strict=True)], [c[-10:-5] for c in cut]]
    return ClientData.of(torch.tensor(x), torch.tensor(y), *parts, [c[-5:] for c in cut])


class Buffered(LoopRunner):
    """What a GPU does, but for capturing."""

    def _prepared(self, loop: Loop, tensors: Sequence[Tensor], key: Any) -> Sequence[Tensor]:
        return self._captured(loop, tensors, key)


def play(
    method: str,
    net: Any,
    way: str,
    recipe: Recipe,
    rows: Sequence[int] = ROWS,
    **options: Any,
) -> dict[str, Tensor]:
    task: Task = classification(net)
    made = METHODS[method](task, recipe=recipe, **options)
    engine = "sequential" if way == "sequential" else "vectorised"
    fast = {"sequential": "plain", "buffered": "traced"}.get(way, way)
    sim = Simulation(
        made, world(rows), task, recipe=recipe, rounds=3, engine=engine, loop_mode=fast
    )  # type: ignore[arg-type]
    if way == "buffered":
        sim.clients.runner = Buffered("traced", CPU)  # type: ignore[attr-defined]
    for cohort in (range(len(rows)), [c for c in (1, 4, 7, 8, 9) if c < len(rows)]):
        sim.step(torch.tensor(cohort))
    scores = sim.score()
    found = {f"{cid}/{k}": v for cid, m in sim.models() for k, v in flatten(m).items()}
    sim.close()
    return found | {"loss": scores.test.loss, "correct": scores.test.correct.double()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one)


PLAIN = Recipe(epochs=2, batch=8, lr=0.1)


@pytest.mark.parametrize("way", ["traced", "buffered"])
@pytest.mark.parametrize(
    ("method", "net"),
    [("fedavg", dense), ("fedprox", normed), ("fedala", convolved)],
    ids=["fedavg", "fedprox", "fedala"],
)
def test_ways_agree_on_unequal_clients(method: str, net: Any, way: str) -> None:
    options = QUICK.get(method, {})
    expected = play(method, net, "sequential", PLAIN, FEW, **options)
    assert apart(expected, play(method, net, way, PLAIN, FEW, **options)) < 1e-9


# the buffers' way traces a step for several numbers of clients, which takes its time
@pytest.mark.parametrize("way", ["traced", pytest.param("buffered", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(batch=8, momentum=0.9, weight_decay=0.1, clip=0.5, lr_decay=0.9),
        Recipe(batch=8, optimizer="adamw", weight_decay=0.1),
        Recipe(batch=8, last="drop"),
        Recipe(batch=0),
        Recipe(batch=8, steps=3),
        pytest.param(Recipe(batch=8, dp_clip=0.5, dp_noise=0.7), marks=pytest.mark.slow),
    ],
    ids=["momentum", "adamw", "drop", "all rows", "steps", "private"],
)
def test_ways_agree_on_recipes(recipe: Recipe, way: str) -> None:
    expected = play("ditto", dense, "sequential", recipe, FEW)
    assert apart(expected, play("ditto", dense, way, recipe, FEW)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("way", ["traced", "buffered"])
@pytest.mark.parametrize("net", [normed, convolved], ids=lambda net: net.__name__)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_ways_agree_for_every_method(method: str, net: Any, way: str) -> None:
    expected = play(method, net, "sequential", PLAIN)
    assert apart(expected, play(method, net, way, PLAIN)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("net", [dense, convolved], ids=lambda net: net.__name__)
def test_compiled_steps_agree(net: Any) -> None:
    expected = play("ditto", net, "sequential", PLAIN)
    assert apart(expected, play("ditto", net, "compiled", PLAIN)) < 1e-9


SOME = ("fedala", "fedavg", "fedfomo", "pfedme")  # candidates, and gradients of gradients


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=[] if m in SOME else pytest.mark.slow) for m in sorted(METHODS)],
)
def test_fused_steps_agree_for_every_method(
    method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = QUICK.get(method, {})
    expected = play(method, convolved, "plain", PLAIN, FEW, **options)
    caplog.clear()
    calls: list[tuple[bool, int]] = []

    def counted(x: Tensor, w: Tensor, bias: Tensor, slide: Any, relu: bool, pool: int) -> Any:
        calls.append((relu, pool))
        return plain_convolution(x, w, bias, slide, relu, pool)

    monkeypatch.setattr("fedtailor.engine.kernels.convolutions.plain_convolution", counted)
    assert apart(expected, play(method, convolved, "fused", PLAIN, FEW, **options)) < 1e-9
    # nothing went a plainer way
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert (True, 2) in calls


def test_noise_is_accounted_for_though_steps_are_replayed() -> None:
    task = classification(dense)
    recipe = Recipe(batch=8, dp_clip=1.0, dp_noise=1.0)
    counts = []
    for way in ("plain", "traced"):
        made = METHODS["fedsam"](task, recipe=recipe)  # two gradients a step
        sim = Simulation(made, world((16, 8)), task, recipe=recipe, loop_mode=way)  # type: ignore[arg-type]
        counts.append([sim.step(torch.arange(2)).noisy.tolist() for _ in range(2)])
        sim.close()
    assert counts[0] == counts[1]
    assert counts[0][0] == [[2, 2, 0.5], [1, 2, 1.0]]


def flattened() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *dense())


@pytest.mark.parametrize("way", ["traced", "buffered"])
@pytest.mark.parametrize(
    ("method", "net"),
    # in several epochs, what a client's rows are below the layers that train is asked once
    [("fedavg", dense), ("fedavg", flattened), ("fedrep", dense)],
    ids=["all layers", "above none that train", "a head"],
)
def test_programs_are_made_once(method: str, net: Any, way: str) -> None:
    task = classification(net)
    sim = Simulation(METHODS[method](task, recipe=PLAIN), world(), task, loop_mode="traced")
    runner = sim.clients.runner  # type: ignore[attr-defined]
    if way == "buffered":
        runner = sim.clients.runner = Buffered("traced", CPU)  # type: ignore[attr-defined]
    everyone = torch.arange(len(ROWS))
    sim.step(everyone)
    made = dict(runner._programs)
    assert made
    sim.step(everyone)
    assert runner._programs == made
    sim.close()


def test_no_two_kinds_of_loops_ever_have_the_same_number() -> None:
    """Whoever remembers a number would take one for the other."""
    task, everyone = classification(dense), torch.arange(len(ROWS))
    sim = Simulation(METHODS["fedavg"](task, recipe=PLAIN), world(), task, loop_mode="traced")
    runner = sim.clients.runner  # type: ignore[attr-defined]
    given: list[int] = []
    for _ in range(2):
        sim.step(everyone)
        sim.score()
        given += [number for number, _ in runner._known.values()]
        runner.forget()  # as when memory runs out
    assert len(given) == 4 and len(set(given)) == 4  # one trains, one scores
    sim.close()


def test_a_step_that_closes_over_a_client_is_run_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = classification(dense)
    base = METHODS["fedavg"](task, recipe=PLAIN)

    def client(msg: Any, state: Any, data: Any, turn: Any) -> Any:
        from fedtailor.core.training import fit

        own = msg["params"]  # fetched from outside of `given`: differs from client to client
        far = lambda params, batch, given: (
            task.loss(params, batch)[0] + sum((params[k] - own[k] * data.n).sum() for k in own),
            {},
        )
        out = base.client(msg, state, data, turn)
        return out._replace(model=fit(task, own, data, turn, PLAIN, loss=far))

    for way in ("plain", "traced"):
        sim = Simulation(base._replace(client=client), world(), task, loop_mode=way)  # type: ignore[arg-type]
        sim.step(torch.arange(4))
        sim.close()
    assert "closes over a client" in caplog.text


def test_the_way_depends_on_the_work_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "can_compile", lambda device: True)
    few, some, many = Workload(10, 1), Workload(5_000, 250), Workload(10**6, 10**4)
    assert [choose_loop_mode(w, CPU, "auto") for w in (few, some, many)] == [
        "plain",
        "traced",
        "compiled",
    ]
    works = (few, some, many, Workload(10**7, 10**5))
    expected = ["plain", "plain", "traced", "compiled"]
    assert [choose_loop_mode(w, CUDA, "auto") for w in works] == expected
    assert choose_loop_mode(Workload(10**9, 1), CPU, "never") == "traced"
    assert choose_loop_mode(few, CPU, "always") == "compiled"
    assert choose_loop_mode(Workload(10**9, 10**9), torch.device("meta"), "auto") == "plain"
    assert choose_loop_mode(Workload(1_000, 50), CPU, "auto") == "plain"
    assert choose_loop_mode(Workload(1_000, 50, convolutions=True), CPU, "auto") == "traced"


def test_own_kernels_are_for_long_runs_with_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "has_kernels", lambda device: device.type == "cuda")
    monkeypatch.setattr(runner_module, "can_compile", lambda device: False)
    ways = [
        choose_loop_mode(Workload(10**6, steps, convolutions), CUDA, "auto")
        for steps, convolutions in ((1_999, True), (2_000, True), (2_000, False))
    ]
    assert ways == ["traced", "fused", "traced"]
    assert choose_loop_mode(Workload(10**6, 2_000, True), CUDA, "never") == "traced"
    assert choose_loop_mode(Workload(10**6, 2_000, True), CPU, "auto") == "traced"


def test_on_a_gpu_few_clients_are_traced_as_soon_as_many() -> None:
    """Launches take the time there, and a step of all has as many for ten as for a hundred."""
    for clients in (1, 10, 100):
        assert choose_loop_mode(Workload(1_200 * clients, 1_200), CUDA, "never") == "traced"
        assert choose_loop_mode(Workload(500 * clients, 500), CUDA, "never") == "plain"


def test_without_a_compiler_steps_are_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "can_compile", lambda device: False)
    assert choose_loop_mode(Workload(10**6, 10**4), CPU, "always") == "traced"
    assert "compiles" in caplog.text


def test_kernels_are_used_where_there_are_some_and_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    work = Workload(10, 1)
    assert choose_loop_mode(work, CPU, "fused") == "traced" and "no kernels for cpu" in caplog.text
    monkeypatch.setattr(runner_module, "has_kernels", lambda device: True)
    assert choose_loop_mode(work, CUDA, "fused") == "fused"
    assert choose_loop_mode(Workload(10**9, 10**9), CUDA, "auto") != "fused"


def test_captured_sizes_fall_to_one() -> None:
    for clients in (1, 2, 7, 20, 100):
        found = sizes(clients)
        assert found[0] == clients and found[-1] == 1
        assert all(a > b >= a // 3 for a, b in pairwise(found))


def test_fused_steps_are_captured_for_every_number_of_clients() -> None:
    task = classification(convolved)
    rows = (40, 24, 24, 16, 8)
    sim = Simulation(
        METHODS["fedavg"](task, recipe=Recipe(batch=8)), world(rows), task, loop_mode="fused"
    )
    sim.step(torch.arange(5))
    runner = sim.clients.runner  # type: ignore[attr-defined]
    assert [sorted(k._steps) for k in runner._programs.values()] == [
        [(1, False), (3, False), (4, False), (5, False)]
    ]
    sim.close()


def test_buffers_grow_with_the_number_of_steps() -> None:
    task = classification(dense)
    recipe = Recipe(batch=8)
    sim = Simulation(METHODS["fedavg"](task, recipe=recipe), world((8, 8, 40, 40)), task)
    runner = sim.clients.runner = Buffered("traced", CPU)  # type: ignore[attr-defined]
    plain = Simulation(METHODS["fedavg"](task, recipe=recipe), world((8, 8, 40, 40)), task)
    for cohort in ([0, 1], [2, 3], [0, 2]):
        sim.step(torch.tensor(cohort))
        plain.step(torch.tensor(cohort))
    kinds = [k for k in runner._programs.values() if isinstance(k, CapturedLoop)]
    assert max(k.capacity for k in kinds) == 5
    assert apart(sim.server["params"], plain.server["params"]) < 1e-12


def test_what_was_captured_is_gone_after_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    task = classification(dense)
    sim = Simulation(METHODS["fedavg"](task, recipe=Recipe(batch=8)), world(), task)
    runner = sim.clients.runner = Buffered("traced", CPU)  # type: ignore[attr-defined]
    sim.step(torch.arange(4))
    sim.score()
    captured = [weakref.ref(k) for k in runner._programs.values()]
    assert len(captured) > 1
    asked: list[torch.device] = []
    monkeypatch.setattr(
        runner_module, "release_gpu_memory", lambda device: asked.append(device) or gc.collect()
    )
    sim.close()
    assert asked == [CPU] and not any(ref() for ref in captured)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["traced", "compiled", "fused"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_on_a_gpu_ways_agree_too(method: str, way: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    from parity import compare

    assert compare(method, "batch-norm", way) < 1e-4


# --- a server's loops ---


def served(
    runner: LoopRunner | None, method: str, counts: Sequence[int], **options: Any
) -> dict[str, Tensor]:
    """The server after as many rounds as `counts` has entries: classes that clients have in each.

    Without a runner nobody runs loops in any way of its own.
    """
    task, clients, classes, width = classification(dense), 4, 3, 6
    made = METHODS[method](task, **options)
    server = made.init(ClientCount.of(torch.full((clients,), 9)), task.init(rng.key(0)), rng.key(1))
    for number, count in enumerate(counts):
        draw = torch.Generator().manual_seed(number)
        up: Any
        if method == "fedgen":
            heads = [tree.pick(task.init(rng.key(9, number, i)), task.head) for i in range(count)]
            rows = torch.randint(0, 4, (count, classes), generator=draw).double()
            each = {"head": tree.stack(heads), "rows": rows}
            up = Upload({"body": tree.drop(task.init(rng.key(2)), task.head)}, each=each)
        else:
            lot = torch.randperm(clients * classes, generator=draw).view(clients, classes)
            means = torch.randn(clients, classes, width, generator=draw)
            up = Upload(each={"classes": wire.maybe(lot < count, {"means": means})})
        turn = rng.Turn(rng.key(3, number), torch.tensor(number), torch.tensor(len(counts)))
        with torch.no_grad(), runner.running_alone() if runner else nullcontext():
            server = made.receive(server, torch.arange(clients), up, turn)
    return flatten(server)


SERVERS = {
    "fedtgp": {"server_epochs": 7, "server_batch": 4},
    "fedgh": {"server_epochs": 7, "server_batch": 4, "server_lr": 0.3},
    "fedgen": {"hidden": 8, "noise": 4, "generator_steps": 5, "generator_lr": 0.01},
}


@pytest.mark.parametrize("way", ["plain", "traced", "buffered", "fused"])
@pytest.mark.parametrize("method", SERVERS)
def test_ways_agree_at_a_server(method: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """With a last batch of one row, and of three; none of the prepared ones goes a plainer way."""
    counts = (4, 4) if method == "fedgen" else (9, 11)
    expected = served(None, method, counts, **SERVERS[method])
    runner = Buffered("traced", CPU) if way == "buffered" else LoopRunner(way, CPU)  # type: ignore[arg-type]
    found = served(runner, method, counts, **SERVERS[method])
    assert apart(expected, found) < 1e-12
    assert apart(expected, served(None, method, counts[:1], **SERVERS[method])) > 1e-3
    assert len(runner._programs) == (way != "plain")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    runner.close()


@pytest.mark.parametrize("way", ["traced", "buffered"])
@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("method", ["fedtgp", "fedgh"])
def test_other_numbers_of_uploaded_rows_need_no_other_program(
    method: str, batch: int, way: str
) -> None:
    options = SERVERS[method] | {"server_batch": batch}
    runner = Buffered("traced", CPU) if way == "buffered" else LoopRunner("traced", CPU)
    counts = (9, 12, 10, 0, 11, 9)
    assert (
        apart(served(None, method, counts, **options), served(runner, method, counts, **options))
        < 1e-12
    )
    (program,) = runner._programs.values()
    if way == "buffered":
        assert program.capacity == (7 * 3 if batch else 7)
    served(runner, method, (5, 8, 6, 7), **options)
    assert len(runner._programs) == 2  # one for up to 8 rows, one for up to 16
    runner.close()


def test_what_a_server_captures_does_not_hold_a_rounds_numbers(captures: list[str]) -> None:
    """One capture for three rounds, of which each has another margin."""
    runner = Buffered("traced", CPU)
    options = SERVERS["fedtgp"]
    margins = []
    keep = fedtgp.adaptive_margin

    def noted(*given: Any) -> Tensor:
        margins.append(float(keep(*given)))
        return keep(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedtgp, "adaptive_margin", noted)
        found = served(runner, "fedtgp", (9, 10, 12), **options)
    assert len(set(margins)) == 3
    assert captures == ["tried", "captured"]
    assert apart(served(None, "fedtgp", (9, 10, 12), **options), found) < 1e-12


def test_long_loops_of_a_server_are_traced_where_those_of_clients_are_too_few() -> None:
    few, many = ({"server_epochs": n, "server_batch": 4} for n in (33, 34))  # three steps each
    for options, programs in ((few, 0), (many, 1)):
        runner = LoopRunner("plain", CPU)
        found = served(runner, "fedtgp", (9,), **options)
        assert len(runner._programs) == programs
        assert apart(served(None, "fedtgp", (9,), **options), found) < 1e-12
        runner.close()


def test_a_servers_step_that_can_be_neither_mapped_nor_traced_is_run_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step(carry: Any, given: Any, now: Any, store: Any, notes: Any) -> Any:
        return {"w": carry["w"] * (2 if float(carry["w"]) < 5 else 3) + given["more"]}

    begun, given = {"w": torch.tensor(1.0)}, {"more": torch.tensor(1.0)}
    rows = torch.zeros(3, 1).long()
    steps = Steps.alone(rows, rows, rows[:, 0])
    for runner in (LoopRunner("traced", CPU), Buffered("traced", CPU)):
        for _ in range(2):
            with torch.no_grad(), runner.running_alone():
                found, _ = scan(step, begun, given, steps, ())
            assert float(found["w"]) == 22  # 3, 7, 22
        (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert "cannot be traced" in said
        caplog.clear()
        runner.close()


# --- steps that cannot be prepared ---


def branching(model: Any, x: Tensor, task: Task) -> Tensor:
    said = task.predict(model, x)
    return said * 2 if float(x.sum()) > 1e9 else said  # asks for a number


@pytest.mark.parametrize("way", ["traced", "buffered"])
def test_a_prediction_that_cannot_be_traced_is_no_crash(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = classification(dense)
    made = METHODS["fedavg"](task, recipe=PLAIN)
    made = made._replace(predict=lambda model, x: branching(model, x, task))
    fast = "traced" if way == "traced" else "plain"
    sim = Simulation(made, world(), task, recipe=PLAIN, loop_mode=fast)  # type: ignore[arg-type]
    if way == "buffered":
        sim.clients.runner = Buffered("traced", CPU)  # type: ignore[attr-defined]
    sim.step(torch.arange(3))
    expected = Simulation(made, world(), task, recipe=PLAIN, engine="sequential")
    expected.step(torch.arange(3))
    for _ in range(2):
        assert torch.allclose(sim.score().test.loss, expected.score().test.loss)
    sim.close()
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "test_runner.py, line" in said and "float(x.sum())" in said and "\n" not in said


def test_a_step_that_maps_but_cannot_be_traced_is_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no tracing of aten::strange today")

    expected = play("fedavg", dense, "sequential", PLAIN)
    monkeypatch.setattr("fedtailor.engine.loops.threads.trace", broken)
    assert apart(expected, play("fedavg", dense, "traced", PLAIN)) < 1e-9
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    # training and scoring, once each
    assert len(said) == 2 and all("aten::strange" in line for line in said)
    assert all("cannot be traced" in line for line in said)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_steps_are_captured_where_all_others_are_gone() -> None:
    """As when a loop gets longer: what was captured knows the old buffers."""
    pool, number = CapturePool.open(), torch.zeros(1, device=CUDA)
    torch.cuda.synchronize()
    for expected in (1, 2):
        replay = cuda_graph._capture(lambda: number.add_(1), pool)
        replay()
        assert number.item() == expected
        del replay


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Loops capture steps without a GPU: a replay is a call. What they did is listed."""
    did: list[str] = []
    made = CapturedLoop.__init__

    def with_pool(self: Any, loop: Any, tensors: Any, compiled: Any, *_: Any, **more: Any) -> None:
        pool = CapturePool("a pool", "a stream")
        made(self, loop, tensors, compiled, pool, fused=more.get("fused", False))

    def try_out(step: Callable[[], None], number: torch.Tensor, stream: Any) -> None:
        did.append("tried")
        number.zero_()
        step()

    def capture(step: Callable[[], None], pool: CapturePool) -> Callable[[], None]:
        did.append("captured")
        return step

    monkeypatch.setattr(CapturedLoop, "__init__", with_pool)
    monkeypatch.setattr(cuda_graph, "_try_out", try_out)
    monkeypatch.setattr(cuda_graph, "_capture", capture)
    monkeypatch.setattr(cuda_graph, "make_ready", lambda *_: 0)
    yield did


def refuses(*_: Any) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.usefixtures("captures")
def test_a_step_that_cannot_be_captured_is_replayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = play("fedavg", dense, "sequential", PLAIN)
    monkeypatch.setattr(cuda_graph, "_capture", refuses)
    assert apart(expected, play("fedavg", dense, "buffered", PLAIN)) < 1e-9
    assert "cannot be captured" in caplog.text and "when stream is capturing" in caplog.text


def test_what_is_tried_out_leaves_no_trace(captures: list[str]) -> None:
    """And every number of clients is tried out, where each has operators of its own."""
    expected = play("fedavg", dense, "sequential", PLAIN)
    assert apart(expected, play("fedavg", dense, "buffered", PLAIN)) < 1e-9
    assert captures == ["tried", "captured"] * (len(captures) // 2) and len(captures) > 2


def test_one_step_is_tried_out_for_all_numbers_of_clients(captures: list[str]) -> None:
    expected = play("fedavg", dense, "sequential", PLAIN)
    assert apart(expected, play("fedavg", dense, "fused", PLAIN)) < 1e-9
    assert captures.count("tried") < captures.count("captured")


def test_a_step_that_is_captured_only_when_tried_is_tried(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something new for a number of clients: nothing is said of it, and nothing is lost."""
    expected = play("fedavg", dense, "sequential", PLAIN)
    capture = cuda_graph._capture

    def after_trying(*given: Any) -> Any:
        if captures[-1:] != ["tried"]:
            refuses()
        return capture(*given)

    monkeypatch.setattr(cuda_graph, "_capture", after_trying)
    assert apart(expected, play("fedavg", dense, "fused", PLAIN)) < 1e-9
    assert captures.count("tried") == captures.count("captured") > 2


@pytest.fixture
def foresight(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Loops are foreseen as on a GPU; lists how many graphs are given away to have kernels made."""
    made: list[int] = []
    begin = LoopRunner.__init__

    def foreseeing(self: LoopRunner, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self.foresees = True

    monkeypatch.setattr(LoopRunner, "__init__", foreseeing)
    monkeypatch.setattr(runner_module, "make_early", lambda *graphs: made.append(len(graphs)))
    return made


@pytest.mark.parametrize(
    ("method", "net"),
    [("fedavg", dense), ("ditto", convolved), ("fedala", dense), ("centralised", dense)],
    ids=["fedavg", "ditto", "fedala", "centralised"],
)
def test_rounds_are_the_same_where_they_are_foreseen(
    method: str, net: Any, request: pytest.FixtureRequest
) -> None:
    options = QUICK.get(method, {})
    expected = play(method, net, "fused", PLAIN, FEW, **options)
    made = request.getfixturevalue("foresight")
    assert apart(expected, play(method, net, "fused", PLAIN, FEW, **options)) == 0
    assert len(made) == 1 and made[0] >= 2


@pytest.mark.parametrize("clients", [6, 200], ids=["any number", "some numbers"])
def test_steps_of_evaluations_are_prepared_with_those_of_the_first_round(
    clients: int, foresight: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    traced, alone = [], []
    trace = CapturedLoop._traced

    def listed(self: CapturedLoop, size: int, masked: bool, compiled: bool = False) -> Any:
        traced.append((self, size, masked))
        return trace(self, size, masked, compiled)

    monkeypatch.setattr(CapturedLoop, "_traced", listed)
    monkeypatch.setattr(cuda_graph, "make_ready", lambda *graphs: alone.append(graphs))
    task = classification(dense)
    made = METHODS["fedavg"](task, recipe=PLAIN)
    sim = Simulation(made, world([8] * clients), task, recipe=PLAIN, rounds=2, loop_mode="fused")
    everyone = torch.arange(clients)
    sim.step(everyone)
    first = len(traced)
    sim.step(everyone, post=True)
    sim.outputs()
    sim.outputs(part="train")
    sim.close()
    assert foresight == [first] and len(set(traced)) == len(traced) == first
    assert not alone


def test_a_step_that_is_wrong_stays_wrong() -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(7, 3)))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Simulation(METHODS["fedavg"](task), world(), task, loop_mode="traced").step(torch.arange(3))
