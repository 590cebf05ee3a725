"""Max pooling by PyTorch's own kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad
from torch.fx.experimental.proxy_tensor import make_fx

from fedtailor.engine.pooling import pooled


@pytest.mark.parametrize(
    "window",
    [
        {"kernel_size": 2},
        {"kernel_size": (3, 2), "stride": 2},
        {"kernel_size": 3, "stride": (1, 2), "padding": 1},
        {"kernel_size": 2, "dilation": 2, "ceil_mode": True},
    ],
    ids=str,
)
def test_values_and_gradients(window: dict[str, Any]) -> None:
    x = torch.randint(0, 4, (2, 3, 7, 8)).double()  # many values are equal: the first one counts
    assert torch.equal(pooled(x, **window), F.max_pool2d(x, **window))

    def loss(pool: Any) -> Any:
        return lambda x: (pool(x, **window) ** 2 + pool(x, **window)).sum()

    assert torch.equal(grad(loss(pooled))(x), grad(loss(F.max_pool2d))(x))


def test_a_compiler_does_not_see_into_it() -> None:
    x = torch.randn(1, 1, 4, 4)
    graph = make_fx(grad(lambda x: pooled(x, 2).sum()))(x)
    names = [str(node.target) for node in graph.graph.nodes]
    assert "fedtailor.pool.default" in names and "fedtailor.unpool.default" in names
    assert not any("max_pool2d" in name for name in names)
