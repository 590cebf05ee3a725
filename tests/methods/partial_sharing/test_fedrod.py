"""Fed-RoD: a generic head for balanced classes, a personal one on top of it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedrod
from fedtailor.methods.check import toy_federation, toy_task
from fedtailor.methods.leakage import leaks_of
from fedtailor.methods.parts.representation import FAR, log_prior
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
    two_layers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
ONE = Recipe(batch=0, lr=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = x and both heads are 0, so without balancing everything is (1/2, 1/2).
    # client 0: x = 1, 2, 3 of class 0, x = 4 of class 1: softmax(log 3 - log 3, log 1 - log 3)
    #   is (3/4, 1/4); slope of W_G[0]: ((3/4 - 1)(1 + 2 + 3) + 3/4 4)/4 = 3/8, of b[0]: 0
    #   W_G = (-3/8, 3/8), b_G = 0
    #   slope of W_P[0]: (-1/2 6 + 1/2 4)/4 = -1/4, of b_P[0]: (-3/2 + 1/2)/4 = -1/4
    # client 1: x = 2 of class 1: softmax(-1e9, 0) = (0, 1): no slope; W_P[0]: 1/2 2, b_P[0]: 1/2
    # the body has no slope, since W_G = 0
    # W_G = (4 (-3/8) + 0)/5 = -0.3
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0), ([2.0], 0), ([3.0], 0), ([4.0], 1)], [([2.0], 1)]])
    sim = simulate(fedrod(task, recipe=ONE), world, task, engine=engine)
    play(sim)
    server, own = sim.server["params"], sim.states.rows["own"]
    assert server["head.weight"].flatten().tolist() == near(-0.3, 0.3)
    assert server["head.bias"].tolist() == near(0.0, 0.0)
    assert server["body.weight"].tolist() == [[1.0]]
    assert own["head.weight"].flatten().tolist() == near(0.25, -0.25, -1.0, 1.0)
    assert own["head.bias"].flatten().tolist() == near(0.25, -0.25, -0.5, 0.5)
    # x = 2:  g = (-0.6, 0.6),  h_0 = (0.75, -0.75),  h_1 = (-2.5, 2.5)
    predict, x = fedrod(task).predict, torch.tensor([[2.0]])
    said = [predict(model, x)[0].tolist() for model in models(sim).values()]
    assert said == [near(0.15, -0.15), near(-3.1, 3.1)]
    # client 1 teaches its own head alone: p_0 = 1/(1 + e^6.2)
    play(sim, [[1]])
    p = 1 / (1 + math.exp(6.2))
    assert same(sim.server["params"], server)
    assert sim.states.rows["own"]["head.bias"][1].tolist() == near(-0.5 - p, 0.5 + p)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_it_is_two_optimisers_in_plain_pytorch(gamma):
    """One steps body and generic head, the other the personal head, batch after batch."""
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1, momentum=0.5)
    data, turn = data_of(ragged(), 1), turn_of()
    method, initial = fedrod(task, gamma=gamma, recipe=recipe), task.init(rng.key(3))
    state = method.start({"params": initial}, initial, rng.key(0))
    out = method.client({"params": initial}, state, data, turn)
    net, own = mlp(), nn.Linear(6, 3)
    net.load_state_dict(initial)
    own.load_state_dict({"weight": initial["2.weight"], "bias": initial["2.bias"]})
    counts = torch.bincount(data.y[data.rows[: int(data.n)]], minlength=3).double()
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in (net, own)]
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        x, y = batch.x[real], batch.y[real]
        for step in steps:
            step.zero_grad()
        z = net[:2](x)
        g = net[2](z)
        F.cross_entropy(g + gamma * counts.log(), y).backward()
        F.cross_entropy(g.detach() + own(z.detach()), y).backward()
        for step in steps:
            step.step()
    assert gap(out.upload.mean["params"], dict(net.state_dict())) < 1e-12
    ours = {k.removeprefix("2."): v for k, v in out.state["own"].items()}
    assert gap(ours, dict(own.state_dict())) < 1e-12
    x = data.x[:9]
    torch.testing.assert_close(method.predict(out.model, x), net(x) + own(net[:2](x)))


@pytest.mark.parametrize("engine", ENGINES)
def test_without_balancing_the_generic_path_is_fedavg(engine):
    """Exact: the personal loss reaches neither body nor generic head."""
    task, world = task_of("norm"), ragged()
    ways = (fedrod(task, gamma=0), fedrod(task, gamma=0, own_start="zero"), fedavg(task))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[2].server)
    assert same(sims[1].server, sims[2].server)
    other = simulate(fedrod(task), world, task, engine=engine)
    play(other, COHORTS)
    assert gap(other.server, sims[2].server) > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_with_equal_classes_it_is_fedavg_for_every_gamma(engine):
    """Exact, thanks to the subtracted maximum."""
    task = task_of("norm")
    x = ragged().x
    rows = lambda low, n: [(x[low + i].tolist(), i % 3) for i in range(n)]
    world = labelled([rows(0, 6), rows(6, 12), rows(18, 9)])
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (fedrod(task, gamma=2), fedavg(task))
    ]
    for sim in sims:
        play(sim, 3)
    assert same(sims[0].server, sims[1].server)


def test_the_generic_path_does_not_depend_on_the_personal_head():
    task, world = task_of("norm"), ragged()
    sims = [simulate(fedrod(task, own_start=own), world, task) for own in ("copy", "zero")]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert gap(sims[0].states.rows, sims[1].states.rows) > 1e-3


def test_prior_logits():
    rows = torch.tensor([3.0, 0.0, 1.0])
    assert log_prior(rows).tolist() == near(0.0, FAR, -math.log(3))
    torch.testing.assert_close(log_prior(rows * 50), log_prior(rows))
    assert log_prior(torch.tensor([7.0, 7.0])).tolist() == [0.0, 0.0]
    assert log_prior(torch.zeros(3)).isfinite().all()  # a client without rows


def test_classes_that_a_client_lacks_are_left_alone():
    """Their rows of the generic head get no slope at all; those of FedAvg do."""
    task, turn = task_of(), turn_of()
    x = torch.arange(24.0).view(6, 4) / 10
    data, initial = Data.of(x, torch.tensor([0, 1, 0, 1, 0, 0])), task.init(rng.key(1))
    kept = []
    for method in (fedrod(task), fedavg(task)):
        state = method.start({"params": initial}, initial, rng.key(0))
        sent = method.client({"params": initial}, state, data, turn).upload.mean["params"]
        kept.append(all(torch.equal(sent[k][2], initial[k][2]) for k in task.head))
    assert kept == [True, False]


@pytest.mark.parametrize("engine", ENGINES)
def test_who_has_never_trained_uses_the_generic_head_alone(engine):
    task, world = task_of(), ragged()
    sim = simulate(fedrod(task), world, task, engine=engine)
    play(sim, [[0, 1]])
    x, server = world.x[:7], sim.server["params"]
    said = {cid: sim.method.predict(model, x) for cid, model in models(sim).items()}
    torch.testing.assert_close(said["4"], task.predict(server, x))
    assert not torch.allclose(said["0"], task.predict(server, x), atol=1e-3)
    general = sim.outputs(general=True).test
    assert general.isfinite().all()


# ------------------------------------------------------------------------- with a hypernetwork


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_written_head_by_hand(engine):
    # as by hand above, h begins as 0: slopes of what a head is are those of the writer's last bias,
    # and times r_k = ReLU(A π_k + a) those of its last weight; A has none, since that weight is 0
    #   d_0 = (W[0], b[0]) = (1/4, 1/4) and d_1 = (-1, -1/2), with weights 4/5 and 1/5
    # so client k's head is Σ_j Ω_j d_j (1 + r_j r_k), also that of client 2, who is not there
    task = two_layers([[1.0]], [[0.0], [0.0]])
    rows = [[([1.0], 0), ([2.0], 0), ([3.0], 0), ([4.0], 1)], [([2.0], 1)], [([9.0], 0)] * 2]
    method = fedrod(task, hyper=True, hidden=4, recipe=ONE)
    sim = simulate(method, labelled(rows), task, engine=engine, held_out=torch.tensor([2]))
    first = tree.map(torch.clone, sim.server["hyper"]["first"])
    play(sim, [[0, 1]])
    pi = torch.tensor([[3 / 4, 1 / 4], [0.0, 1.0], [1.0, 0.0]])
    r = (pi @ first["weight"].T + first["bias"]).relu()
    for k, model in models(sim).items():
        near_0, near_1 = (1 + float(r[j] @ r[int(k)]) for j in (0, 1))
        weight = 0.8 * 0.25 * near_0 - 0.2 * near_1
        bias = 0.8 * 0.25 * near_0 - 0.2 * 0.5 * near_1
        assert model["own"]["head.weight"].flatten().tolist() == near(weight, -weight)
        assert model["own"]["head.bias"].tolist() == near(bias, -bias)
    assert gap(sim.server["hyper"]["first"], first) < 1e-12
    assert sim.server["params"]["head.weight"].flatten().tolist() == near(-0.3, 0.3)


@pytest.mark.usefixtures("double")
def test_the_writer_is_trained_as_in_plain_pytorch():
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1, momentum=0.5)
    data, turn, initial = data_of(ragged(), 1), turn_of(), task.init(rng.key(3))
    method = fedrod(task, hyper=True, hidden=5, recipe=recipe)
    server = method.init(6, initial, rng.key(1))
    drawn = tree.map(lambda p: p + 0.3 * torch.randn_like(p), server["hyper"])
    out = method.client(server | {"hyper": drawn}, {}, data, turn)
    net, hyper = mlp(), nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 21))
    net.load_state_dict(initial)
    last = drawn["last"]
    hyper.load_state_dict({
        "0.weight": drawn["first"]["weight"],
        "0.bias": drawn["first"]["bias"],
        "2.weight": torch.cat([last[k]["weight"] for k in ("2.weight", "2.bias")]),
        "2.bias": torch.cat([last[k]["bias"] for k in ("2.weight", "2.bias")]),
    })  # fmt: skip
    counts = torch.bincount(data.y[data.rows[: int(data.n)]], minlength=3).double()
    write = lambda: hyper(counts / counts.sum()).split([18, 3])
    steps = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in (net, hyper)]
    for batch in data.filled(recipe.plan(data, turn.key)):
        x, y = batch.x[batch.weight > 0], batch.y[batch.weight > 0]
        for step in steps:
            step.zero_grad()
        z = net[:2](x)
        g, (weight, bias) = net[2](z), write()
        own = F.linear(z.detach(), weight.view(3, 6), bias)
        (F.cross_entropy(g + counts.log(), y) + F.cross_entropy(g.detach() + own, y)).backward()
        for step in steps:
            step.step()
    sent = out.upload.mean["hyper"]
    torch.testing.assert_close(sent["first"]["weight"], hyper[0].weight.detach())
    torch.testing.assert_close(sent["last"]["2.bias"]["weight"], hyper[2].weight.detach()[18:])
    torch.testing.assert_close(out.model["own"]["2.weight"].flatten(), write()[0].detach())
    assert gap(out.upload.mean["params"], dict(net.state_dict())) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_a_writer_changes_nothing_for_the_generic_path_and_travels(engine):
    """C → 32 → 21 numbers more each way; and clients with the same shares have the same head."""
    task, world = task_of("norm"), ragged()
    ways = (fedrod(task, hyper=True), fedrod(task, hyper=True, own_start="zero"), fedrod(task))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        (*_, report) = play(sim, COHORTS)
        if "hyper" in sim.server:
            size = 3 * 32 + 32 + 32 * 21 + 21
            assert report.down.tolist() == report.up.tolist() == [4 * (75 + size)] * 3
        assert same(sim.server["params"], sims[0].server["params"])
    begun = simulate(ways[1], world, task)
    model = models(begun)["0"]
    assert torch.equal(
        ways[1].predict(model, world.x[:5]), task.predict(begun.initial, world.x[:5])
    )
    copied = models(simulate(ways[0], world, task))["0"]["own"]
    assert same(copied, tree.pick(begun.initial, task.head))


@pytest.mark.usefixtures("double")
def test_fine_tuning_trains_the_personal_head_alone():
    """From 0 at a client that was held out: softmax regression on features, plus g."""
    task, world, recipe = task_of(), ragged(), Recipe(epochs=2, batch=0, lr=0.1)
    sim = simulate(fedrod(task), world, task, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 3]])
    ((_, tuned),) = sim.models(recipe, ids=torch.tensor([5]))
    assert same(tuned["params"], sim.server["params"])
    net, own, data = mlp(), nn.Linear(6, 3), data_of(world, 5)
    net.load_state_dict(sim.server["params"])
    for p in own.parameters():
        nn.init.zeros_(p)
    step = torch.optim.SGD(own.parameters(), lr=0.1)
    x, y = data.x[data.rows[: int(data.n)]], data.y[data.rows[: int(data.n)]]
    for _ in range(2):
        step.zero_grad()
        F.cross_entropy(net(x).detach() + own(net[:2](x).detach()), y).backward()
        step.step()
    ours = {k.removeprefix("2."): v for k, v in tuned["own"].items()}
    assert gap(ours, dict(own.state_dict())) < 1e-12


@pytest.mark.usefixtures("double")
def test_without_balancing_noise_covers_everything():
    task, noise = toy_task(), Recipe(batch=4, lr=0.1, dp_clip=1.0, dp_noise=1.0)
    balanced, plain = (fedrod(task, gamma=g, recipe=noise) for g in (1.0, 0.0))
    assert "without noise" in balanced.not_private
    assert not plain.not_private
    assert leaks_of(plain, task, toy_federation()).train == ()
    assert leaks_of(balanced, task, toy_federation()).train


def test_a_network_without_a_head_of_its_own_is_refused():
    task = classification(lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()))
    with pytest.raises(BadInput, match="Fed-RoD puts a second head on features, but the network"):
        fedrod(task)
