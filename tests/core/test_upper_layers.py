"""Training upper layers on what they see does what training them within the network does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.network.upper import upper_part
from fedtailor.core.objectives import sam
from fedtailor.core.rng import Turn
from fedtailor.core.scoring import upper_layers
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe, fit
from fedtailor.core.tree import Params
from fedtailor.models.parts import chain

RECIPE = Recipe(epochs=3, batch=4, lr=0.1, momentum=0.9)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def net() -> nn.Module:
    return chain(
        conv=nn.Conv2d(1, 3, 3),
        relu=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(12, 5),
        tanh=nn.Tanh(),
        fc=nn.Linear(5, 3),
    )


def world() -> tuple[Task, Data, Tensor, Tensor]:
    """A task, and three clients of 7, 10 and no rows."""
    task = classification(net)
    x = torch.rand(17, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.stack([torch.arange(7).repeat(2)[:10], torch.arange(7, 17), torch.arange(10)])
    n = torch.tensor([7, 10, 0])
    data = Data(x, torch.arange(17) % 3, rows, n, rows, n)
    return task, data, rows, n


def trained(task: Task, names: tuple[str, ...], data: Data, rows: Tensor, n: Tensor) -> Params:
    """The parameters of all clients, mapped, after `names` were trained."""
    start = task.init(rng.key(1))

    def one(rows: Tensor, n: Tensor, cid: Tensor) -> Params:
        turn = Turn(rng.fold(rng.key(2), cid), torch.tensor(0), torch.tensor(1))
        own = data._replace(rows=rows, n=n)
        return fit(task, start, own, turn, RECIPE, train=names, gradient=sam(0.05))

    return vmap(one)(rows, n, torch.arange(3))


@pytest.mark.parametrize("blocks", [1, 2])
def test_it_ends_where_training_within_the_network_ends(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data, rows, n = world()
    names = task.top(blocks)
    expected = trained(task._replace(upper=lambda names: None), names, data, rows, n)
    asked = []
    predict = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: asked.append(1) or predict(self, x))
    found = trained(task, names, data, rows, n)
    assert len(asked) <= 2, "the layers below are asked for every batch"
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert torch.allclose(found[name].expand_as(value), value, rtol=0, atol=1e-12)
        assert torch.equal(value[2], task.init(rng.key(1))[name]), "a client without rows"


def test_labels_and_rows_are_the_clients_own() -> None:
    task, data, rows, n = world()
    mine = data._replace(rows=rows[1], n=n[1])
    part = upper_layers(task, task.init(rng.key(0)), task.head, mine)
    assert part is not None
    assert part.given["labels"].tolist() == (torch.arange(7, 17) % 3).tolist()
    assert part.given["seen"].shape == (10, 5) and not part.given["fixed"]
    assert part.data.rows.tolist() == list(range(10)) and int(part.data.n) == 10


class Odd(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def hooked() -> nn.Module:
    made = net()
    made[0].register_forward_hook(lambda module, inputs, out: out - out.mean(0))  # type: ignore[index]
    return made


def tied() -> nn.Module:
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    last.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), last)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Odd(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Flatten(0), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(3, 3)),
        hooked,
        tied,
    ],
)
def test_a_network_that_cannot_be_taken_apart_stays_whole(build: Callable[[], nn.Module]) -> None:
    network = build()
    last = list(network.state_dict())[-1]
    assert upper_part(network, {}, [last]) is None


def test_statistics_half_precision_and_draws_keep_a_task_whole() -> None:
    with_norm = classification(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    )
    halved = classification(net, compute=torch.bfloat16)
    drawing = classification(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Dropout()))
    for task in (with_norm, halved, drawing):
        assert task.upper(frozenset(task.head)) is None


def test_images_between_layers_are_not_kept() -> None:
    task = classification(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 1, 2), nn.Flatten())
    )
    data = Data.of(torch.rand(6, 1, 4, 4), torch.zeros(6).long())
    assert upper_layers(task, task.init(rng.key(0)), task.head, data) is None


def test_who_asks_for_slopes_in_the_examples_gets_them() -> None:
    task, data, rows, n = world()
    data = data._replace(x=data.x.requires_grad_(), rows=rows[1], n=n[1])
    turn = Turn(rng.key(2), torch.tensor(0), torch.tensor(1))
    done = fit(task, task.init(rng.key(1)), data, turn, RECIPE, train=task.head)
    (slope,) = torch.autograd.grad(done["fc.weight"].sum(), data.x)
    assert slope.abs().sum() > 0
