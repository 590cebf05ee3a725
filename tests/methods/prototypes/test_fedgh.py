"""FedGH: bodies of one's own below one head, which the server trains on class means."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core import rng, tree, wire
from fedtailor.core.errors import BadInput
from fedtailor.core.method import Upload
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe, fit
from fedtailor.engine import Simulation
from fedtailor.methods import fedgh
from tests.methods.worlds import (
    ENGINES,
    classes_of,
    data_of,
    deeper_mlp,
    gap,
    labelled,
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
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1)]]


def uploaded(means: torch.Tensor, seen: torch.Tensor) -> Upload:
    """Class means as they arrive: what was not sent is no number."""
    sent = torch.where(seen[..., None] > 0, means, torch.nan)
    return Upload(each={"classes": wire.maybe(seen > 0, {"means": sent})})


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = a x with a = 1, the head is 0: bodies have no slope, trained heads are let go of
    # class means 2 and 5 of class 0, 8 of class 1; probabilities are 1/2:
    #   slopes of the head: W[0]: (-2 - 5 + 8)/2/3 = 1/6, b[0]: (-1 - 1 + 1)/2/3 = -1/6
    #   with η_s = 0.6: W = ∓0.1, b = ±0.1
    task = two_layers([[1.0]], [[0.0], [0.0]])
    sim = simulate(fedgh(task, server_lr=0.6, recipe=EIGHTH), labelled(ROWS), task, engine=engine)
    play(sim)
    assert sim.server["head"]["head.weight"].flatten().tolist() == near(-0.1, 0.1)
    assert sim.server["head"]["head.bias"].tolist() == near(0.1, -0.1)
    assert sim.states.rows["body"]["body.weight"].flatten().tolist() == [1.0, 1.0]
    # round 1, client 0 of class 0: q = 1/(1 + exp(2 (0.1 - 0.1 x))), slope of a: 0.2 mean(q x)
    play(sim, [[0]])
    q = [1 / (1 + math.exp(2 * (0.1 - 0.1 * x))) for x in (1, 3)]
    a = 1 - 0.125 * 0.2 * (q[0] + 3 * q[1]) / 2
    assert sim.states.rows["body"]["body.weight"].flatten().tolist() == near(a, 1.0)
    # the server's step on the one class mean 2 a
    p = 1 / (1 + math.exp(2 * (0.1 - 0.1 * 2 * a)))
    assert sim.server["head"]["head.weight"].flatten().tolist() == near(
        -0.1 + 0.6 * p * 2 * a, 0.1 - 0.6 * p * 2 * a
    )
    assert float(models(sim)["0"]["head.bias"][0]) == near(0.1 + 0.6 * p)


@pytest.mark.usefixtures("double")
def test_the_server_steps_along_the_gradient_of_class_means():
    task = task_of()
    method, initial = fedgh(task, server_lr=0.3, server_epochs=2), task.init(rng.key(3))
    means, seen = torch.randn(4, 3, 6), torch.tensor([[1.0, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]])
    server = {"head": tree.pick(initial, task.head)}
    up = uploaded(means, seen)
    found = method.receive(server, torch.arange(4), up, turn_of())["head"]
    layer = nn.Linear(6, 3)
    layer.load_state_dict({"weight": initial["2.weight"], "bias": initial["2.bias"]})
    step = torch.optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(2):
        step.zero_grad()
        losses = [
            F.cross_entropy(layer(means[k, c]), torch.tensor(c))
            for k in range(4) for c in range(3) if seen[k, c]
        ]  # fmt: skip
        torch.stack(losses).mean().backward()
        step.step()
    torch.testing.assert_close(found["2.weight"], layer.weight.detach())
    torch.testing.assert_close(found["2.bias"], layer.bias.detach())
    # the order of clients does not matter
    turned = uploaded(means.flip(0), seen.flip(0))
    assert gap(method.receive(server, torch.arange(4), turned, turn_of())["head"], found) < 1e-12
    assert same(server["head"], tree.pick(initial, task.head))  # and it is left as it was


@pytest.mark.parametrize("engine", ENGINES)
def test_with_a_fixed_head_clients_never_hear_of_each_other(engine):
    task, world = task_of("norm"), ragged()
    still, moving = (fedgh(task, server_lr=lr) for lr in (0.0, 0.5))
    together, alone = (simulate(still, world, task, engine=engine) for _ in range(2))
    play(together, 3)
    play(alone, [[2]] * 3)
    assert same(together.server["head"], tree.pick(together.initial, task.head))
    assert gap(models(together)["2"], models(alone)["2"]) < 1e-5
    ends = []
    for cohorts in (3, [[2]] * 3):
        sim = simulate(moving, world, task, engine=engine)
        play(sim, cohorts)
        ends.append(models(sim)["2"])
    assert gap(*ends) > 1e-3


def test_what_is_tested_is_the_received_head():
    """The trained one is only in the model right after training."""
    task, data, initial = task_of(), data_of(ragged(), 1), task_of().init(rng.key(3))
    method = fedgh(task)
    msg = {"head": tree.pick(initial, task.head)}
    state = method.start(msg, initial, rng.key(0))
    out = method.client(msg, state, data, turn_of())
    assert same(out.model, fit(task, initial, data, turn_of(), Recipe()))
    later = method.personal(msg, out.state, data, turn_of())
    assert same(tree.pick(later, task.head), msg["head"])
    assert not same(tree.pick(out.model, task.head), msg["head"])


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_are_those_of_a_head_and_of_the_classes_there(engine):
    """Whatever the body: 3 x (6 + 1) down, 6 for each class that the client has up."""
    world = ragged([7, 2, 13, 1])
    has = [classes_of(world, k) for k in range(4)]
    assert 1 in has and 3 in has
    for net in ("mlp", "norm"):
        task = task_of(net)
        sim = simulate(fedgh(task), world, task, engine=engine)
        for report in play(sim, [[0, 1, 3], [0, 1, 2, 3]]):
            assert report.down.tolist() == [4 * 21] * len(report.ids)
            assert report.up.tolist() == [4 * 6 * has[k] for k in report.ids.tolist()]


def test_fine_tuning_trains_the_body_below_the_received_head():
    """So does who was held out: from the initial body."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=3, lr=0.1)
    sim = simulate(fedgh(task, server_lr=0.5), world, task, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 3]])
    for _, tuned in sim.models(recipe, ids=torch.tensor([0, 5])):
        assert same(tree.pick(tuned, task.head), sim.server["head"])
    plain = models(sim)["5"]
    assert same(tree.drop(plain, task.head), tree.drop(sim.initial, task.head))
    assert gap(tree.drop(tuned, task.head), tree.drop(plain, task.head)) > 1e-3


@pytest.mark.usefixtures("double")
def test_one_class_mean_a_step():
    """The authors' server; means of two classes at one client, in the order that was drawn."""
    task, turn = task_of(), turn_of()
    initial, means = task.init(rng.key(3)), torch.randn(1, 3, 6)
    server = {"head": tree.pick(initial, task.head)}
    method = fedgh(task, server_lr=0.3, server_batch=1)
    found = method.receive(server, torch.arange(1), uploaded(means, torch.ones(1, 3)), turn)
    layer = nn.Linear(6, 3)
    layer.load_state_dict({"weight": initial["2.weight"], "bias": initial["2.bias"]})
    step = torch.optim.SGD(layer.parameters(), lr=0.3)
    for c in rng.permutation(rng.fold(turn.key, 0), 3).tolist():
        step.zero_grad()
        F.cross_entropy(layer(means[0, c]), torch.tensor(c)).backward()
        step.step()
    torch.testing.assert_close(found["head"]["2.weight"], layer.weight.detach())


def test_networks_of_unlike_bodies_share_a_head():
    deep, small, world = classification(deeper_mlp), task_of(), ragged()
    one, two = (fedgh(task, networks=(deep, small), server_lr=0.5) for task in (deep, small))
    sim = Simulation(one, world, deep, others=[(two, small, torch.tensor([1, 3]))], rounds=5)
    for _ in range(2):
        sim.step(torch.arange(6))
    found = models(sim)
    assert torch.equal(found["0"]["4.weight"], found["1"]["2.weight"])
    assert sim.outputs().test.isfinite().all()
    wide = classification(lambda: nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 3)))
    with pytest.raises(BadInput, match=r"one head for all, but heads of clients have shapes .*12"):
        fedgh(wide, networks=(deep, wide))
