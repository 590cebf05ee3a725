"""A loss without numbers or a gradient is refused: it would teach nothing, in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.losses import cross_entropy, parse_loss
from fedtailor.core.task import Task, classification, regression, survival

X, Y = torch.ones(3, 4), torch.tensor([0, 1, 2])


class Changed(nn.Linear):
    """A layer whose outputs are changed."""

    def __init__(self, change: Callable[[Tensor], Tensor], outputs: int = 3) -> None:
        super().__init__(4, outputs)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(super().forward(x))


def try_out(task: Task, y: Tensor = Y) -> None:
    task.try_out(task.init(rng.key(0)), X, y)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: (o.argmax(-1) != y).float(),
        lambda o, y: cross_entropy(o.detach(), y),
        lambda o, y: torch.from_numpy(o.detach().numpy())[:, 0],
        lambda o, y: torch.zeros(len(y)),
    ],
)
def test_a_loss_without_a_gradient_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    task = classification(lambda: nn.Linear(4, 3), loss=loss)
    with pytest.raises(BadInput, match=r"^loss has no gradient") as caught:
        try_out(task)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [torch.Tensor.detach, torch.no_grad()(lambda x: x * 1)])
def test_a_network_without_a_gradient_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(BadInput, match=r"^model Changed: its outputs have no gradient"):
        try_out(classification(lambda: Changed(change)))


def test_where_the_gradient_is_zero_there_may_be_one_elsewhere() -> None:
    def build() -> nn.Module:
        network = Changed(torch.relu)
        nn.init.zeros_(network.weight)
        nn.init.constant_(network.bias, -1.0)
        return network

    try_out(classification(build))


def test_whatever_else_is_wrong_training_tells() -> None:
    def broken(outputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("broken")

    try_out(classification(lambda: nn.Linear(4, 3), loss=broken))
    with pytest.raises(BadInput, match="one number per row"):
        try_out(classification(lambda: nn.Linear(4, 3), loss=F.cross_entropy))


def test_what_can_learn_is_let_through() -> None:
    try_out(classification(lambda: nn.Linear(4, 3)))
    try_out(
        regression(lambda: Changed(lambda x: x, 1), loss=parse_loss("huber", "regression")), X[:, 0]
    )
    try_out(survival(lambda: nn.Linear(4, 1)), torch.ones(3, 2))

    def partly() -> nn.Module:
        network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
        network[0].requires_grad_(False)
        return network

    try_out(classification(partly))


def test_a_loss_without_numbers_is_refused_unless_the_outputs_have_none() -> None:
    def nothing(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) * torch.nan

    with pytest.raises(BadInput, match=r"^loss gives nan for outputs that are finite numbers"):
        try_out(classification(lambda: nn.Linear(4, 3), loss=nothing))
    try_out(classification(lambda: Changed(lambda out: out * torch.nan), loss=nothing))


def test_a_network_gives_the_same_shape_in_training_as_in_evaluation() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out[:, :2] if self.training else out

    with pytest.raises(BadInput, match=r"^model Two gives outputs of shape \(2, 2\) in training"):
        try_out(classification(lambda: Two(4, 3)))
