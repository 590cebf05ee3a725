"""Max pooling for compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from fedtailor.engine.loops.pooling import pooled
from fedtailor.engine.loops.recording import record


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 2},
        {"kernel_size": (1, 4)},
        {"kernel_size": (3, 2), "stride": 2},
        {"kernel_size": 3, "stride": (1, 2), "padding": 1},
        {"kernel_size": 2, "dilation": 2, "ceil_mode": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("height", [6, 7])  # windows side by side fit, or do not
def test_values_and_gradients(window: dict[str, Any], height: int) -> None:
    # many values are equal: the first one counts
    x = torch.randint(0, 4, (2, 3, height, 8)).double()
    assert torch.equal(pooled(x, **window), F.max_pool2d(x, **window))

    def loss(pool: Any) -> Any:
        return lambda x: (pool(x, **window) ** 2 + pool(x, **window)).sum()

    assert torch.equal(grad(loss(pooled))(x), grad(loss(F.max_pool2d))(x))


def test_what_is_no_number_is_passed_on() -> None:
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 1, 2] = torch.nan
    assert torch.equal(pooled(x, 2).isnan(), F.max_pool2d(x, 2).isnan())


def test_windows_side_by_side_are_elementary_operators() -> None:
    graph, _ = record(lambda x: [grad(lambda x: pooled(x, 2).sum())(x)], [torch.randn(1, 1, 4, 4)])
    assert not any("pool" in str(node.target) for node in graph.nodes)


def test_a_compiler_does_not_see_into_others() -> None:
    x = torch.randn(1, 1, 5, 5)
    graph, _ = record(lambda x: [grad(lambda x: pooled(x, 2).sum())(x)], [x])
    names = [str(node.target) for node in graph.nodes]
    assert "fedtailor.pool.default" in names and "fedtailor.unpool.default" in names
    assert not any("max_pool2d" in name for name in names)
