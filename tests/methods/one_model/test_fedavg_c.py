"""FedAvg-C and FedProx-C: the downloaded model is fine-tuned, tested, then trained."""

import pytest

from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedavg_c, fedprox, fedprox_c
from tests.methods.worlds import (
    ENGINES,
    HALF,
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
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_fedavg_c_by_hand(engine):
    # every step halves the way to the rows' mean, 2 or 8; F = 2 steps of fine-tuning, then one
    # round 0, w = 0:
    #   client 0:  0 -> 1 -> 1.5, trained 1.75      client 1:  0 -> 4 -> 6, trained 7
    #   w = (1.75 + 3 7)/4 = 5.6875
    # tested now: client 0:  5.6875 -> 3.84375 -> 2.921875
    #             client 1:  5.6875 -> 6.84375 -> 7.421875
    # round 1: trained on: 2.4609375 and 7.7109375;  w = (2.4609375 + 23.1328125)/4 = 6.3984375
    task = one_number()
    sim = simulate(fedavg_c(task, F=2, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(5.6875)
    assert of_models(sim, "w") == near(2.921875, 7.421875)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(6.3984375)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedprox_c_by_hand(engine):
    # F = 1, mu = 1/2: gradient (w - mean) + (w - received)/2 in fine-tuning and in training
    # round 0, received 0:
    #   client 0:  0 -> 1;  g = -1 + 0.5 = -0.5 -> 1.25
    #   client 1:  0 -> 4;  g = -4 + 2 = -2     -> 5
    #   w = (1.25 + 15)/4 = 4.0625
    # round 1, received 4.0625:
    #   client 0:  g = 2.0625            -> 3.03125 (tested)
    #              g = 1.03125 - 0.515625 = 0.515625    -> 2.7734375
    #   client 1:  g = -3.9375           -> 6.03125 (tested)
    #              g = -1.96875 + 0.984375 = -0.984375  -> 6.5234375
    #   w = (2.7734375 + 19.5703125)/4 = 5.5859375
    task = one_number()
    method = fedprox_c(task, F=1, mu=0.5, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.0625)
    assert of_models(sim, "w") == near(3.03125, 6.03125)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(5.5859375)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_pull_is_there_in_fine_tuning_too(engine):
    # F = 2, mu = 1/2, received 0: client 0:  0 -> 1 -> 1.25 (1.5 without the pull);
    # client 1:  0 -> 4 -> 5 (6)
    task = one_number()
    method = fedprox_c(task, F=2, mu=0.5, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    assert of_models(sim, "w") == near(1.25, 5.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("tuned", "plain"), [(fedavg_c, fedavg), (fedprox_c, fedprox)], ids=["fedavg", "fedprox"]
)
def test_without_fine_tuning_it_is_the_host(tuned, plain, engine):
    """F = 0: exact; with F > 0 neither the server nor the models are."""
    task, world = task_of("norm"), ragged()
    host = simulate(plain(task), world, task, engine=engine)
    play(host, COHORTS)
    for epochs in (0, 2):
        sim = simulate(tuned(task, F=epochs), world, task, engine=engine)
        play(sim, COHORTS)
        assert same(sim.server, host.server) == (epochs == 0)
        assert same(models(sim), models(host)) == (epochs == 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_pull_fedprox_c_is_fedavg_c(engine):
    """In both stages: mu = 0, exact."""
    task, world = task_of(), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (fedavg_c(task, F=2), fedprox_c(task, F=2, mu=0.0))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert same(models(sims[0]), models(sims[1]))


def test_nothing_of_the_fine_tuning_stays_with_a_client():
    """The state is empty: the next round begins with what is received then."""
    task, world = task_of(), ragged()
    sim = simulate(fedavg_c(task, F=2), world, task)
    play(sim, 2)
    assert sim.states.rows == {}


def test_more_fine_tuning_ends_nearer_to_the_own_rows():
    task, world = task_of(), ragged()
    losses = []
    for epochs in (0, 3, 15):
        sim = simulate(fedavg_c(task, F=epochs, recipe=Recipe(lr=0.02)), world, task)
        play(sim, 2)
        losses.append(float(sim.score(part="train").test.loss.sum()))
    assert losses[0] > losses[1] > losses[2]
