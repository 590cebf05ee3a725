"""Steps as flat lists of operators that work in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedtailor.engine.loops.tracing import (
    CompileLimit,
    can_compile,
    one_thread,
    trace,
    within,
)

CPU = torch.device("cpu")


def after(step, tensors: Sequence[Tensor], carried: int, times: int = 1) -> list[Tensor]:  # type: ignore[no-untyped-def]
    """The tensors after calling a step's program."""
    program = trace(step, tensors, carried)
    own = [t.clone() for t in tensors]
    for _ in range(times):
        program(*own)
    return own


def test_carried_tensors_change_in_place_and_others_do_not() -> None:
    step = lambda a, b, c: (a + c, b * c)
    found = after(step, [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)], 2, times=2)
    assert [float(t) for t in found] == [7, 18, 3]


def test_a_swap_reads_before_it_writes() -> None:
    found = after(lambda a, b: (b, a), [torch.tensor(1.0), torch.tensor(2.0)], 2)
    assert [float(t) for t in found] == [2, 1]


def test_a_view_of_another_input_is_copied_first() -> None:
    a, b = torch.arange(4.0).view(2, 2), torch.ones(2, 2)
    found = after(lambda a, b: (a + b, a.t()), [a, b], 2)
    assert torch.equal(found[0], a + 1) and torch.equal(found[1], a.t())


@pytest.mark.parametrize(
    "step",
    [
        lambda a, b: (a + b, b + a),
        lambda a, b: (a + b * 0.5, b + a * 0.5),
        lambda a, b: (a * 2, a.permute(1, 0)),
        lambda a, b: (a * 2, a.unsqueeze(0)[0]),
        lambda a, b: (a * 2, torch.split(a, 2)[0]),
        lambda a, b: (a + (a @ b) * -0.5, b + (a @ b) * -0.5),
        lambda a, b: (a + (b @ b) * -0.5, b * 2),
        lambda a, b: (a + (b.mT @ b.permute(1, 0)) * -0.5, b + a * 0.5),
    ],
    ids=["sum", "scaled", "permuted", "squeezed", "split", "product", "factor", "view"],
)
def test_what_is_carried_is_read_before_any_of_it_is_written(step) -> None:  # type: ignore[no-untyped-def]
    a, b = torch.arange(4.0).view(2, 2) + 1, torch.tensor([[5.0, -1.0], [0.5, 2.0]])
    for one, other in zip(after(step, [a, b], 2), step(a, b), strict=True):
        torch.testing.assert_close(one, other)


def test_what_stays_the_same_is_left_alone() -> None:
    program = trace(lambda a, b: (a, b + 1), [torch.zeros(2), torch.zeros(2)], 2)
    code = program.body.code  # type: ignore[attr-defined]
    assert code.count("aten.copy_.default(") == 1


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("scale", ["number", "tensor"])
def test_an_update_by_a_product_is_one_product_in_place(batched: bool, scale: str) -> None:
    shape = (3,) if batched else ()
    w, a, b = torch.randn(*shape, 4, 5), torch.randn(*shape, 4, 2), torch.randn(*shape, 2, 5)
    rate = torch.tensor(0.5)

    def step(w: Tensor, a: Tensor, b: Tensor, rate: Tensor) -> tuple[Tensor]:
        # as SGD writes it, through transpositions that undo each other
        gradient = (b.mT @ a.mT).mT
        return (w + (-0.5 if scale == "number" else -rate) * gradient,)

    program = trace(lambda *t: step(*t), [w, a, b, rate], 1)
    direct = trace(lambda w, a, b, r: (w + (a @ b) * -0.5,), [w, a, b, rate], 1)
    assert [u.name for u in direct.updates] == ["baddbmm_" if batched else "addmm_"]
    expected = w - 0.5 * (a @ b)
    for one in (program, direct):
        own = w.clone()
        one(own, a, b, rate)
        torch.testing.assert_close(own, expected)


def test_a_masked_update_leaves_others_alone_even_where_numbers_are_not_finite() -> None:
    w = torch.ones(2, 3, 3)
    a, b = torch.ones(2, 3, 1), torch.ones(2, 1, 3)
    b[1] = torch.inf
    active = torch.tensor([True, False])[:, None, None]

    def step(w: Tensor, a: Tensor, b: Tensor, active: Tensor) -> tuple[Tensor]:
        return (torch.where(active, w + (a @ b) * -1.0, w),)

    program = trace(step, [w, a, b, active], 1)
    assert len(program.updates) == 1
    program(w, a, b, active)
    assert float(w[0].abs().max()) == 0 and float(w[1].min()) == float(w[1].max()) == 1


def test_tracing_leaves_the_examples_alone() -> None:
    x = torch.zeros(3)
    trace(lambda x: (x + 1,), [x], 1)
    assert float(x.abs().sum()) == 0


def test_a_step_that_cannot_be_compiled_is_replayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler today\nand more")

    monkeypatch.setattr(torch._inductor, "compile", broken)
    program = trace(lambda x: (x + 1,), [torch.zeros(2)], 1, compiled=True)
    x = torch.zeros(2)
    program(x)
    assert x.tolist() == [1, 1]
    assert "no compiler today" in caplog.text and "and more" not in caplog.text


def test_compiling_has_a_limit_that_all_steps_share(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[float] = []

    def endless(*_: object) -> None:
        begun.append(time.perf_counter())
        while True:
            time.sleep(0.005)

    monkeypatch.setattr(torch._inductor, "compile", endless)
    limit = CompileLimit(0.05)
    for _ in range(2):
        program = trace(lambda x: (x + 1,), [torch.zeros(2)], 1, compiled=True, limit=limit)
        x = torch.zeros(2)
        program(x)
        assert x.tolist() == [1, 1]
    assert len(begun) == 1 and limit.left < 0
    assert caplog.text.count("--compile-limit") == 1
    left = [t for t in threading.enumerate() if t.name == "fedtailor-compile"]
    for thread in left:  # it was told to stop
        thread.join(5)
        assert not thread.is_alive()


def test_an_error_of_the_work_is_its_own() -> None:
    def late() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        within(9, late)


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(CPU), reason="no compiler here")
def test_compiled_steps_do_the_same() -> None:
    step = lambda w, x: (w + (x.mT @ x) * -0.1, x.relu().sum() + 0 * x)
    tensors = [torch.randn(4, 4), torch.randn(3, 4)]
    plain = after(step, tensors, 2)
    program = trace(step, tensors, 2, compiled=True)
    own = [t.clone() for t in tensors]
    program(*own)
    for one, other in zip(plain, own, strict=True):
        torch.testing.assert_close(one, other)


def test_threads_come_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError), one_thread():
        assert torch.get_num_threads() == 1
        raise ValueError
    assert torch.get_num_threads() == before
