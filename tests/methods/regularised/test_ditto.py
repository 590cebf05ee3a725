"""Ditto: a model of one's own beside the global one."""

import pytest
from torch import nn

from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import ditto, fedavg, local
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
    task_of,
    two_clients,
    with_epochs,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # w is FedAvg's: 0 -> 3.25 -> 4.875. lam = 1/2, so the gradient of v is (v - mean) + (v - w)/2,
    # with w as received
    # round 0, w = 0:     v: 0 -> 1 and 0 -> 4
    # round 1, w = 3.25:
    #   client 0:  g = -1 + (1 - 3.25)/2 = -2.125    v = 1 + 1.0625 = 2.0625
    #   client 1:  g = -4 + (4 - 3.25)/2 = -3.625    v = 4 + 1.8125 = 5.8125
    task = one_number()
    sim = simulate(ditto(task, lam=0.5, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.25)
    assert sim.states.rows["own"]["w"].tolist() == near(1.0, 4.0)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.875)
    assert sim.states.rows["own"]["w"].tolist() == near(2.0625, 5.8125)
    assert of_models(sim, "w") == near(2.0625, 5.8125)


@pytest.mark.parametrize("engine", ENGINES)
def test_epochs_of_its_own_by_hand(engine):
    # two steps for v, one for w. Round 0, w = 0:
    #   client 0:  0 -> 1;  g = -1 + 0.5 = -0.5  -> 1.25
    #   client 1:  0 -> 4;  g = -4 + 2 = -2      -> 5
    task = one_number()
    method = ditto(task, lam=0.5, own_epochs=2, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.25)
    assert sim.states.rows["own"]["w"].tolist() == near(1.25, 5.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("epochs", [1, 3])
def test_without_the_pull_it_is_local(engine, epochs):
    """lam = 0: v_k is Local with s epochs a turn: exact; with lam > 0 it is not."""
    task, world = task_of("norm"), ragged()
    # everybody is there at first, then not
    cohorts = [range(6), *COHORTS]
    alone = simulate(local(task, recipe=with_epochs(epochs)), world, task, engine=engine)
    play(alone, [list(c) for c in cohorts])
    for lam in (0.0, 1.0):
        sim = simulate(ditto(task, lam=lam, own_epochs=epochs), world, task, engine=engine)
        play(sim, [list(c) for c in cohorts])
        assert same(sim.states.rows["own"], alone.states.rows["own"]) == (lam == 0)
        assert same(models(sim), models(alone)) == (lam == 0)


def test_without_the_pull_late_clients_are_local_too():
    """The same where some join after round 0: v_k starts from the common initial model."""
    task, world = task_of(), ragged()
    sims = [simulate(m, world, task) for m in (ditto(task, lam=0.0), local(task))]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].states.rows["own"], sims[1].states.rows["own"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lam", [0.0, 0.1, 1.0, 2.0])
def test_the_global_path_is_fedavg(engine, lam):
    """For every lam: exact."""
    task, world = task_of("norm"), ragged()
    recipe = Recipe(epochs=2)
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (fedavg(task, recipe=recipe), ditto(task, lam=lam, recipe=recipe))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert not same(models(sims[0]), models(sims[1]))


def test_a_stronger_pull_ends_nearer_to_the_global_model():
    task, world = task_of(), ragged()
    apart = []
    for lam in (0.0, 1.0, 5.0):
        sim = simulate(ditto(task, lam=lam, recipe=Recipe(epochs=3)), world, task)
        play(sim, 5)
        apart.append(sum(gap(m, sim.server["params"]) for m in models(sim).values()))
    assert apart[0] > apart[1] > apart[2] > 0


# -------------------------------------------------------------- mistakes that public codes make


@pytest.mark.parametrize("engine", ENGINES)
def test_dittos_own_model_trains_in_training_mode(engine):
    """Guards against v_k trained in evaluation mode: frozen statistics, no dropout."""
    task, world = task_of("norm"), ragged()
    sim = simulate(ditto(task), world, task, engine=engine)
    play(sim)
    own = sim.states.rows["own"]
    assert (own["1.running_mean"] != 0).all()
    assert (own["1.running_var"] != 1).all()
    # every v_k has statistics of its own rows
    assert len({tuple(row.tolist()) for row in own["1.running_mean"]}) == 6
    # dropout: without its masks the same steps end elsewhere
    build = lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.0), nn.Linear(6, 3)
    )
    dry = simulate(ditto(classification(build)), world, classification(build), engine=engine)
    play(dry)
    assert same(dry.initial, sim.initial)
    assert gap(dry.states.rows["own"], own) > 1e-4
