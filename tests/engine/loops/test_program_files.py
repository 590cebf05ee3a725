"""Tests of traced steps that other processes read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.engine import Simulation
from fedtailor.engine.loops import cuda_graph, program_files, threads, tracing
from fedtailor.engine.loops.program_files import ProgramFiles
from fedtailor.engine.loops.template import Template
from fedtailor.engine.loops.tracing import trace
from fedtailor.methods import METHODS
from tests.engine.loops.test_runner import apart, convolved, dense, world
from tests.methods.worlds import QUICK

pytestmark = pytest.mark.usefixtures("float64")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedtailor" / "programs"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were traced."""
    count = [0]

    def counted(*args: Any, **more: Any) -> Any:
        count[0] += 1
        return tracing.trace(*args, **more)

    monkeypatch.setattr(cuda_graph, "trace", counted)
    monkeypatch.setattr(threads, "trace", counted)
    return count


def play(
    method: str, net: Any, loop_mode: Any, lr: float = 0.1, keep: bool = True
) -> dict[str, Tensor]:
    task, recipe = classification(net), Recipe(batch=8, lr=lr)
    made = METHODS[method](task, recipe=recipe, **QUICK.get(method, {}))
    data = world()
    sim = Simulation(
        made, data, task, recipe=recipe, rounds=2, loop_mode=loop_mode, keep_programs=keep
    )
    for _ in range(2):
        sim.step(torch.arange(data.clients))
    found = {f"{cid}/{k}": v for cid, m in sim.models() for k, v in m.items()}
    sim.close()
    return found


@pytest.mark.parametrize(("net", "loop_mode"), [(convolved, "fused"), (dense, "traced")])
@pytest.mark.parametrize("method", ["fedavg", "fedala", "pfedme"])
def test_what_was_traced_once_is_read(
    method: str, net: Any, loop_mode: str, traced: list[int]
) -> None:
    first = play(method, net, loop_mode)
    assert traced[0]
    count = traced[0]
    assert apart(play(method, net, loop_mode), first) == 0
    assert traced[0] == count  # none
    assert apart(play(method, net, "plain"), first) < 1e-9


def test_methods_share_the_steps_that_are_the_same(traced: list[int]) -> None:
    play("fedavg", dense, "traced")
    count = traced[0]
    shared = play("fedper", dense, "traced")
    assert traced[0] == count
    assert apart(shared, play("fedper", dense, "plain")) < 1e-9


def test_another_number_another_program(traced: list[int]) -> None:
    play("fedavg", dense, "traced")
    count = traced[0]
    other = play("fedavg", dense, "traced", lr=0.2)
    assert traced[0] > count
    assert apart(other, play("fedavg", dense, "plain", lr=0.2)) < 1e-9


def test_nothing_is_kept_unless_asked_for(cache: Path) -> None:
    play("fedavg", dense, "traced", keep=False)
    assert not cache.exists()


def step(x: Tensor) -> tuple[Tensor]:
    return (x * 2 + x.new_ones(3),)


def filed(files: ProgramFiles, known_by: Any = "step", fn: Any = step) -> tuple[Tensor, bool]:
    x, notes = torch.zeros(2, 3), {"seen": 1}
    make: Callable[[], Template] = lambda: Template.fixed(trace(fn, [x], 1))
    template, there = files.found_or_made([known_by], [], notes, make)
    template.program(1)(x)
    return x, there


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_file_that_cannot_be_read_is_made_anew() -> None:
    files = ProgramFiles(CPU)
    assert not files.folder.exists()
    assert filed(files)[1] is False and filed(files)[1] is True
    whole = only(files.folder).read_bytes()
    only(files.folder).write_bytes(whole[: len(whole) // 2])
    x, there = filed(files)
    assert not there and x.eq(1).all()
    assert only(files.folder).read_bytes() == whole


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("target", "os::system"),
        ("target", "aten::no_such_operator"),
        ("op", "call_method"),
        ("dtype", "load"),
        ("dtype", "__builtins__"),
    ],
)
def test_nothing_but_operators_and_numbers_is_taken_from_a_file(place: str, word: str) -> None:
    files = ProgramFiles(CPU)
    filed(files)
    path = only(files.folder)
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["program"])
    line = next(line for line in told["lines"] if line[0] == "call_function")
    if place == "op":
        line[0] = word
    elif place == "target":
        line[2] = word
    else:
        line[4] = {"dict": {"dtype": {"dtype": word}}}
    save_file({}, path, {"program": json.dumps(told)})
    x, there = filed(files)
    assert not there and x.eq(1).all()


def test_tensors_that_a_step_closes_over_come_back() -> None:
    files = ProgramFiles(CPU)
    weight, store = torch.tensor([1.0, float("inf"), -2.0]), torch.arange(3.0)
    fn = lambda x: (x + weight + store,)
    example, found = torch.zeros(2, 3), []
    for shared in (store, store + 1):  # tensors of the store are whatever they are now
        template, there = files.found_or_made(
            [fn.__code__, weight], [shared], {}, lambda: Template.fixed(trace(fn, [example], 1))
        )
        x = torch.zeros(2, 3)
        template.program(1)(x)
        found.append((x[0].tolist(), there))
    inf = float("inf")
    assert found == [([1.0, inf, 0.0], False), ([2.0, inf, 1.0], True)]


def test_a_networks_own_parameters_are_in_no_file() -> None:
    files = ProgramFiles(CPU)
    layer = nn.Linear(3, 3)
    for _ in range(2):
        assert filed(files, fn=lambda x: (layer(x).detach(),))[1] is False
    assert not list(files.folder.glob("*"))


def test_a_folder_that_cannot_be_written_stops_nobody(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("in the way")
    for _ in range(2):
        x, there = filed(ProgramFiles(CPU))
        assert not there and x.eq(1).all()


def test_old_files_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_files, "KEPT", 2)
    files = ProgramFiles(CPU)
    for number in range(4):
        filed(files, number)
    assert len(list(files.folder.iterdir())) == 2

    other = files.folder.with_name("of-an-older-release")
    other.mkdir()
    (other / "some.safetensors").write_bytes(b"")
    os.utime(other, (0, 0))
    filed(files, 9)
    assert not other.exists()
