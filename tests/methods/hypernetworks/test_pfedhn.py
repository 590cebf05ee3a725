"""pFedHN: a hypernetwork writes the models."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods import local, pfedhn
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    mlp,
    models,
    module_of,
    near,
    of_models,
    one_number,
    play,
    ragged,
    same,
    simulate,
    task_of,
    two_clients,
)

# plain steps: no momentum, no decay, and limits that nothing reaches
PLAIN = {"momentum": 0.0, "weight_decay": 0.0, "clip": 0.0, "inner_clip": 0.0}
COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_and_a_table_by_hand(engine):
    # a table instead of a network: J = 1. d = theta - theta~, gradient d/2 (mean over the cohort),
    # lr 1.  theta~ is half the way to the mean, 2 or 8.
    # round 0:  theta 0, 0;  theta~ 1, 4;       d -1, -4;        theta 0.5, 2
    # round 1:  theta~ 1.25, 5;                 d -0.75, -3;     theta 0.875, 3.5
    task = one_number()
    method = pfedhn(task, network="table", lr=1.0, recipe=HALF, **PLAIN)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert sim.server["net"]["w"].tolist() == near(0.5, 2.0)
    play(sim)
    assert sim.server["net"]["w"].tolist() == near(0.875, 3.5)
    assert of_models(sim, "w") == near(0.875, 3.5)


@pytest.mark.parametrize("engine", ENGINES)
def test_momentum_and_decay_of_the_server_by_hand(engine):
    # as before with lr 1/2, momentum 1/2, decay 1/4:  g = d/2 + theta/4,  m = m/2 + g
    # round 0:  g -0.5, -2;                                 m -0.5, -2;           theta 0.25, 1
    # round 1:  theta~ 1.125, 4.5;  d -0.875, -3.5;
    #           g -0.4375 + 0.0625 = -0.375, -1.75 + 0.25 = -1.5;
    #           m -0.25 - 0.375 = -0.625, -1 - 1.5 = -2.5;                        theta 0.5625, 2.25
    task = one_number()
    options = PLAIN | {"momentum": 0.5, "weight_decay": 0.25}
    method = pfedhn(task, network="table", lr=0.5, recipe=HALF, **options)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert sim.server["net"]["w"].tolist() == near(0.25, 1.0)
    play(sim)
    assert sim.server["net"]["w"].tolist() == near(0.5625, 2.25)


@pytest.mark.parametrize("engine", ENGINES)
def test_embeddings_of_absent_clients_stay_by_hand(engine):
    # as before: after round 0 theta 0.25, 1 and m -0.5, -2; then one client alone, weight 1
    # round 1, client 1:  theta~ 4.5, d -3.5, g -3.5 + 0.25,  m -1 - 3.25 = -4.25,  theta 3.125
    # round 2, client 0:  theta~ 1.125, d -0.875, g -0.8125,  m -0.25 - 0.8125,     theta 0.78125
    task = one_number()
    options = PLAIN | {"momentum": 0.5, "weight_decay": 0.25}
    method = pfedhn(task, network="table", lr=0.5, recipe=HALF, **options)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim, [[0, 1], [1]])
    assert sim.server["net"]["w"].tolist() == near(0.25, 3.125)
    assert sim.server["memory"]["w"].tolist() == near(-0.5, -4.25)
    play(sim, [[0]])
    assert sim.server["net"]["w"].tolist() == near(0.78125, 3.125)


def test_a_network_moves_only_the_embeddings_of_those_who_are_there():
    task, world = task_of(), ragged()
    sim = simulate(pfedhn(task, hidden=8), world, task)
    play(sim)
    before = tree.map(torch.clone, sim.server)
    play(sim, [[1, 4]])
    for kept in ("net", "memory"):
        moved = (sim.server[kept]["embed"] != before[kept]["embed"]).any(1)
        assert moved.tolist() == [i in (1, 4) for i in range(6)]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_local_head_as_the_authors_train_it(engine):
    """Body: an optimiser per round, gradients cut. Head: one optimiser for good, no limit.

    With a look-up table, lr 1 and one client a round, the body goes on where it was.
    """
    task, world = task_of(), ragged()
    recipe = Recipe(epochs=3, batch=0, lr=0.1, momentum=0.9, weight_decay=0.01)
    options = PLAIN | {"inner_clip": 0.05}
    method = pfedhn(task, local_head=True, network="table", lr=1.0, recipe=recipe, **options)
    sim = simulate(method, world, task, engine=engine)
    net, own = module_of("mlp", sim.initial), data_of(world, 2)
    rows, how = own.rows[: int(own.n)], {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    head = torch.optim.SGD(net[2].parameters(), **how)
    for cohort in ([2], [0], [2]):
        play(sim, [cohort])
        if cohort != [2]:
            continue
        body = torch.optim.SGD(net[0].parameters(), **how)
        for _ in range(3):
            net.zero_grad()
            F.cross_entropy(net(own.x[rows]), own.y[rows]).backward()
            assert torch.nn.utils.clip_grad_norm_(net[0].parameters(), 0.05) > 0.05
            body.step()
            head.step()
        assert gap(models(sim)["2"], net.state_dict()) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_limits_of_both_gradients_by_hand(engine):
    # the client's gradients -2 and -8 are cut to -1 and -1: theta~ 0.5, 0.5, d -0.5, -0.5, g -0.25
    # each, norm 0.35355; cut to 0.1: g = -0.07071 each
    task = one_number()
    options = PLAIN | {"inner_clip": 1.0, "clip": 0.1}
    method = pfedhn(task, network="table", lr=1.0, recipe=HALF, **options)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert sim.server["net"]["w"].tolist() == pytest.approx([0.0707107, 0.0707107], abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_and_a_network_by_hand(engine):
    # theta_k = h (u v_k + c) + e  with embeddings v = 1, 2, and u = h = 1, c = e = 0:  theta 1, 2
    # theta~ = 1.5, 5;  d = -0.5, -3;  each with weight 1/2:
    #   dv = -0.25, -1.5       du = (-0.5 * 1 - 3 * 2)/2 = -3.25    dc = -1.75
    #   dh = (-0.5 * 1 - 3 * 2)/2 = -3.25                            de = -1.75
    # lr 0.1:  v = 1.025, 2.15;  u = h = 1.325;  c = e = 0.175
    #   theta_0 = 1.325 (1.325 * 1.025 + 0.175) + 0.175 = 1.325 * 1.533125 + 0.175 = 2.206390625
    #   theta_1 = 1.325 (1.325 * 2.15 + 0.175) + 0.175 = 1.325 * 3.02375 + 0.175 = 4.18146875
    task = one_number()
    method = pfedhn(task, hidden=1, depth=0, embed=1, lr=0.1, recipe=HALF, **PLAIN)
    sim = simulate(method, two_clients(), task, engine=engine)
    one, zero = torch.ones(1, 1), torch.zeros(1)
    sim.server["net"] = {
        "embed": torch.tensor([[1.0], [2.0]]),
        "body": {"0": {"weight": one, "bias": zero}},
        "heads": {"w": {"weight": one, "bias": zero}},
    }
    assert of_models(sim, "w") == near(1.0, 2.0)
    play(sim)
    net = tree.flatten(sim.server["net"])
    assert net["embed"].flatten().tolist() == near(1.025, 2.15)
    assert float(net["body/0/weight"]) == near(1.325)
    assert float(net["body/0/bias"]) == near(0.175)
    assert float(net["heads/w/weight"]) == near(1.325)
    assert float(net["heads/w/bias"]) == near(0.175)
    assert of_models(sim, "w") == near(2.206390625, 4.18146875)


# ----------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("cohort", [[2], [0, 2, 3]])
def test_the_pulled_back_update_is_the_true_gradient(engine, cohort):
    """One plain inner step: J^T d = inner lr * gradient of the mean loss, through the net."""
    task, world = task_of(), ragged()
    rate = 0.2
    method = pfedhn(task, hidden=16, lr=1.0, recipe=Recipe(batch=0, lr=rate), **PLAIN)
    sim = simulate(method, world, task, engine=engine)
    net = tree.map(lambda p: p.clone().requires_grad_(), sim.server["net"])
    play(sim, [cohort])

    # an ordinary forward pass through the hypernetwork and the clients' nets, with autograd
    total = torch.zeros(())
    for client in cohort:
        z = F.linear(net["embed"][client], net["body"]["0"]["weight"], net["body"]["0"]["bias"])
        for i in ("1", "2", "3"):
            z = F.linear(z.relu(), net["body"][i]["weight"], net["body"][i]["bias"])
        shapes = {k: p.shape for k, p in mlp().named_parameters()}
        theta = {
            k: F.linear(z, net["heads"][k]["weight"], net["heads"][k]["bias"]).view(shapes[k])
            for k in shapes
        }
        data = data_of(world, client)
        rows = data.rows[: int(data.n)]
        out = functional_call(mlp(), theta, (data.x[rows],))
        total = total + F.cross_entropy(out, data.y[rows]) / len(cohort)
    total.backward()
    expected = tree.map(lambda p: (p - rate * p.grad).detach(), net)
    assert gap(sim.server["net"], expected) < 3e-6
    assert gap(sim.server["net"], tree.map(torch.Tensor.detach, net)) > 1e-3
    # clients that were not there have their embedding as it was
    for client in set(range(6)) - set(cohort):
        assert torch.equal(sim.server["net"]["embed"][client], net["embed"][client].detach())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_is_local(engine):
    """Look-up table, lr 1, one client a step as in the official code: Local.

    With a cohort of m the gradient is a mean, so that lr m is needed; lr 1 is not Local then.
    """
    task, world = task_of(), ragged()
    for cohorts, lr, equal in (
        ([[0], [3], [0], [1]], 1.0, True),
        ([[0, 3], [1, 3]], 2.0, True),
        ([[0, 3], [1, 3]], 1.0, False),
    ):
        alone = simulate(local(task), world, task, engine=engine)
        sim = simulate(pfedhn(task, network="table", lr=lr, **PLAIN), world, task, engine=engine)
        play(alone, cohorts)
        play(sim, cohorts)
        assert (gap(models(sim), models(alone)) < 1e-6) == equal


@pytest.mark.parametrize("engine", ENGINES)
def test_with_lr_0_nothing_is_learnt(engine):
    task, world = task_of(), ragged()
    for lr in (0.0, 0.01):
        sim = simulate(pfedhn(task, hidden=8, lr=lr), world, task, engine=engine)
        before = models(sim)
        play(sim, COHORTS)
        assert same(models(sim), before) == (lr == 0)


# --------------------------------------------------------------------------- shape and variants


def test_the_official_shape_by_default():
    """Embeddings of 1 + N/4 (floored), an own layer and three hidden ones of 100, lr 0.01."""
    task = task_of()
    for clients, size in ((3, 1), (6, 2), (8, 3)):
        net = simulate(pfedhn(task), ragged([7] * clients), task).server["net"]
        assert net["embed"].shape == (clients, size)
        assert {k: v["weight"].shape for k, v in net["body"].items()} == {
            "0": (100, size),
            "1": (100, 100),
            "2": (100, 100),
            "3": (100, 100),
        }
        assert {k: tuple(v["weight"].shape) for k, v in net["heads"].items()} == {
            "0.weight": (24, 100),
            "0.bias": (6, 100),
            "2.weight": (18, 100),
            "2.bias": (3, 100),
        }


@pytest.mark.parametrize("engine", ENGINES)
def test_everybody_has_a_model_of_its_own(engine):
    task, world = task_of(), ragged()
    sim = simulate(pfedhn(task), world, task, engine=engine)
    play(sim, COHORTS)
    found = models(sim)
    assert not any(same(found["0"], found[str(i)]) for i in range(1, 6))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_head_of_ones_own(engine):
    """pFedHN-PC: the body (30 numbers) is written and travels, the head (21) is trained at home."""
    task, world = task_of(), ragged()
    sim = simulate(pfedhn(task, local_head=True), world, task, engine=engine)
    (report,) = play(sim, [[0, 1]])
    assert report.down.tolist() == report.up.tolist() == [120, 120]
    assert set(sim.server["net"]["heads"]) == {"0.weight", "0.bias"}
    head = tree.pick(sim.initial, task.head)
    for client in range(6):
        assert same(tree.pick(models(sim)[str(client)], task.head), head) == (client > 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_stay_with_the_client(engine):
    task, world = task_of("norm"), ragged()
    sim = simulate(pfedhn(task), world, task, engine=engine)
    play(sim, [[0, 1]])
    assert set(sim.states.rows["own"]) == {"1.running_mean", "1.running_var"}
    mean = sim.states.rows["own"]["1.running_mean"]
    assert not torch.equal(mean[0], mean[1])
    assert torch.equal(models(sim)["0"]["1.running_mean"], mean[0])
    assert "1.running_mean" not in sim.server["net"]["heads"]


@pytest.mark.parametrize("engine", ENGINES)
def test_inner_steps_count_batches(engine):
    # the row 2 alone: three halvings from 0 are 1.75, d = -1.75; the table moves by lr 1
    task = one_number()
    options = PLAIN | {"inner_steps": 3, "network": "table", "lr": 1.0}
    sim = simulate(pfedhn(task, recipe=HALF, **options), two_clients(), task, engine=engine)
    play(sim, [[0]])
    assert sim.server["net"]["w"].tolist() == near(1.75, 0.0)
