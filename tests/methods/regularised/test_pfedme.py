"""pFedMe: personal models by Moreau envelopes."""

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, pfedme
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
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
    turn_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
# with d = mean - w, one mini-batch: θ: w -> w + d/4 -> w + d/4 + 3d/16 - d/8 = w + 0.3125 d,
# w_k = w + (1/4) 2 0.3125 d = w + 0.15625 d
BY_HAND = {"lam": 2.0, "eta": 0.25, "eta_p": 0.25}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # K = 2, beta = 1/2. Round 0, w = 0:
    #   client 0:  θ: 0 -> 0.5 -> 0.5 - (-1.5 + 2 0.5)/4 = 0.625     w_0 = 0.3125
    #   client 1:  θ: 0 -> 2 -> 2 - (-6 + 2 2)/4 = 2.5               w_1 = 1.25
    #   mean (0.3125 + 3.75)/4 = 1.015625, w half way there: 0.5078125
    # round 1: d = 1.4921875 and 7.4921875
    #   client 0:  θ = 0.97412109375,  w_0 = 0.740966796875
    #   client 1:  θ = 2.84912109375,  w_1 = 1.678466796875
    #   mean 1.444091796875, w = (0.5078125 + 1.444091796875)/2 = 0.9759521484375
    task = one_number()
    method = pfedme(task, K=2, R=1, beta=0.5, recipe=HALF, **BY_HAND)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(0.625, 2.5)
    assert float(sim.server["params"]["w"]) == near(0.5078125)
    play(sim)
    assert of_models(sim, "w") == near(0.97412109375, 2.84912109375)
    assert sim.states.rows["theta"]["w"].tolist() == near(0.97412109375, 2.84912109375)
    assert float(sim.server["params"]["w"]) == near(0.9759521484375)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("warm", [False, True])
def test_where_theta_goes_on_by_hand(engine, warm):
    # K = 1, two mini-batches of all rows, w = 0 and mean m.
    # first:   θ = m/4,  w = m/8
    # second:  reset to w:  θ = m/8 + (7/8) m/4 = 0.34375 m,    w = m/8 + 0.21875 m/2 = 0.234375 m
    #          warm, m/4:   θ = m/4 - (-3/4 m + 2 m/8)/4 = 0.375 m,  w = m/8 + (m/4)/2 = 0.25 m
    # means 2 and 8, weights 1 and 3: w = 6.5 times its share
    task = one_number()
    method = pfedme(task, K=1, R=2, warm_start=warm, recipe=HALF, **BY_HAND)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    share = 0.375 if warm else 0.34375
    assert of_models(sim, "w") == near(2 * share, 8 * share)
    assert float(sim.server["params"]["w"]) == near(6.5 * (0.25 if warm else 0.234375))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "conv"])
def test_with_one_inner_step_it_is_fedavg(net, engine):
    """K = 1, β = 1: w moves as with the learning rate η λ η_p (1e-6)."""
    task, world = task_of(net), ragged(image=net == "conv")
    options = {"lam": 10.0, "eta": 0.1, "eta_p": 0.05}
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (
            pfedme(task, K=1, R=4, **options),
            fedavg(task, recipe=Recipe(steps=4, lr=0.05)),
        )
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert gap(sims[0].server, sims[1].server) < 1e-6
    assert gap(sims[0].server["params"], sims[0].initial) > 0.01
    again = simulate(pfedme(task, K=2, R=4, **options), world, task, engine=engine)
    play(again, COHORTS)
    assert gap(again.server, sims[1].server) > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_epochs_instead_of_batches(engine):
    """R = 0 trains for the recipe's epochs."""
    task, world = task_of(), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (
            pfedme(task, K=1, R=0, lam=10.0, eta=0.1, eta_p=0.05, recipe=Recipe(epochs=2)),
            fedavg(task, recipe=Recipe(epochs=2, lr=0.05)),
        )
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert gap(sims[0].server, sims[1].server) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_that_does_not_move(engine):
    """β = 0: w is frozen to the last bit, while the θ_k still learn."""
    task, world = task_of("norm"), ragged()
    sim = simulate(pfedme(task, beta=0.0, R=2, K=2), world, task, engine=engine)
    play(sim, COHORTS)
    assert same(sim.server["params"], sim.initial)
    assert gap(models(sim)["0"], sim.initial) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_theta_stays_with_absent_clients(engine):
    """And the model that is tested is θ, whatever w became meanwhile."""
    task, world = task_of("norm"), ragged()
    sim = simulate(pfedme(task, R=2, K=2), world, task, engine=engine)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in (1, 2, 4, 5):
        assert same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert same(models(sim)[str(client)], tree.index(before["theta"], client))


def test_running_statistics_move_once_a_batch():
    """K inner steps see the same batch: 0.9 of the old statistics and 0.1 of the batch's, once."""
    task, world = task_of("norm"), ragged()
    found = []
    for inner in (1, 6):
        # with η_p = 0 the weights, and so the activations, are the same in all inner steps
        sim = simulate(pfedme(task, R=1, K=inner, eta_p=0.0), world, task)
        play(sim)
        found.append(sim.server["params"]["1.running_mean"])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-7)
    assert found[0].abs().min() > 1e-3


# -------------------------------------------------------------- mistakes that public codes make


@pytest.mark.parametrize("engine", ENGINES)
def test_pfedme_tests_theta_not_w_nor_the_next_global_model(engine):
    """Guards against θ sharing storage with the model: two public codes test w_k, or the next w."""
    task, world = task_of("norm"), ragged()
    method = pfedme(task, R=3, eta=0.02)
    sim = simulate(method, world, task, engine=engine)
    first = turn_of()._replace(key=rng.key(0, rng.TURN, 0)).of(torch.tensor(1)).at_client()
    message = {"params": sim.initial}
    state = method.start(message, sim.initial, first.key)
    alone = method.client(message, state, data_of(world, 1), first)
    (report,) = play(sim, 1, post=True)
    theta, w, after = models(sim)["1"], alone.upload.mean["params"], sim.server["params"]
    assert gap(theta, alone.model) < 1e-6
    # three models, and not by running statistics alone
    trained = lambda params: tree.drop(params, task.buffers)
    assert gap(trained(theta), trained(w)) > 1e-3
    assert gap(trained(theta), trained(after)) > 1e-3
    assert gap(trained(w), trained(after)) > 1e-3
    # right after training θ is scored, and it is still what is scored after the next download
    assert torch.equal(report.post.test, sim.outputs().test.cpu())
    play(sim, [[0, 2, 3]])
    assert same(models(sim)["1"], theta)
    assert not same(sim.server["params"], after)
