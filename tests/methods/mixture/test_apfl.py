"""APFL: a personal mixture of a local and the global model, with a learnt weight."""

import pytest
import torch
from torch import nn

from fedtailor.core import tree
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import apfl, fedavg, local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    models,
    near,
    of_models,
    one_number,
    play,
    ragged,
    same,
    simulate,
    snapshot,
    task_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # α = 1/2. round 0, w = v = 0, so α has no slope:
    #   client 0:  w = 1, v = 0.5 0.5 2 = 0.5      client 1:  w = 4, v = 2
    #   w = 3.25;  tested: (0.5 + 3.25)/2 = 1.875 and (2 + 3.25)/2 = 2.625
    # round 1:
    #   client 0:  slope of α: (0.5 - 3.25) (1.875 - 2) = 0.34375,  α = 0.5 - 0.171875 = 0.328125
    #     mixture 0.328125 0.5 + 0.671875 3.25 = 2.34765625, gradient 0.34765625
    #     v = 0.5 - 0.5 0.328125 0.34765625 = 0.442962646484375;  w = 2.625
    #   client 1:  slope of α: (2 - 3.25) (2.625 - 8) = 6.71875,  α = 0 (clipped)
    #     v = 2 (its gradient has the factor α);  w = 5.625
    #   w = (2.625 + 16.875)/4 = 4.875
    #   tested: 0.328125 0.442962646484375 + 0.671875 4.875 = 3.4207377433776855, and 4.875
    task = one_number()
    sim = simulate(apfl(task, alpha=0.5, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(0.5, 2.0)
    assert sim.states.rows["alpha"].tolist() == [0.5, 0.5]
    assert of_models(sim, "w") == near(1.875, 2.625)
    play(sim)
    assert sim.states.rows["alpha"].tolist() == near(0.328125, 0.0)
    assert sim.states.rows["own"]["w"].tolist() == near(0.442962646484375, 2.0)
    assert float(sim.server["params"]["w"]) == near(4.875)
    assert of_models(sim, "w") == near(3.4207377433776855, 4.875)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_fixed_weight_by_hand(engine):
    # α = 1/4 for ever. round 0:  v = 0.5 0.25 2 = 0.25 and 0.5 0.25 8 = 1
    # round 1, w = 3.25:
    #   client 0:  mixture 0.0625 + 2.4375 = 2.5, gradient 0.5,   v = 0.25 - 0.0625 = 0.1875
    #   client 1:  mixture 0.25 + 2.4375 = 2.6875, gradient -5.3125,  v = 1 + 0.6640625
    task = one_number()
    method = apfl(task, alpha=0.25, adaptive=False, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(0.25, 1.0)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(0.1875, 1.6640625)
    assert sim.states.rows["alpha"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("adaptive", [True, False])
def test_the_global_path_is_fedavg(adaptive, engine):
    """For every α: exact."""
    task, world = task_of("norm"), ragged()
    plain = simulate(fedavg(task), world, task, engine=engine)
    play(plain, COHORTS)
    for alpha in (0.0, 0.5, 1.0):
        method = apfl(task, alpha=alpha, adaptive=adaptive)
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        assert same(sim.server, plain.server)
        assert torch.equal(sim.score(general=True).test.loss, plain.score().test.loss)


@pytest.mark.parametrize("engine", ENGINES)
def test_at_its_ends_it_is_fedavg_or_local(engine):
    """α = 0: the tested model is FedAvg's; α = 1: training alone. Exact; 1/2 is neither."""
    task, world = task_of(), ragged()
    hosts = [simulate(m, world, task, engine=engine) for m in (fedavg(task), local(task))]
    for host in hosts:
        play(host, COHORTS)
    for alpha, expected in ((0.0, [True, False]), (1.0, [False, True]), (0.5, [False, False])):
        sim = simulate(apfl(task, alpha=alpha, adaptive=False), world, task, engine=engine)
        play(sim, COHORTS)
        assert [same(models(sim), models(host)) for host in hosts] == expected


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_on_gradients_is_for_each_model(engine):
    """So the global path is FedAvg's under the same limit, and with α = 1 v is training alone."""
    task, world, recipe = task_of(), ragged(), Recipe(epochs=2, lr=0.1, clip=0.3)
    methods = (fedavg(task, recipe=recipe), local(task, recipe=recipe))
    hosts = [simulate(m, world, task, engine=engine) for m in methods]
    sim = simulate(apfl(task, alpha=1.0, recipe=recipe), world, task, engine=engine)
    own = apfl(task, alpha=1.0, adaptive=False, recipe=recipe)
    alone = simulate(own, world, task, engine=engine)
    for each in (*hosts, sim, alone):
        play(each, COHORTS)
    assert same(sim.server, hosts[0].server)
    assert same(models(alone), models(hosts[1]))


def test_the_weight_stays_between_0_and_1_and_moves():
    task, world = task_of(), ragged()
    sim = simulate(apfl(task), world, task)
    play(sim)
    (report,) = play(sim, 1)
    share = sim.states.rows["alpha"]
    assert ((share >= 0) & (share <= 1)).all()
    assert (share != 0.5).all()
    assert torch.equal(report.notes["alpha"], share)
    fixed = simulate(apfl(task, adaptive=False), world, task)
    play(fixed, 2)
    assert (fixed.states.rows["alpha"] == 0.5).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_keep_model_and_weight(engine):
    """Their mixture follows the global model all the same."""
    task, world = task_of("norm"), ragged()
    sim = simulate(apfl(task), world, task, engine=engine)
    play(sim)
    before, tested = snapshot(sim)["states"], models(sim)
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))
    assert gap(models(sim)["1"], tested["1"]) > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_are_those_of_the_model_that_is_tested(engine):
    """α = 1 with BatchNorm: Local, running statistics included."""
    build = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    task, world = classification(build), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (apfl(task, alpha=1.0, adaptive=False), local(task))
    ]
    for sim in sims:
        play(sim, COHORTS)
    found = [{k: tree.drop(m, task.buffers) for k, m in models(sim).items()} for sim in sims]
    assert gap(*found) < 1e-6  # the weights are
    assert gap(models(sims[0]), models(sims[1])) < 1e-6
