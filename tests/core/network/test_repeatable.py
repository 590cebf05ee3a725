"""Networks that two runs of one seed would not call alike are refused by name."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.network.repeatable import may_draw
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.models import MODELS, build
from tests.methods.worlds import make, play, ragged, simulate


class Noisy(nn.Module):
    """Adds what a function gives."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fn(x)


OWN = torch.Generator()
STREAM = np.random.default_rng(0)


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return torch.rand_like(x)


@pytest.mark.parametrize(
    ("fn", "culprit"),
    [
        (lambda x: float(np.random.rand()), "numpy"),  # noqa: NPY002
        (lambda x: random.random(), "random"),
        (lambda x: torch.poisson(x.abs()), "torch.poisson"),
        (lambda x: torch._standard_gamma(x.abs() + 1), "torch._standard_gamma"),
        (scripted, "compiled"),
        (lambda x: torch.rand(8, generator=OWN), "key"),
        (lambda x: float(STREAM.random()), "key"),
    ],
)
def test_draws_that_no_key_reaches_are_refused(
    fn: Callable[[Tensor], Tensor], culprit: str
) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), Noisy(fn)), nn.Linear(8, 3))

    task = classification(build)
    with pytest.raises(BadInput, match=rf"module '1\.1' \(Noisy\).*{culprit}") as caught:
        simulate(make("fedavg", task), ragged((7, 9)), task)
    assert "\n" not in str(caught.value)


def test_a_network_that_counts_its_calls_is_refused() -> None:
    class Counts(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    task = classification(lambda: Counts(4, 3))
    with pytest.raises(BadInput, match="network Counts"):
        task.try_out(task.init(rng.key(0)), torch.ones(1, 4), torch.zeros(1).long())


def test_numbers_that_are_not_finite_are_no_reason() -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 3), Noisy(lambda x: x * torch.nan)))
    task.try_out(task.init(rng.key(0)), torch.ones(3, 4), torch.zeros(3).long())


def test_a_method_that_draws_by_itself_is_refused() -> None:
    task = classification(lambda: nn.Linear(4, 3))
    method = make("fedavg", task, Recipe())

    def predict(model: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.dropout(task.predict(model, x), 0.5)

    sim = simulate(method._replace(predict=predict), ragged((7, 9)), task)
    play(sim)
    with pytest.raises(BadInput, match=r"method draws.*turn\.key"):
        sim.score()


def test_built_in_networks_are_not_watched() -> None:
    texts = ("fasttext", "lstm", "transformer")
    form = dict.fromkeys(texts, Form("text", (20,), 3, vocabulary=9))
    drawing = [
        name
        for name in ("mlp", "cnn", *texts, "resnet18-cifar", "fedbn-cnn", "logistic")
        if may_draw(build(name, form.get(name, Form("image", (3, 32, 32), 3))))
    ]
    assert drawing == []
    vgg = build("vgg11", Form("image", (3, 32, 32), 3))
    assert may_draw(vgg) and not may_draw(vgg.eval())
    assert "vgg11" in MODELS
