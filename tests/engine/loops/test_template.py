"""Steps for any number of clients, from two traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedtailor.engine.kernels.fusing import FusedOperators
from fedtailor.engine.loops.template import NotAlike, Template
from fedtailor.engine.loops.tracing import trace

Step = Callable[..., Any]


def convolved(w: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A step of SGD of each client."""

    def loss(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2).flatten(1)
        return F.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64), reduction="none").sum()

    one, other = vmap(grad(loss, (0, 1)))(w, b, x)
    return w - 0.1 * one, b - 0.1 * other


def product(w: Tensor, x: Tensor) -> tuple[Tensor]:
    """An update that is left to one product."""
    return (w + (x.mT @ x) * -0.1,)


def tensors(step: Step, clients: int) -> list[Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = {convolved: [(2, 3, 3, 3), (2,), (4, 3, 6, 6)], product: [(5, 5), (3, 5)]}[step]
    return [torch.randn(clients, *s, generator=make, dtype=torch.float64) for s in shapes]


def template(step: Step, few: int, many: int, carried: int) -> Template:
    with FusedOperators():
        one, other = (trace(step, tensors(step, n), carried) for n in (few, many))
    return Template.of(one, few, other, many)


@pytest.mark.parametrize(("step", "carried"), [(convolved, 2), (product, 1)])
def test_a_step_of_any_number_of_clients(step: Step, carried: int) -> None:
    made = template(step, 2, 7, carried)
    for clients in (1, 2, 3, 6, 7, 12):
        own = tensors(step, clients)
        expected = step(*own)
        made.program(clients)(*own)
        for found, right in zip(own[:carried], expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: (x + x.new_ones(len(x) + 1).sum(),),
        lambda x: (x + x.new_ones(len(x) ** 2).sum(),),
        lambda x: (x + 1 if len(x) == 2 else x * 2,),
        lambda x: (x + 1 if len(x) == 2 else x + 1 + 1,),
        lambda x: (x * float(len(x)),),
        lambda x: (x + torch.arange(2.0)[: len(x)].sum() * torch.tensor(float(len(x))),),
    ],
    ids=["one more", "square", "other operator", "more operators", "number", "constant"],
)
def test_what_differs_in_more_than_sizes_is_not_alike(step: Step) -> None:
    one, other = (trace(step, [torch.zeros(n)], 1) for n in (2, 5))
    with pytest.raises(NotAlike):
        Template.of(one, 2, other, 5)
