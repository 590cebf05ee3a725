"""A release of torch that has changed its private interfaces costs time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import grad, vmap

import fedtailor
from fedtailor.core.steps.scan import RUNNER, Loop, left_by_torch
from fedtailor.engine.loops import recording, torch_internals
from fedtailor.engine.loops.runner import LoopRunner, possible
from fedtailor.engine.loops.torch_internals import leave_mappings
from tests.engine.loops.test_runner import PLAIN, apart, dense, play

CPU = torch.device("cpu")
TRIED = (
    recording.can_trace,
    torch_internals.has_compiler,
    torch_internals.can_leave_mappings,
)


@pytest.fixture(autouse=True)
def untried() -> Iterator[None]:
    """Every test tries the interfaces out anew, and leaves no finding to others."""
    for tried in TRIED:
        tried.cache_clear()
    yield
    for tried in TRIED:
        tried.cache_clear()


def _other_arguments(self: Any, operators: Any) -> Any:
    raise AssertionError("never called with what it needs")


@pytest.mark.parametrize("change", ["gone", "other arguments", "not seen", "no mapped tensors"])
def test_without_tracing_runs_go_on_step_by_step_and_say_so_once(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = play("ditto", dense, "plain", PLAIN)
    if change == "gone":
        monkeypatch.delattr(torch_internals.OperatorMode.__base__, "__enter__")
    elif change == "other arguments":
        monkeypatch.setattr(recording._Recorder, "__torch_dispatch__", _other_arguments)
    elif change == "not seen":
        monkeypatch.setattr(recording._Recorder, "__enter__", lambda self: self)
        monkeypatch.setattr(recording._Recorder, "__exit__", lambda self, *error: None)
    else:
        functorch = torch._C._functorch
        monkeypatch.delattr(functorch, "is_functorch_wrapped_tensor")
    for _ in range(2):
        assert apart(expected, play("ditto", dense, "traced", PLAIN)) == 0
    said = [r.getMessage() for r in caplog.records if "has changed" in r.getMessage()]
    assert len(said) == 1
    assert torch.__version__ in said[0] and "step by step" in said[0]


@pytest.mark.parametrize("change", ["gone", "does something else"])
def test_without_the_parts_of_mappings_torch_maps_and_says_so_once(
    change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = play("fedala", dense, "traced", PLAIN)
    torch_internals.can_leave_mappings.cache_clear()
    functorch = torch._C._functorch
    if change == "gone":  # for whoever looks for it now: torch itself has it
        monkeypatch.delattr(functorch, "CVmapInterpreterPtr")
    else:
        as_ever = functorch._remove_batch_dim
        monkeypatch.setattr(functorch, "_remove_batch_dim", lambda *given: as_ever(*given) + 1)
    for _ in range(2):
        assert apart(expected, play("fedala", dense, "traced", PLAIN)) == 0
    said = [r.getMessage() for r in caplog.records if "has changed" in r.getMessage()]
    assert len(said) == 1 and "mapped as torch does it" in said[0]


def test_a_loop_leaves_mappings_and_gradients_as_torch_lets_it() -> None:
    """Mapped once, twice, over another axis, over nothing of its own, and under a gradient."""
    one, rest = torch.rand(3), [torch.zeros(1)] * 4
    loop = Loop(lambda *given: {}, {"x": None}, {"y": None}, (), 1, None)

    def found(leave: Any) -> tuple[list[Any], list[torch.Tensor]]:
        seen: list[Any] = []

        def run(loop: Loop, tensors: Any) -> Any:
            seen.append((loop.axes, [t.shape for t in tensors]))
            return [tensors[0].sum(-1, keepdim=True) * torch.ones(3)]

        def go(x: torch.Tensor, y: torch.Tensor = one) -> torch.Tensor:
            return leave(loop, (x, y, *rest))[0]

        token = RUNNER.set(run)
        try:
            with torch.no_grad():
                x = torch.arange(24.0).reshape(2, 4, 3)
                results = [
                    go(one),
                    vmap(go)(x[0]),
                    vmap(vmap(go))(x),
                    vmap(vmap(go), in_dims=1, out_dims=1)(x),
                    vmap(lambda y: go(one, y))(x[0]),
                    vmap(lambda y: go(one) + y)(x[0]),
                    grad(lambda y: (go(one) * y).sum())(one),
                ]
        finally:
            RUNNER.reset(token)
        return seen, results

    (seen, results), (same, expected) = found(leave_mappings), found(left_by_torch)
    assert seen == same
    assert all(map(torch.equal, results, expected))


def test_without_the_compiler_steps_are_traced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import torch._inductor

    monkeypatch.delattr(torch._inductor, "compile")
    for _ in range(2):
        runner = LoopRunner("compiled", CPU)
        assert runner.loop_mode == "traced"
        runner.close()
    said = [r.getMessage() for r in caplog.records if "has changed" in r.getMessage()]
    assert len(said) == 1 and "not compiled" in said[0]


def test_with_this_release_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert possible("traced") == "traced" and possible("compiled") == "compiled"
    assert not caplog.records


PUT_OFF = """
import importlib
import sys
import torch
from torch.func import grad
from fedtailor.engine.loops import recording, torch_internals
from fedtailor.engine.loops.runner import LoopRunner

LoopRunner("plain", torch.device("cpu"))
assert grad(lambda x: (x * x).sum())(torch.ones(2)).tolist() == [2, 2]
assert "torch._dynamo" not in sys.modules, "a gradient loaded it"
early = torch._dynamo
importlib.import_module("torch._dynamo")
assert torch._dynamo is sys.modules["torch._dynamo"], "importing puts the real one there"
assert early.compiled_autograd.in_compiled_autograd_region is False, "as the real one has it"
assert early.is_compiling() is False
assert grad(lambda x: (x * x).sum())(torch.ones(2)).tolist() == [2, 2]
with early.compiled_autograd._disable():
    assert recording.can_trace()
torch_internals.put_off_compiler()
assert torch._dynamo is sys.modules["torch._dynamo"], "it is there already"
"""


def test_plain_steps_do_without_the_compiler_and_whoever_needs_it_gets_it() -> None:
    subprocess.run([sys.executable, "-c", PUT_OFF], check=True)


def test_a_client_is_alone_where_nothing_is_mapped_or_differentiated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[bool] = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        told.append(torch_internals.nothing_is_mapped())
        return x.sum()

    with torch.no_grad():
        ask(torch.ones(2))
        torch.func.vmap(ask)(torch.ones(2, 2))
        torch.func.grad(ask)(torch.ones(2))
    ask(torch.ones(2))  # somebody may differentiate this
    assert told == [True, False, False, False]
    monkeypatch.delattr(torch._C._functorch, "maybe_current_level")
    with torch.no_grad():
        assert not torch_internals.nothing_is_mapped()


def test_private_interfaces_are_used_in_one_module_only() -> None:
    private = ("torch._", "torch.fx.experimental", "torch.utils._", "_functorch", "make_fx")
    package = Path(fedtailor.__file__).parent
    users = {
        path.name
        for path in package.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in private)
    }
    assert users == {"torch_internals.py"}
