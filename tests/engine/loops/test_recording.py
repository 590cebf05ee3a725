"""What is written down does the same again, and what cannot be written down is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor.engine.kernels.outline import Outline
from fedtailor.engine.loops.recording import DependsOnNumbers, record

Step = Callable[..., Sequence[Tensor]]
KEPT = torch.arange(3.0)


def changed_in_place(x: Tensor) -> list[Tensor]:
    y = x.clone()
    y[:, 0] = 5
    y.mul_(2).add_(x)
    torch._foreach_add_([y], 1.0)
    return [y]


def several_results(x: Tensor) -> list[Tensor]:
    values, places = x.sort(-1)
    one, two = values.split([1, 2], -1)
    return [one * 2 + two, places]


def by_a_constant(x: Tensor) -> list[Tensor]:
    three = torch.tensor(3.0)
    return [x * three.item() if three > 2 else x]


STEPS: dict[str, Step] = {
    "numbers": lambda x: [2 * x + 1, x.sum() / 3],
    "a constant": lambda x: [x * KEPT + torch.tensor([1.0, 2.0, 3.0])],
    "an input as it is": lambda x: [x, x.view(-1)[1:]],
    "slopes, mapped": lambda x: [vmap(grad(lambda row: (row.sin() ** 2).sum()))(x)],
    "whole numbers as places": lambda x: [x[:, torch.tensor([0, 2])], x.new_zeros(len(x), 2)],
    "in place": changed_in_place,
    "several results": several_results,
    "by a constant": by_a_constant,
}


@pytest.mark.parametrize("name", STEPS)
def test_the_same_operators_as_torchs_own_tracer_and_the_same_numbers(name: str) -> None:
    step = STEPS[name]
    x, other = torch.randn(2, 3), torch.randn(2, 3)
    graph = record(step, [x.clone()]).written()
    for at in (x, other):
        expected = step(at.clone())
        for one, two in zip(graph(at.clone()), expected, strict=True):
            assert torch.equal(one, two)
    theirs = make_fx(step)(x.clone())
    of = lambda g: [str(n.target) for n in g.graph.nodes if "aten" in str(n.target)]
    assert of(graph) == of(theirs)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(3, 4, 2), nn.GRU(5, 4, batch_first=True), nn.LSTM(5, 4, batch_first=True),
        nn.TransformerEncoderLayer(5, 1, 8, 0.0, batch_first=True), nn.LayerNorm(5),
        nn.BatchNorm1d(3, track_running_stats=False), nn.Embedding(7, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_layers_and_their_slopes(layer: nn.Module) -> None:
    x = torch.randn(2, 4, 3, 5)
    if isinstance(layer, nn.Embedding):
        x = torch.randint(0, 7, (2, 4, 3))
    params = {k: v.detach().expand(2, *v.shape).clone() for k, v in layer.named_parameters()}

    def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
        said = functional_call(layer, params, (x,))
        return ((said if isinstance(said, Tensor) else said[0]) ** 2).sum()

    def step(x: Tensor, *values: Tensor) -> list[Tensor]:
        slopes = vmap(grad(loss))(dict(zip(params, values, strict=True)), x)
        return list(slopes.values())

    at = [x, *params.values()]
    graph = record(step, [t.clone() for t in at]).written()
    torch.testing.assert_close(graph(*at), step(*at))


def test_autocast_casts_anew_in_every_step() -> None:
    w = torch.randn(3, 3, requires_grad=True)

    def step(x: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return [F.linear(x, w).detach()]

    with torch.autocast("cpu", torch.bfloat16):
        before = F.linear(torch.ones(1, 3), w)  # casts w, and keeps that
        graph = record(step, [torch.ones(1, 3)]).written()
    casts = [n for n in graph.graph.nodes if n.target is torch.ops.aten._to_copy.default]
    assert len(casts) == 2  # of x and of w
    assert torch.equal(graph(torch.ones(1, 3))[0], before)
    assert torch.is_autocast_cache_enabled()


def test_outlines() -> None:
    graph, _ = record(lambda x: [x.t() + 0.5], [torch.zeros(2, 3, dtype=torch.float64)])
    (turned,) = (n for n in graph.nodes if n.target is torch.ops.aten.t.default)
    expected = Outline(torch.Size([3, 2]), (1, 3), torch.float64, torch.device("cpu"), False)
    assert turned.meta["outline"] == expected


def settled_then_changed(x: Tensor) -> list[Tensor]:
    one = torch.tensor(1.0)
    view = one.view(1)
    view.copy_(x.sum().view(1))
    return [x * one.item()]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: [x * x.sum().item()],
        lambda x: [x if x.sum() > 0 else -x],
        lambda x: [x[x > 0]],
        lambda x: [x.nonzero()],
        lambda x: [x * torch.equal(x, x + 1)],
        lambda x: [x * torch.rand(()).item()],
        settled_then_changed,
    ],
)
def test_what_depends_on_numbers_is_refused(step: Step) -> None:
    with pytest.raises(DependsOnNumbers, match="asks for numbers that differ from step to step"):
        record(step, [torch.ones(2, 3)])


WITHOUT = """
import sys
import torch
from torch.func import grad, vmap
from fedtailor.engine.loops.recording import can_trace, record
from fedtailor.engine.loops.torch_internals import put_off_compiler
put_off_compiler()
assert can_trace()
record(lambda x: [vmap(grad(lambda row: (row * row).sum()))(x)], [torch.ones(2, 3)])
loaded = [name for name in ("torch._dynamo", "sympy", "torch._inductor") if name in sys.modules]
assert not loaded, loaded
"""


def test_the_compiler_is_not_loaded() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
