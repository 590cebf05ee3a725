"""Rounds that begin before the last one's numbers were looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedtailor.core import rng, tree
from fedtailor.core.method import Method, Outcome, Upload
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData, Diverged, RoundReport, Simulation
from fedtailor.methods import METHODS, fedavg

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RECIPE = Recipe(epochs=2, batch=3, lr=0.1)
COHORTS = [torch.tensor(ids) for ids in ([0, 1, 3], [1, 2], [0, 2, 3], [3])]


def world(device: str = "cpu", sizes: tuple[int, ...] = (7, 3, 5, 1)) -> ClientData:
    rows = list(torch.arange(sum(sizes)).split(list(sizes)))
    own = [part.numpy() for part in rows]
    x = rng.normal(rng.key(0), sum(sizes), 4)
    return ClientData.of(x.to(device), (x[:, 0] > 0).long().to(device), own, own, own)


def make_task(device: str = "cpu") -> Task:
    return classification(lambda: nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), device=device)


def ill_in(method: Method, round: int, cid: int) -> Method:
    """A client's upload is no number in one round, and what comes of it never after."""

    def client(msg: Any, state: Any, data: Any, turn: Any) -> Outcome:
        done = method.client(msg, state, data, turn)
        ill = (turn.round == round) & (msg["cid"] == cid)
        mean = tree.map(lambda p: torch.where(ill, torch.nan, p), done.upload.mean)
        return done._replace(upload=done.upload._replace(mean=mean))

    send = lambda server, cid, turn: method.send(server, cid, turn) | {"cid": cid}
    return method._replace(client=client, send=send)


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == b)


@pytest.mark.parametrize("chunk", [1, 2, 4])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedfomo", "scaffold", "fedala"])
def test_one_round_ahead_is_the_same_to_the_last_bit(name: str, chunk: int) -> None:
    task = make_task()
    method = METHODS[name](task, recipe=RECIPE)
    one, other = (Simulation(method, world(), task, rounds=4, chunk=chunk) for _ in range(2))
    expected = [one.step(cohort) for cohort in COHORTS]
    found: list[RoundReport] = []
    pending = other.begin(COHORTS[0])
    for cohort in COHORTS[1:]:
        ahead = other.begin(cohort)
        found.append(pending())
        pending = ahead
    found.append(pending())
    assert alike(tuple(found), tuple(expected))
    assert one.round == other.round == 4
    assert alike(one.server, other.server)
    assert all(
        alike(tuple(a), tuple(b))
        for a, b in zip(one.client_states(), other.client_states(), strict=True)
    )


def test_who_diverged_is_named_with_the_round_though_another_has_begun() -> None:
    task = make_task()
    simulation = Simulation(ill_in(fedavg(task, recipe=RECIPE), 1, 2), world(), task, rounds=3)
    simulation.begin(COHORTS[0])()
    second = simulation.begin(COHORTS[1])
    simulation.begin(COHORTS[2])
    with pytest.raises(Diverged, match=r"^client-2 diverged .* in round 2:"):
        second()


def test_a_server_that_stumbles_over_a_diverged_upload_is_not_to_blame() -> None:
    task = make_task()
    method = ill_in(fedavg(task, recipe=RECIPE), 0, 1)

    def receive(server: Any, ids: Tensor, up: Upload, turn: Any) -> Any:
        if not bool(tree.finite(up.mean)):
            raise ArithmeticError("no numbers")
        return method.receive(server, ids, up, turn)

    simulation = Simulation(method._replace(receive=receive), world(), task)
    with pytest.raises(Diverged, match="client-1 diverged"):
        simulation.begin(COHORTS[0])
    assert simulation.round == 0
    broken = fedavg(task)._replace(receive=lambda *given: {}["nothing"])
    with pytest.raises(KeyError):  # its own fault
        Simulation(broken, world(), task).begin(COHORTS[0])


class Looks(TorchDispatchMode):
    """Counts how often somebody looks at numbers that depend on some tensors."""

    asks = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero")

    def __init__(self, tensors: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.known = {id(t): t for t in tensors}  # and kept alive: else others get their ids
        self.count = 0
        for name in ("cpu", "tolist", "numpy"):  # what no operator tells of
            monkeypatch.setattr(Tensor, name, self._counted(getattr(Tensor, name)))

    def _counted(self, fn: Any) -> Any:
        def counted(tensor: Tensor, *args: Any, **named: Any) -> Any:
            self.count += id(tensor) in self.known
            return fn(tensor, *args, **named)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(id(t) in self.known for t in tree_leaves((args, kwargs))):
            self.count += func.__name__.partition(".")[0] in self.asks
            self.known |= {id(t): t for t in tree_leaves(found) if isinstance(t, Tensor)}
        return found


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold", "fedrep"])
def test_a_round_begins_without_a_look_at_what_clients_computed(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU every such look waits until all is done that was asked of it."""
    task, data = make_task(), world()
    simulation = Simulation(METHODS[name](task, recipe=RECIPE), data, task, rounds=3, chunk=chunk)
    # a CPU's numbers are there: it may look whether they are finite
    monkeypatch.setattr(
        tree,
        "finite_rows",
        lambda a: (
            torch.stack([p.reshape(len(p), -1).sum(1) for p in tree.leaves(a)]).isfinite().all(0)
        ),
    )
    simulation.step(COHORTS[0])  # whatever is found out once
    with Looks([data.x, data.y], monkeypatch) as looks:
        first = simulation.begin(COHORTS[1], post=True)
        simulation.outputs(), simulation.records()
        second = simulation.begin(COHORTS[2])
        assert looks.count == 0
        first()
        assert looks.count > 0
        second()


@needs_gpu
def test_a_gpu_is_not_waited_for_before_the_next_round_begins() -> None:
    task, data = make_task("cuda"), world("cuda", (6, 6, 6, 6))
    simulation = Simulation(
        fedavg(task, recipe=RECIPE), data, task, rounds=5, loop_mode="traced", recipe=RECIPE
    )
    cohorts = [torch.tensor(ids) for ids in ([0, 1, 3], [1, 2, 3], [0, 2, 3])]
    for cohort in cohorts[:2]:  # steps are captured, libraries set themselves up
        simulation.begin(cohort, post=True)()
        simulation.outputs()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = simulation.begin(cohorts[2], post=True)
        asked, looking = simulation.outputs(), simulation.looking_at_now()
        ahead = simulation.begin(cohorts[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with looking():
        said = asked.test.cpu()
    assert pending().taken.tolist() == [0, 2, 3] and ahead().taken.tolist() == [0, 1, 3]
    again = Simulation(
        fedavg(task, recipe=RECIPE), data, task, rounds=5, loop_mode="traced", recipe=RECIPE
    )
    for cohort in cohorts:
        again.step(cohort)
    assert torch.equal(said, again.outputs().test.cpu())
