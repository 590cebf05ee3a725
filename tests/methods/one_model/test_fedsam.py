"""FedSAM: FedAvg with sharpness-aware clients."""

import pytest
from torch import nn

from fedtailor.core.task import classification
from fedtailor.methods import fedavg, fedsam
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    models,
    near,
    of_models,
    one_number,
    outcome,
    play,
    ragged,
    same,
    simulate,
    task_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


def _normed() -> nn.Module:
    """BatchNorm without dropout, whose masks are the second pass's own."""
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # the gradient is w - mean; the worst point within 1/2 is w + 1/2 in its direction
    # round 0, w = 0:
    #   client 0:  g = -2, worst -0.5, gradient there -2.5    w = 1.25
    #   client 1:  g = -8, worst -0.5, gradient there -8.5    w = 4.25
    #   equal weights: 2.75
    # round 1, w = 2.75:
    #   client 0:  g = 0.75, worst 3.25, there 1.25           w = 2.75 - 0.625 = 2.125
    #   client 1:  g = -5.25, worst 2.25, there -5.75         w = 2.75 + 2.875 = 5.625
    #   equal weights: 3.875
    task = one_number()
    sim = simulate(fedsam(task, rho=0.5, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(2.75)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.875)
    assert of_models(sim, "w") == near(3.875, 3.875)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_by_data_by_hand(engine):
    # (1.25 + 3 4.25)/4 = 3.5
    task = one_number()
    method = fedsam(task, rho=0.5, weighting="data", recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_without_a_radius_it_is_fedavg(engine, weighting):
    """ρ = 0, running statistics included; with ρ > 0 it is not.

    One after another it is exact. All at once the point of the second gradient is a client's own
    where FedAvg's first one is everybody's, and products of other shapes round otherwise.
    """
    task, world = classification(_normed), ragged()
    plain = simulate(fedavg(task, weighting=weighting), world, task, engine=engine)
    play(plain, COHORTS)
    for rho in (0.0, 0.05):
        method = fedsam(task, rho=rho, weighting=weighting)
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        if engine == "sequential":
            assert same(sim.server, plain.server) == (rho == 0)
            assert same(models(sim), models(plain)) == (rho == 0)
        assert (gap(sim.server, plain.server) < 1e-6) == (rho == 0)


def test_a_larger_radius_ends_further_from_fedavg():
    task, world = task_of(), ragged()
    sims = [simulate(fedsam(task, rho=rho), world, task) for rho in (0.0, 0.05, 0.5)]
    for sim in sims:
        play(sim, 3)
    apart = [gap(outcome(sim), outcome(sims[0])) for sim in sims]
    assert 0 == apart[0] < apart[1] < apart[2]
