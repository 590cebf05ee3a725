"""FedTGP: prototypes that a small network at the server learns to keep apart."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core import rng, tree, wire
from fedtailor.core.method import Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import fedproto, fedtgp, local
from fedtailor.methods.parts.representation import class_sums
from fedtailor.methods.prototypes.fedtgp import (
    adaptive_margin,
    margin_losses,
    prototypes_of,
    small_network,
)
from tests.methods.worlds import (
    ENGINES,
    classes_of,
    data_of,
    gap,
    labelled,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_layers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1)]]
FEW = {"server_epochs": 5}


def uploaded(means: torch.Tensor, seen: torch.Tensor) -> Upload:
    """Class means as they arrive: what was not sent is no number."""
    sent = torch.where(seen[..., None] > 0, means, torch.nan)
    return Upload(each={"classes": wire.maybe(seen > 0, {"means": sent})})


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = a x with a = 1, the head is 0.  Round 0 uploads 2 and (5, 8), as FedProto's does.
    # The server's network stays (rate 0), and from round 1 on all classes pull to what it writes:
    #   client 0: q of class 1 is 1/(1 + exp(2 (x/8 + 1/16))), slope of a is
    #   -mean(q x)/4 + λ mean(2 (x - P[0]) x)
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedtgp(task, lam=0.5, server_lr=0.0, recipe=EIGHTH, **FEW)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    assert sim.server["seen"].tolist() == [0, 0]
    first = sim.server["prototypes"].clone()
    play(sim)
    assert sim.states.rows["own"]["body.weight"].flatten().tolist() == [1.0, 1.0]
    assert torch.equal(sim.server["prototypes"], first)
    assert sim.server["seen"].tolist() == [1, 1]
    play(sim, [[0]])
    q = [1 / (1 + math.exp(2 * (x / 8 + 1 / 16))) for x in (1, 3)]
    P = float(first[0, 0])
    slope = -(q[0] + 3 * q[1]) / 8 + 0.5 * ((1 - P) * 1 + (3 - P) * 3)
    assert sim.states.rows["own"]["body.weight"].flatten().tolist() == near(1 - slope / 8, 1.0)


@pytest.mark.parametrize("lag", [False, True])
def test_rows_are_seen_once_for_their_class_means(lag, monkeypatch):
    seen = []
    module = sys.modules["fedtailor.methods.prototypes.fedproto"]
    monkeypatch.setattr(
        module, "class_sums", lambda *told: [seen.append(told[1]), class_sums(*told)][1]
    )
    task, world, turn = task_of(), ragged(), turn_of()
    initial = task.init(rng.key(3))
    method = fedtgp(task, lag=lag, **FEW)
    message = method.send(method.init(6, initial, rng.key(0)), torch.tensor(1), turn)
    out = method.client(message, {"own": initial}, data_of(world, 1), turn)
    assert len(seen) == 1 and same(seen[0], initial if lag else out.state["own"])


@pytest.mark.usefixtures("double")
def test_class_means_may_lag_a_round():
    """Those of the authors' code: the model that the turn began with, at first the initial one."""
    task, world, turn = task_of("norm"), ragged(), turn_of()
    data, initial = data_of(world, 1), task.init(rng.key(3))
    trained = {}
    for lag in (False, True):
        method = fedtgp(task, lag=lag, recipe=Recipe(lr=0.2), **FEW)
        server = method.init(6, initial, rng.key(0))
        message = method.send(server, torch.tensor(1), turn)
        out = method.client(message, {"own": initial}, data, turn)
        told = wire.value(out.upload.each["classes"])
        means = class_sums(task, initial if lag else out.state["own"], data)
        torch.testing.assert_close(told["means"], means.means)
        assert list(told) == ["means"]
        assert torch.equal(wire.here(out.upload.each["classes"]), means.rows > 0)
        trained[lag] = out
    assert same(trained[False].state, trained[True].state)
    assert gap(trained[False].upload.each, trained[True].upload.each) > 1e-3


def test_margin_by_hand():
    # centres: class 0 (0 + 4)/2 = 2, class 1: 5, class 2: 11 -> nearest 3, 3, 6
    means = torch.tensor([[[0.0], [5.0], [0.0]], [[4.0], [0.0], [11.0]]])
    seen = torch.tensor([[1.0, 1, 0], [1, 0, 1]])
    assert float(adaptive_margin(means, seen, 100.0)) == 6
    assert float(adaptive_margin(means, seen, 4.0)) == 4
    order = torch.tensor([2, 0, 1])
    assert float(adaptive_margin(means[:, order], seen[:, order], 100.0)) == 6
    one = torch.tensor([[0.0, 1, 0]])
    assert float(adaptive_margin(means[:1] * one[..., None], one, 100.0)) == 100  # a single class
    assert float(adaptive_margin(means * 0, seen * 0, 100.0)) == 0


def test_loss_by_hand():
    # p = 1 of class 0, P = (0, 4): d = (1 + δ, 3)
    P, p, y = torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0]]), torch.tensor([0])
    losses = [float(margin_losses(P, p, y, torch.tensor(d)).mean()) for d in (0.0, 1.0, 6.0)]
    expected = [math.log(1 + math.exp(1 + d - 3)) for d in (0.0, 1.0, 6.0)]
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses == sorted(losses)
    assert float(margin_losses(P[:1], p, y, torch.tensor(9.0)).mean()) == 0  # with one class


def test_a_class_mean_at_its_prototype_has_a_finite_slope():
    net = small_network(3, 4, rng.key(0))
    p = prototypes_of(net)[1].detach()

    def loss(net: dict) -> torch.Tensor:
        one = p[None], torch.tensor([1])
        return margin_losses(prototypes_of(net), *one, torch.tensor(2.0)).mean()

    found = torch.func.grad(loss)(net)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(found))


# ------------------------------------------------------------------------- against plain PyTorch


@pytest.mark.usefixtures("double")
def test_the_server_in_plain_pytorch():
    task, turn = task_of(), turn_of(round=2)
    method = fedtgp(task, server_lr=0.2, server_epochs=3, server_batch=4)
    server = method.init(4, task.init(rng.key(0)), rng.key(5))
    means, seen = torch.randn(4, 3, 6), torch.tensor([[1.0, 1, 0], [0, 1, 1], [1, 1, 1], [0, 0, 0]])
    means = means * seen[..., None]
    up = uploaded(means, seen)
    found = method.receive(server, torch.arange(4), up, turn)
    net = nn.ModuleList([nn.Embedding(3, 6), nn.Linear(6, 6), nn.Linear(6, 6)])
    with torch.no_grad():
        for own, name in zip(
            net.parameters(),
            ("classes", "first", "first_bias", "second", "second_bias"),
            strict=True,
        ):
            own.copy_(server["net"][name])
    rows = [(means[k, c], c) for k in range(4) for c in range(3) if seen[k, c]]
    p, y = torch.stack([r for r, _ in rows]), torch.tensor([c for _, c in rows])
    centres = torch.stack([p[y == c].mean(0) for c in range(3)])
    apart = torch.cdist(centres, centres).fill_diagonal_(torch.inf)
    delta = min(100.0, float(apart.min(1).values.max()))
    step = torch.optim.SGD(net.parameters(), lr=0.2)
    write = lambda: net[2](F.relu(net[1](net[0](torch.arange(3)))))
    for epoch in range(3):
        for some in rng.permutation(rng.fold(turn.key, epoch), len(rows)).split(4):
            step.zero_grad()
            d = torch.cdist(p[some], write()) + delta * F.one_hot(y[some], 3)
            F.cross_entropy(-d, y[some]).backward()
            step.step()
    torch.testing.assert_close(found["prototypes"], write().detach(), rtol=1e-6, atol=1e-8)
    assert not torch.allclose(found["prototypes"], server["prototypes"], atol=1e-3)
    assert found["seen"].tolist() == [1, 1, 1]


# ------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_pull_models_are_those_of_training_alone(engine):
    task, world = task_of("norm"), ragged()
    ways = (fedtgp(task, lam=0, predict="head", **FEW), local(task))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(models(sims[0]), models(sims[1]))


@pytest.mark.parametrize("engine", ENGINES)
def test_with_the_same_prototypes_clients_are_fedprotos(engine):
    task, world = task_of("norm"), ragged()
    ours, theirs = fedtgp(task, lam=2.0, **FEW), fedproto(task, lam=2.0)
    sims = [simulate(method, world, task, engine=engine) for method in (ours, theirs)]
    for sim in sims:
        play(sim)
    known = sims[1].server
    sims[0].server = sims[0].server | known
    for sim in sims:
        play(sim, [[0, 1, 3]])
    assert same(*(sim.states.rows for sim in sims))


def test_the_server_learns_from_those_who_are_there():
    task, world = task_of(), ragged()
    sim = simulate(fedtgp(task, **FEW), world, task)
    play(sim)
    before = snapshot(sim)["server"]
    play(sim, [[0, 1]])
    assert gap(sim.server["net"], before["net"]) > 1e-5
    nobody = uploaded(torch.zeros(2, 3, 6), torch.zeros(2, 3))
    still = sim.method.receive(before, torch.tensor([0, 1]), nobody, turn_of())
    assert same(still, before)


def test_training_draws_prototypes_to_their_classes():
    """The server's loss falls, and the nearest prototype is the right one."""
    task = task_of()
    centres = torch.eye(3, 6) * 4
    means = centres + 0.1 * torch.randn(5, 3, 6, generator=torch.Generator().manual_seed(0))
    up = uploaded(means, torch.ones(5, 3))
    method = fedtgp(task, server_lr=0.05, server_epochs=200)
    server = method.init(5, task.init(rng.key(0)), rng.key(5))
    P = method.receive(server, torch.arange(5), up, turn_of())["prototypes"]
    nearest = torch.cdist(means.flatten(0, 1), P).argmin(1)
    assert nearest.tolist() == [0, 1, 2] * 5


def test_bytes_are_those_of_prototypes_and_of_the_classes_there():
    """Nothing down in the first round, then 3 x 6; 6 for each class that a client has up."""
    task, world = task_of(), ragged([7, 2, 13, 1])
    has = [classes_of(world, k) for k in range(4)]
    assert 1 in has and 3 in has
    sim = simulate(fedtgp(task, **FEW), world, task)
    first, second = play(sim, [[0, 1, 3], [0, 1, 2, 3]])
    assert first.down.tolist() == [0] * 3
    assert second.down.tolist() == [4 * 18] * 4
    for report in (first, second):
        assert report.up.tolist() == [4 * 6 * has[k] for k in report.ids.tolist()]


def test_a_class_that_nobody_has_is_pushed_away_and_may_be_predicted():
    """Its prototype is a wrong answer to all others: it moves, and is a candidate in tests."""
    task = two_layers([[1.0]], [[0.0], [0.0], [0.0]])
    sim = simulate(fedtgp(task, server_lr=0.1, recipe=EIGHTH), labelled(ROWS), task)
    before = sim.server["prototypes"].clone()
    play(sim)
    assert sim.server["seen"].tolist() == [1, 1, 1]
    assert abs(float(sim.server["prototypes"][2] - before[2])) > 1e-3
    model = models(sim)["0"]
    assert int(sim.method.predict(model, sim.server["prototypes"][2:]).argmax()) == 2
