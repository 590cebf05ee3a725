"""What the server trains on rows that clients uploaded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.task import Batch, weighted_mean
from fedtailor.core.tree import Tree
from fedtailor.methods.parts.server_training import train_on_rows, uploaded_rows


def linear(theta: Tree, some: Batch, given: Tree) -> Tensor:
    said = F.linear(some.x, theta["weight"], theta["bias"])
    return weighted_mean(F.cross_entropy(said, some.y, reduction="none"), some)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("batch", [0, 4, 100])
def test_it_is_sgd_over_shuffled_rows(batch: int) -> None:
    layer = nn.Linear(5, 3)
    begun = {k: v.detach().clone() for k, v in layer.named_parameters()}
    x, y = torch.randn(11, 5), torch.arange(11) % 3
    found = train_on_rows(linear, begun, (x, y), epochs=3, batch=batch, lr=0.2, key=rng.key(7))
    step = torch.optim.SGD(layer.parameters(), lr=0.2)
    for epoch in range(3):
        order = rng.permutation(rng.fold(rng.key(7), epoch), 11)
        for some in order.split(batch or 11):
            step.zero_grad()
            F.cross_entropy(layer(x[some]), y[some]).backward()
            step.step()
    for k, v in layer.named_parameters():
        torch.testing.assert_close(found[k], v.detach())
        assert not torch.equal(found[k], begun[k])


def test_without_rows_or_rate_nothing_moves() -> None:
    begun = {"weight": torch.randn(3, 5), "bias": torch.zeros(3)}
    how = {"epochs": 2, "batch": 2, "key": rng.key(0)}
    none = train_on_rows(linear, begun, (torch.zeros(0, 5), torch.zeros(0).long()), lr=1.0, **how)
    still = train_on_rows(linear, begun, (torch.ones(4, 5), torch.arange(4) % 3), lr=0.0, **how)
    for found in (none, still):
        assert all(torch.equal(found[k], begun[k]) for k in begun)


def test_rows_are_the_classes_that_clients_have() -> None:
    means = torch.arange(12.0).view(2, 3, 2)
    rows, labels = uploaded_rows(means, torch.tensor([[1.0, 0, 1], [0, 0, 0]]))
    assert rows.tolist() == [[0, 1], [4, 5]]
    assert labels.tolist() == [0, 2]
    assert len(uploaded_rows(means, torch.zeros(2, 3))[0]) == 0
