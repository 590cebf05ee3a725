"""Steps that write their results where their inputs lie."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from fedtailor.engine.loops.tracing import trace

aten = torch.ops.aten


def test_updates_of_one_multiple_are_one_operator() -> None:
    def step(a, b, c, g):
        return a + 0.5 * g, b + 0.5 * (g + 1), c + 0.25 * g

    start = [torch.full((2,), float(i)) for i in range(4)]
    expected = step(*start)
    program = trace(step, start, 3)
    found = Counter(n.target for n in program.body.graph.nodes if n.op == "call_function")
    assert found[aten._foreach_add_.List] == 2 and not found[aten.add_.Tensor]
    program(*start)
    for one, other in zip(start, expected, strict=False):
        assert torch.equal(one, other)


def test_a_product_takes_its_scale_along() -> None:
    w, x, g = torch.ones(2, 3), torch.arange(8.0).view(4, 2), torch.arange(12.0).view(4, 3)
    program = trace(lambda w, x, g: (w + -0.5 * (x.t() @ g),), [w, x, g], 1)
    assert [(u.name, u.scale) for u in program.updates] == [("addmm_", -0.5)]
    expected = w - 0.5 * (x.t() @ g)
    program(w, x, g)
    assert torch.equal(w, expected)


def test_a_pull_and_a_product_are_added_one_after_the_other() -> None:
    n = 3
    w, anchor = torch.randn(n, 2, 4), torch.randn(n, 2, 4)
    g, x, few = torch.randn(n, 2, 5), torch.randn(n, 5, 4), torch.rand(n)

    def step(w, anchor, g, x, few):
        away = w - anchor
        pull = (few + 1).view(n, 1, 1).expand(n, 2, 4) * away
        return (w + -0.5 * (pull + torch.bmm(g, x)),)

    expected = step(w, anchor, g, x, few)[0]
    program = trace(step, [w, anchor, g, x, few], 1)
    assert [(u.name, u.scale) for u in program.updates] == [("baddbmm_", -0.5)]
    left = Counter(n.target for n in program.body.graph.nodes if n.op == "call_function")
    assert left[aten.addcmul_.default] == 1 and not left[aten.bmm.default]
    assert not left[aten.mul.Tensor]
    program(w, anchor, g, x, few)
    torch.testing.assert_close(w, expected)


def test_terms_of_one_tensor_are_not_added_at_the_same_time() -> None:
    a, g, h = (torch.randn(3) for _ in range(3))
    expected = a + 0.5 * (g.exp() + h.exp())
    program = trace(lambda a, g, h: (a + 0.5 * (g.exp() + h.exp()),), [a, g, h], 1)
    left = Counter(n.target for n in program.body.graph.nodes if n.op == "call_function")
    assert left[aten._foreach_add_.List] == 2
    program(a, g, h)
    torch.testing.assert_close(a, expected)


@pytest.mark.parametrize("turned", [False, True])
def test_a_factor_that_changes_later_is_not_copied(turned: bool) -> None:
    """An embedding and the layer after it: each one's gradient is a product with the other."""

    def step(a, b, g):
        return a + -0.5 * (g @ b), b + -0.5 * (g.t() @ a)

    def other_way(b, a, g):
        return step(a, b, g)[::-1]

    a, b, g = torch.randn(2, 4), torch.randn(3, 4), torch.randn(2, 3)
    fn, begun = (other_way, [b, a, g]) if turned else (step, [a, b, g])
    expected = fn(*begun)
    program = trace(fn, begun, 2)
    copied = [n for n in program.body.graph.nodes if n.target is aten.clone.default]
    assert len(program.updates) == 2 and len(copied) == 1
    program(*begun)
    torch.testing.assert_close(begun[:2], list(expected))


def test_a_factor_that_has_changed_by_then_is_copied() -> None:
    """The second one is pulled to 0 as well, which happens before any product is added."""

    def step(a, b, g):
        return a + -0.5 * (g @ b), b + -0.5 * (g.t() @ a + b.exp())

    begun = [torch.randn(2, 4), torch.randn(3, 4), torch.randn(2, 3)]
    expected = step(*begun)
    program = trace(step, begun, 2)
    assert len(program.updates) == 2
    program(*begun)
    torch.testing.assert_close(begun[:2], list(expected))


def test_decay_reads_the_old_value() -> None:
    a, b, g = torch.randn(3), torch.randn(3), torch.randn(3)

    def step(a, b, g):  # each is pulled to the other as well
        return a + -0.5 * (g + 0.1 * a + b * a), b + -0.5 * (g + 0.1 * b + a * b)

    expected = step(a, b, g)
    program = trace(step, [a, b, g], 2)
    program(a, b, g)
    torch.testing.assert_close((a, b), expected)


@pytest.mark.parametrize("scale", [(3, 1, 1), (1, 1, 1)])
def test_each_client_may_have_a_rate_of_its_own(scale: tuple[int, ...]) -> None:
    w, bias = torch.randn(3, 2, 4), torch.randn(3, 2)
    g, x, rate = torch.randn(3, 2, 5), torch.randn(3, 5, 4), torch.rand(scale)

    def step(w, bias, g, x, rate):
        small = rate.expand(3, 1, 1)[:, :, 0]
        return w + (-rate) * torch.bmm(g, x), bias + (-small) * g.sum(2)

    expected = step(w, bias, g, x, rate)
    program = trace(step, [w, bias, g, x, rate], 2)
    assert [u.name for u in program.updates] == ["baddbmm_"]
    program(w, bias, g, x, rate)
    torch.testing.assert_close((w, bias), expected)
