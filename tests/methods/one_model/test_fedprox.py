"""FedProx: FedAvg on a leash."""

import pytest

from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, fedprox
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    near,
    one_number,
    outcome,
    play,
    ragged,
    same,
    simulate,
    task_of,
    two_clients,
    with_epochs,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # mu = 1/2, two steps a round; gradient (w_k - mean) + (w_k - w)/2
    # round 0, w = 0:
    #   client 0:  0 -> 1 (g = -2)      g = -1 + 0.5 = -0.5    -> 1.25   (FedAvg: 1.5)
    #   client 1:  0 -> 4 (g = -8)      g = -4 + 2 = -2        -> 5      (FedAvg: 6)
    #   w = (1.25 + 3 * 5) / 4 = 4.0625                                  (FedAvg: 4.875)
    # round 1, w = 4.0625:
    #   client 0:  g = 2.0625 -> 3.03125;   g = 1.03125 - 0.515625 = 0.515625    -> 2.7734375
    #   client 1:  g = -3.9375 -> 6.03125;  g = -1.96875 + 0.984375 = -0.984375  -> 6.5234375
    #   w = (2.7734375 + 3 * 6.5234375) / 4 = 22.34375 / 4 = 5.5859375
    task = one_number()
    method = fedprox(task, mu=0.5, recipe=with_epochs(2, HALF))
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.0625)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(5.5859375)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_without_the_leash_it_is_fedavg(engine, net):
    """mu = 0: exact; with the default mu = 0.1 it is not."""
    task, world = task_of(net), ragged()
    recipe = Recipe(epochs=2, momentum=0.5)
    plain = fedavg(task, recipe=recipe)
    variants = [plain, fedprox(task, mu=0.0, recipe=recipe), fedprox(task, recipe=recipe)]
    sims = [simulate(method, world, task, engine=engine) for method in variants]
    for sim in sims:
        play(sim, [[0, 1, 3], [1, 2, 4, 5], [0, 5]])
    average, off, on = map(outcome, sims)
    assert same(average, off)
    assert not same(average, on)
    assert gap(average, on) > 1e-4


def test_a_tight_leash_keeps_clients_nearer():
    task, world = task_of(), ragged()
    way = []
    for mu in (0.0, 1.0, 5.0):
        sim = simulate(fedprox(task, mu=mu, recipe=Recipe(epochs=3)), world, task)
        play(sim)
        way.append(gap(sim.server["params"], sim.initial))
    assert way[0] > way[1] > way[2] > 0
