"""Adaptive local aggregation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtailor import rng, tree
from fedtailor.ala import ala
from fedtailor.data import Data
from fedtailor.rng import Turn
from fedtailor.task import Batch, Task, classification
from fedtailor.tree import Params

X = rng.normal(rng.key(50), 40, 4)
Y = rng.bits(rng.key(51), 40) % 3


@pytest.fixture(scope="module", autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def client(n: int, padding: int = 0) -> Data:
    rows = torch.cat([torch.arange(n), torch.arange(padding) + 30])
    return Data(X.double(), Y, rows, torch.tensor(n), rows[:0], torch.tensor(0))


def turn(round: int = 0) -> Turn:
    return Turn(rng.key(0, rng.TURN, round, 0), torch.tensor(round), torch.tensor(10))


def models(task: Task) -> tuple[Params, Params]:
    """A received and an own model."""
    a, b = (task.init(rng.key(i)) for i in range(2))
    return {k: v.double() for k, v in a.items()}, {k: v.double() for k, v in b.items()}


def same(a: Params, b: Params) -> bool:
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def started(memory: tree.Tree) -> tree.Tree:
    return memory | {"started": torch.tensor(True)}


def test_weights_begin_at_one_and_not_started() -> None:
    task = classification(network)
    received, _ = models(task)
    memory = ala(task, task.top(1)).start(received)
    assert set(memory["weight"]) == set(task.head)
    assert all(bool((w == 1).all()) for w in memory["weight"].values())
    assert not bool(memory["started"])


def test_buffers_are_not_weighted() -> None:
    task = classification(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    )
    received, own = models(task)
    part = ala(task, task.top(9))
    memory = part.start(received)
    assert set(memory["weight"]) == set(received) - set(task.buffers)
    adapted = part.adapt(received, own, memory, client(10), turn())
    for name in task.buffers:
        assert torch.equal(adapted.params[name], received[name])


@pytest.mark.parametrize("eta", [0.3, 50.0])
def test_one_batch_is_a_clipped_gradient_step_on_the_weights(eta: float) -> None:
    task = classification(network)
    received, own = models(task)
    part = ala(task, task.head, s=100, eta=eta, batch=20)
    weight = {k: torch.full_like(received[k], 0.6) for k in task.head}
    memory = {"weight": weight, "started": torch.tensor(True)}
    adapted = part.adapt(received, own, memory, client(12), turn())

    leaves = {k: w.clone().requires_grad_() for k, w in weight.items()}
    mixed = {k: own[k] + (received[k] - own[k]) * leaves[k] for k in leaves}
    logits = functional_call(network(), received | mixed, (X[:12].double(),))
    slopes = torch.autograd.grad(F.cross_entropy(logits, Y[:12]), list(leaves.values()))
    for name, slope in zip(leaves, slopes, strict=True):
        expected = (weight[name] - eta * slope).clamp(0, 1)
        torch.testing.assert_close(adapted.memory["weight"][name], expected, rtol=1e-12, atol=1e-12)
        blend = own[name] + (received[name] - own[name]) * expected
        torch.testing.assert_close(adapted.params[name], blend, rtol=1e-12, atol=1e-12)
    for name in task.blocks[0]:
        assert torch.equal(adapted.params[name], received[name])
    if eta > 1:  # the clipping was put to the test
        everything = torch.cat([w.flatten() for w in adapted.memory["weight"].values()])
        assert {0.0, 1.0} <= set(everything.tolist())


def test_the_same_models_leave_all_as_it_is() -> None:
    task = classification(network)
    received, _ = models(task)
    part = ala(task, task.top(2))
    memory = part.start(received)
    memory["weight"] = tree.scale(memory["weight"], 0.3)
    own = {k: v.clone() for k, v in received.items()}
    adapted = part.adapt(received, own, memory, client(10), turn())
    assert same(adapted.params, received)
    assert same(adapted.memory["weight"], memory["weight"])
    assert not bool(adapted.memory["started"])


def test_a_model_that_differs_outside_the_weighted_part_is_another_model() -> None:
    task = classification(network)
    received, _ = models(task)
    own = received | {"0.bias": received["0.bias"] + 1}
    part = ala(task, task.head)
    adapted = part.adapt(received, own, part.start(received), client(10), turn())
    assert bool(adapted.memory["started"])
    assert same(adapted.params, received)


class Counted:
    """A task whose loss the test chooses, epoch by epoch, and that counts its calls."""

    def __init__(self, losses: list[float] | None = None) -> None:
        self.losses, self.calls = losses, 0
        self.task = classification(network)._replace(loss=self.loss)

    def loss(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        value = self.losses[self.calls] if self.losses else 1.0
        self.calls += 1
        return params["2.bias"].sum() * 0 + value, {}

    def epochs(self, memory: str = "new", **options: float) -> int:
        received, own = models(self.task)
        # one batch an epoch, so that calls are epochs
        part = ala(self.task, self.task.head, batch=100, **options)  # type: ignore[arg-type]
        begun = part.start(received)
        part.adapt(received, own, started(begun) if memory == "old" else begun, client(10), turn())
        return self.calls


@pytest.mark.parametrize("window", [1, 3, 10])
def test_constant_losses_converge_after_more_than_a_window(window: int) -> None:
    assert Counted().epochs(window=window) == window + 1


def test_only_the_latest_losses_are_looked_at() -> None:
    # restless for five epochs, then still: three still ones fill the window
    losses = [9.0, 0.0, 9.0, 0.0, 9.0] + [5.0] * 20
    assert Counted(losses).epochs(window=3, threshold=0.1) == 8


def test_the_threshold_is_of_the_population_deviation() -> None:
    losses = [0.0, 1.0] * 50  # standard deviation 0.5 over any two (sample: 0.707)
    assert Counted(losses).epochs(window=2, threshold=0.51, max_epochs=40) == 3
    assert Counted(losses).epochs(window=2, threshold=0.5, max_epochs=40) == 40


def test_waiting_ends_after_max_epochs() -> None:
    losses = [float(i % 2) * 100 for i in range(100)]
    assert Counted(losses).epochs(max_epochs=7, window=3) == 7


def test_after_the_first_time_one_epoch_is_enough() -> None:
    assert Counted().epochs("old") == 1


def test_the_flag_is_set_after_the_first_adaptation() -> None:
    task = classification(network)
    received, own = models(task)
    part = ala(task, task.head)
    memory = part.start(received)
    adapted = part.adapt(received, own, memory, client(10), turn())
    assert bool(adapted.memory["started"]) and not bool(memory["started"])


@pytest.mark.parametrize("contiguous", [False, True])
def test_weights_are_learnt_on_a_share_of_the_own_rows(contiguous: bool) -> None:
    seen: list[set[int]] = []
    task = classification(network)

    def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        seen.append(set(batch.y[batch.weight > 0].tolist()))
        return params["2.bias"].sum() * 0, {}

    task = task._replace(loss=loss)
    received, own = models(task)
    part = ala(task, task.head, s=50, batch=100, contiguous=contiguous)
    data = client(20, padding=4)._replace(y=torch.arange(40))
    memory = started(part.start(received))
    for round in range(4):
        part.adapt(received, own, memory, data, turn(round))
    assert all(len(rows) == 10 and rows <= set(range(20)) for rows in seen)
    assert len({tuple(sorted(rows)) for rows in seen}) > 1  # redrawn every round
    if contiguous:
        assert all(max(rows) - min(rows) == 9 for rows in seen)
    else:
        assert any(max(rows) - min(rows) > 9 for rows in seen)


def test_many_clients_at_once_adapt_as_each_does_alone() -> None:
    task = classification(network)
    received, own = models(task)
    part = ala(task, task.top(1), eta=2.0, window=2, threshold=0.02, batch=4, max_epochs=30)
    # a new client, one that has adapted before, one whose model is the received one, a small one
    owns = tree.stack([own, tree.scale(own, 0.5), received, tree.scale(own, 2.0)])
    memories = tree.stack([part.start(received)] * 4)
    memories["started"] = torch.tensor([False, True, False, False])
    ns = torch.tensor([10, 7, 9, 1])
    rows = torch.arange(40).view(4, 10)
    keys = rng.fold(rng.key(3), torch.arange(4))

    def one(own: Params, memory: tree.Tree, row: Tensor, n: Tensor, key: Tensor):
        data = client(10)._replace(rows=row, n=n)
        return part.adapt(received, own, memory, data, turn()._replace(key=key))

    together = vmap(one, randomness="different")(owns, memories, rows, ns, keys)
    for i in range(4):
        alone = one(tree.index(owns, i), tree.index(memories, i), rows[i], ns[i], keys[i])
        for name, leaf in tree.flatten({"p": alone.params, "m": alone.memory}).items():
            stacked = tree.flatten({"p": together.params, "m": together.memory})[name][i]
            torch.testing.assert_close(stacked, leaf, rtol=1e-9, atol=1e-9)
    assert same(tree.index(together.params, 2), received)


def test_adapting_changes_none_of_its_arguments() -> None:
    task = classification(network)
    received, own = models(task)
    part = ala(task, task.head)
    memory = part.start(received)
    whole = {"r": received, "o": own, "m": memory}
    before = {k: v.clone() for k, v in tree.flatten(whole).items()}
    part.adapt(received, own, memory, client(10), turn())
    assert same(tree.flatten(whole), before)


@pytest.mark.xfail(
    strict=True,
    reason="Data.first gives a client without rows n = 1, so its weights are learnt on the "
    "padding, which is another client's row",
)
def test_a_client_without_rows_takes_the_received_model() -> None:
    task = classification(network)
    received, own = models(task)
    part = ala(task, task.head)
    memory = part.start(received)
    adapted = part.adapt(received, own, memory, client(0, padding=3), turn())
    assert same(adapted.memory["weight"], memory["weight"])
