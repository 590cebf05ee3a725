"""Adaptive local aggregation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.rng import Turn
from fedtailor.core.task import Batch, Task, classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params
from fedtailor.methods.parts.start import Start
from tests.methods.worlds import Probe, ala_alone

pytestmark = pytest.mark.usefixtures("float64")

X = rng.normal(rng.key(50), 40, 4)
Y = rng.bits(rng.key(51), 40) % 3


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


def begin(task: Task, batch: int = 10, **options: Any) -> Probe:
    """ALA in a method that downloads the whole model."""
    return ala_alone(task, Recipe(batch=batch, lr=9.0, momentum=0.9, clip=1e-9), **options)


def memory_of(own: Params, weight: Params, started: bool = True) -> tree.Tree:
    return {"own": own, "weight": weight, "started": torch.tensor(started)}


def adapt(part: Probe, received: Params, memory: tree.Tree, data: Data, when: Turn) -> Start:
    return part.adapt(received, memory, {}, data, when)


def ones(params: Params, names: Iterable[str]) -> Params:
    return {name: torch.ones_like(params[name]) for name in names}


def test_a_new_client_begins_with_weights_of_one_and_the_common_initial_model() -> None:
    task = classification(network)
    received, own = models(task)
    initial = {k: v.double() for k, v in task.init(rng.key(2)).items()}
    part = begin(task, p=1)
    memory = part.start(received, initial)
    assert set(memory["weight"]) == set(task.head)
    assert all(bool((w == 1).all()) for w in memory["weight"].values())
    assert not bool(memory["started"]) and same(memory["own"], initial)
    begun = adapt(part, received, memory_of(own, memory["weight"]), client(10), turn())
    assert same(begun.memory["own"], begun.params)  # what the host has made of it


@pytest.mark.parametrize(("p", "first"), [(1, 2), (2, 0), (9, 0)])
def test_the_topmost_blocks_are_weighted(p: int, first: int) -> None:
    task = classification(network)
    received, own = models(task)
    names = {name for name in received if int(name[0]) >= first}
    assert set(begin(task, p=p).start(received, own)["weight"]) == names


def test_no_blocks_switch_it_off() -> None:
    task = classification(network)
    received, own = models(task)
    part = begin(task, p=0)
    assert part.start(received, own) == {}
    begun = adapt(part, received, {}, client(10), turn())
    assert same(begun.params, received) and begun.memory == {}


def test_buffers_are_not_weighted() -> None:
    task = classification(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    )
    received, own = models(task)
    part = begin(task, p=9)
    memory = part.start(received, received) | {"own": own}
    assert set(memory["weight"]) == set(received) - set(task.buffers)
    begun = adapt(part, received, memory, client(10), turn())
    for name in task.buffers:
        assert torch.equal(begun.params[name], received[name])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("eta", [0.3, 50.0])
def test_one_batch_is_a_clipped_gradient_step_on_the_weights(eta: float, shared: bool) -> None:
    """Whole model downloaded, or only its body with the head as the client's own `rest`."""
    task = classification(network)
    received, own = models(task)
    rest = {} if shared else tree.pick(own, task.head)
    names = task.head if shared else task.blocks[0]
    if not shared:
        received, own = (tree.drop(m, task.head) for m in (received, own))
    # the clients' optimiser and clipping are not for W
    recipe = Recipe(batch=20, optimizer="adam", weight_decay=0.1, clip=1e-3, epochs=4, steps=3)
    part = ala_alone(task, recipe, s=100, eta=eta, p=1)
    weight = {k: torch.full_like(received[k], 0.6) for k in names}
    begun = part.adapt(received, memory_of(own, weight), rest, client(12), turn())

    leaves = {k: w.clone().requires_grad_() for k, w in weight.items()}
    mixed = {k: own[k] + (received[k] - own[k]) * leaves[k] for k in leaves}
    logits = functional_call(network(), rest | received | mixed, (X[:12].double(),))
    loss = F.cross_entropy(logits, Y[:12])
    slopes = torch.autograd.grad(loss, list(leaves.values()))
    for name, slope in zip(leaves, slopes, strict=True):
        expected = (weight[name] - eta * slope).clamp(0, 1)
        torch.testing.assert_close(begun.memory["weight"][name], expected, rtol=1e-12, atol=1e-12)
        blend = own[name] + (received[name] - own[name]) * expected
        torch.testing.assert_close(begun.params[name], blend, rtol=1e-12, atol=1e-12)
    assert set(begun.params) == set(received)
    for name in set(received) - set(names):
        assert torch.equal(begun.params[name], received[name])
    everything = torch.cat([w.flatten() for w in begun.memory["weight"].values()])
    if eta > 1:  # the clipping was put to the test
        assert {0.0, 1.0} <= set(everything.tolist())
    torch.testing.assert_close(begun.notes["ala_weight"], everything.mean()[None])
    torch.testing.assert_close(begun.notes["ala_loss"], loss.detach())
    assert int(begun.notes["ala_epochs"]) == 1


def test_the_same_models_leave_all_as_it_is() -> None:
    task = classification(network)
    received, _ = models(task)
    part = begin(task, p=2)
    memory = part.start(received, {k: v.clone() for k, v in received.items()})
    memory["weight"] = tree.scale(memory["weight"], 0.3)
    begun = adapt(part, received, memory, client(10), turn())
    assert same(begun.params, received)
    assert same(begun.memory["weight"], memory["weight"])
    assert not bool(begun.memory["started"])
    assert int(begun.notes["ala_epochs"]) == 0


def test_a_model_that_differs_outside_the_weighted_part_is_another_model() -> None:
    task = classification(network)
    received, _ = models(task)
    own = received | {"0.bias": received["0.bias"] + 1}
    memory = memory_of(own, ones(received, task.head), started=False)
    begun = adapt(begin(task), received, memory, client(10), turn())
    assert bool(begun.memory["started"])
    assert same(begun.params, received)


class Counted:
    """A task whose loss the test chooses, epoch by epoch, and that counts its calls."""

    def __init__(self, losses: list[float] | None = None) -> None:
        self.losses, self.calls = losses, 0
        self.task = classification(network)._replace(loss=self.loss)

    def loss(self, params: Params, batch: Batch) -> tuple[Tensor, Params]:
        value = self.losses[self.calls] if self.losses else 1.0
        self.calls += 1
        return params["2.bias"].sum() * 0 + value, {}

    def epochs(self, started: bool = False, **options: float) -> int:
        received, own = models(self.task)
        memory = memory_of(own, ones(received, self.task.head), started)
        # one batch an epoch, so that calls are epochs
        begun = adapt(begin(self.task, 100, **options), received, memory, client(10), turn())
        assert int(begun.notes["ala_epochs"]) == self.calls
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
    assert Counted(losses).epochs(window=2, threshold=0.51, max_ala_epochs=40) == 3
    assert Counted(losses).epochs(window=2, threshold=0.5, max_ala_epochs=40) == 40


def test_waiting_ends_after_the_most_epochs() -> None:
    losses = [float(i % 2) * 100 for i in range(100)]
    assert Counted(losses).epochs(max_ala_epochs=7, window=3) == 7


def test_after_the_first_time_one_epoch_is_enough() -> None:
    assert Counted().epochs(started=True) == 1


@pytest.mark.parametrize("contiguous", [False, True])
def test_weights_are_learnt_on_a_share_of_the_own_rows(contiguous: bool) -> None:
    seen: list[set[int]] = []

    def loss(params: Params, batch: Batch) -> tuple[Tensor, Params]:
        seen.append(set(batch.y[batch.weight > 0].tolist()))
        return params["2.bias"].sum() * 0, {}

    task = classification(network)._replace(loss=loss)
    received, own = models(task)
    part = begin(task, 100, s=50, contiguous=contiguous)
    data = client(20, padding=4)._replace(y=torch.arange(40))
    memory = memory_of(own, ones(received, task.head))
    for round in range(4):
        adapt(part, received, memory, data, turn(round))
    assert all(len(rows) == 10 and rows <= set(range(20)) for rows in seen)
    assert len({tuple(sorted(rows)) for rows in seen}) > 1  # redrawn every round
    if contiguous:
        assert all(max(rows) - min(rows) == 9 for rows in seen)
    else:
        assert any(max(rows) - min(rows) > 9 for rows in seen)


def test_many_clients_at_once_adapt_as_each_does_alone() -> None:
    task = classification(network)
    received, own = models(task)
    part = begin(task, 4, p=1, eta=2.0, window=2, threshold=0.02, max_ala_epochs=30)
    # a new client, one that has adapted before, one whose model is the received one, a small one
    owns = [own, tree.scale(own, 0.5), received, tree.scale(own, 2.0)]
    memories = tree.stack(
        [memory_of(o, ones(received, task.head), i == 1) for i, o in enumerate(owns)]
    )
    ns = torch.tensor([10, 7, 9, 1])
    rows = torch.arange(40).view(4, 10)
    keys = rng.fold(rng.key(3), torch.arange(4))

    def one(memory: tree.Tree, row: Tensor, n: Tensor, key: Tensor) -> tree.Tree:
        data = client(10)._replace(rows=row, n=n)
        begun = adapt(part, received, memory, data, turn()._replace(key=key))
        return {"params": begun.params, "memory": begun.memory, "notes": begun.notes}

    together = vmap(one, randomness="different")(memories, rows, ns, keys)
    for i in range(4):
        alone = one(tree.index(memories, i), rows[i], ns[i], keys[i])
        for name, leaf in tree.flatten(alone).items():
            stacked = tree.flatten(together)[name][i]
            torch.testing.assert_close(stacked, leaf, rtol=1e-9, atol=1e-9)
    assert same(tree.index(together["params"], 2), received)
    # they did stop at different times
    assert len(set(together["notes"]["ala_epochs"].tolist())) > 2


def test_adapting_changes_none_of_its_arguments() -> None:
    task = classification(network)
    received, own = models(task)
    memory = memory_of(own, ones(received, task.head), started=False)
    whole = {"r": received, "m": memory}
    before = {k: v.clone() for k, v in tree.flatten(whole).items()}
    begun = adapt(begin(task), received, memory, client(10), turn())
    assert same(tree.flatten(whole), before)
    assert bool(begun.memory["started"])


def test_a_client_without_rows_learns_no_weights() -> None:
    task = classification(network)
    received, own = models(task)
    memory = memory_of(own, ones(received, task.head), started=False)
    begun = adapt(begin(task), received, memory, client(0, padding=3), turn())
    assert same(begun.memory["weight"], memory["weight"])
