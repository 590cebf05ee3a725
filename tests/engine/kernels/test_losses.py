"""Cross entropy with its gradient in one operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fedtailor.engine.kernels.losses import fused_cross_entropy


def rows(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (1, 0)])
def test_losses_and_their_gradients(mapped: tuple[Any, Any], order: int) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, 4, generator=draw, dtype=torch.float64)
    labels = torch.tensor([[0, 3, -100], [1, 1, 2], [2, 0, 3]])
    labels = labels if mapped[1] == 0 else labels[0]

    def loss(f: Any, times: int) -> Any:
        if times == 0:
            return lambda z, y: (f(z, y) ** 2).sum()  # each row's counts differently
        before = grad(loss(f, times - 1))
        return lambda z, y: (before(z, y) ** 2 * torch.arange(4.0)).sum()

    found, expected = (
        vmap(grad(loss(f, order - 1)), mapped)(logits, labels) for f in (fused_cross_entropy, rows)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_values() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, -100, 1, 0])
    torch.testing.assert_close(fused_cross_entropy(logits, labels), rows(logits, labels))
