"""FedRep: a shared body, heads of one's own."""

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedrep, local
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    models,
    module_of,
    near,
    of_models,
    outcome,
    play,
    product,
    ragged,
    same,
    simulate,
    task_of,
    two_clients,
    with_epochs,
)

EIGHTH = Recipe(batch=0, lr=0.125)
COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # prediction a b, a = b = 1 at first; lr 1/8, one epoch for the head, then one for the body.
    # Gradients: db = a (a b - mean), da = b (a b - mean) with the NEW b.
    # round 0, a = 1:
    #   client 0: db = 1 - 2 = -1  b = 1.125;  da = 1.125 (1.125 - 2) = -0.984375   a = 1.123046875
    #   client 1: db = 1 - 8 = -7  b = 1.875;  da = 1.875 (1.875 - 8) = -11.484375  a = 2.435546875
    #   a = (1.123046875 + 3 * 2.435546875) / 4 = 8.4296875 / 4 = 2.107421875
    # round 1, a = 2.107421875:
    #   client 0: a b = 2.370849609375,  db = a * 0.370849609375 = 0.78153657913
    #             b = 1.125 - 0.09769207239 = 1.02730792761
    #             a b = 2.16497119900,  da = b * 0.16497119900 = 0.16947622056;  a = 2.08623734743
    #   client 1: a b = 3.951416015625,  db = a * -4.048583984375 = -8.53207445145
    #             b = 1.875 + 1.06650930643 = 2.94150930643
    #             a b = 6.19900105886,  da = b * -1.80099894114 = -5.29765514909;  a = 2.76962876864
    #   a = (2.08623734743 + 3 * 2.76962876864) / 4 = 2.59878091333
    task = product()
    method = fedrep(task, head_epochs=1, recipe=EIGHTH)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "b") == near(1.125, 1.875)
    assert of_models(sim, "a") == near(2.107421875, 2.107421875)
    play(sim)
    # tested with the averaged body and the own head
    assert of_models(sim, "b") == near(1.02730792761, 2.94150930643)
    assert of_models(sim, "a") == near(2.59878091333, 2.59878091333)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_head_epochs_come_before_the_body_by_hand(engine):
    # two epochs on the head of client 0, a = 1: b = 1.125, then db = -0.875, b = 1.234375;
    # the body after that: da = 1.234375 (1.234375 - 2) = -0.945068359375, a = 1.118133544921875
    task = product()
    sim = simulate(fedrep(task, head_epochs=2, recipe=EIGHTH), two_clients(), task, engine=engine)
    play(sim, [[0]])
    assert of_models(sim, "b") == near(1.234375, 1.0)
    assert of_models(sim, "a") == near(1.118133544921875, 1.118133544921875)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("decay_biases", ["yes", "no"])
def test_a_turn_as_the_authors_train_it(decay_biases):
    """Head, then body, each with SGD whose decay may spare biases: against `torch.optim`."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, lr=0.1, momentum=0.5, weight_decay=0.2, decay_biases=decay_biases)
    sim = simulate(fedrep(task, head_epochs=2, recipe=recipe), world, task)
    net, own = module_of("mlp", sim.initial), data_of(world, 3)
    rows = own.rows[: int(own.n)]
    for part, epochs in ((net[2], 2), (net[0], 1)):
        groups = [{"params": [part.weight]}, {"params": [part.bias]}]
        groups[1]["weight_decay"] = 0.2 if decay_biases == "yes" else 0.0
        optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.5, weight_decay=0.2)
        for _ in range(epochs):
            net.zero_grad()
            F.cross_entropy(net(own.x[rows]), own.y[rows]).backward()
            optimiser.step()
    play(sim, [[3]])  # alone in its round
    assert gap(models(sim)["3"], net.state_dict()) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_with_no_head_it_is_fedavg(engine, net):
    """Empty personal part: exact; with a head it is not."""
    task, world = task_of(net), ragged()
    average = simulate(fedavg(task), world, task, engine=engine)
    play(average, COHORTS)
    for blocks, epochs in ((0, 0), (0, 10), (1, 1)):
        method = fedrep(task, head_blocks=blocks, head_epochs=epochs)
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        assert same(models(sim), models(average)) == (blocks == 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_with_no_body_it_is_local(engine, net):
    """Empty shared part: exact, nothing travels; with a body it is not."""
    task, world = task_of(net), ragged()
    alone = simulate(local(task, recipe=with_epochs(2)), world, task, engine=engine)
    play(alone, COHORTS)
    for blocks in (2, 1):
        method = fedrep(task, head_blocks=blocks, head_epochs=2, recipe=with_epochs(2))
        sim = simulate(method, world, task, engine=engine)
        reports = play(sim, COHORTS)
        assert same(models(sim), models(alone)) == (blocks > 1)
        assert (sum(int(r.down.sum() + r.up.sum()) for r in reports) == 0) == (blocks > 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_heads_change_and_stay_at_home(engine):
    """Every head moves after one local epoch; the server's copy of it never does."""
    task, world = task_of(), ragged()
    sim = simulate(fedrep(task, head_epochs=1), world, task, engine=engine)
    play(sim, [[0, 1, 2]])
    head = tree.pick(sim.initial, task.head)
    body = tree.drop(models(sim)["0"], task.head)
    assert not same(body, tree.drop(sim.initial, task.head))
    for client, model in models(sim).items():
        assert same(tree.drop(model, task.head), body)
        assert same(tree.pick(model, task.head), head) == (int(client) > 2)
    for name in task.head:
        # nothing of a trained head has come to the server
        kept = [v for k, v in tree.flatten(sim.server).items() if k.endswith(name)]
        assert all(torch.equal(v, sim.initial[name]) for v in kept)


def test_running_statistics_of_the_body_are_shared():
    task, world = task_of("norm"), ragged()
    sim = simulate(fedrep(task), world, task)
    play(sim)
    first, *others = (m["1.running_mean"] for m in models(sim).values())
    assert first.abs().min() > 0
    assert all(torch.equal(one, first) for one in others)


def test_three_epochs_on_the_head_by_default():
    task, world = task_of(), ragged()
    sims = [simulate(m, world, task) for m in (fedrep(task), fedrep(task, head_epochs=3))]
    for sim in sims:
        play(sim)
    assert same(*map(outcome, sims))


# -------------------------------------------------------------- mistakes that public codes make


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("head_epochs", [1, 3])
def test_fedreps_head_is_trained_with_one_local_epoch(head_epochs, engine):
    """Guards against taking the head's epochs out of the local epochs: with one, none are left."""
    task, world = task_of(), ragged()
    method = fedrep(task, head_epochs=head_epochs, recipe=Recipe(epochs=1))
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    for client in range(6):
        head = tree.index(sim.states.rows["personal"], client)
        assert gap(head, tree.pick(sim.initial, task.head)) > 1e-4
    body = sim.server["shared"]
    assert gap(body, tree.pick(sim.initial, body)) > 1e-4
