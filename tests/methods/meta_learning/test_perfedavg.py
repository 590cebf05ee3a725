"""Per-FedAvg: a global model that is one step away from each client's."""

import pytest
import torch
from torch.func import grad

from fedtailor.core import rng, tree
from fedtailor.core.objectives import exact_gradient
from fedtailor.core.training import Recipe, fit
from fedtailor.engine import ClientData
from fedtailor.methods import fedavg, perfedavg_fo, perfedavg_hf
from fedtailor.methods.parts.meta import hessian_free
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    models,
    near,
    of_models,
    one_number,
    play,
    ragged,
    random_like,
    rows_of,
    same,
    simulate,
    task_of,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
ONE_ROW = Recipe(batch=1)  # FO takes two rows a step, HF three


@pytest.mark.parametrize("engine", ENGINES)
def test_first_order_by_hand(engine):
    # all rows of a client are alike, so that b0 and b1 are too; d = mean - w; α = β = 1/2
    #   w~ = w + d/2, gradient there -d/2, w_k = w + d/4: a step leaves 3/4 of the way
    # round 0, w = 0:  client 0, two rows, one step:   0.5
    #                  client 1, four rows, two steps: 8 (1 - 9/16) = 3.5
    #   w = (2 0.5 + 4 3.5)/6 = 2.5;  tested half way on: 2.25 and 5.25
    # round 1:  client 0: 2.5 - 0.125 = 2.375;  client 1: 8 - 5.5 9/16 = 4.90625
    #   w = (2 2.375 + 4 4.90625)/6 = 4.0625
    task, world = one_number(), rows_of([[2.0] * 2, [8.0] * 4])
    method = perfedavg_fo(task, alpha=0.5, beta=0.5, recipe=ONE_ROW)
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(2.5)
    assert of_models(sim, "w") == near(2.25, 5.25)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.0625)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_hessian_free_by_hand(engine):
    # the Hessian is 1: h = g1 = -d/2, so g1 - α h = -d/4 and w_k = w + d/8: 7/8 are left
    # round 0, w = 0:  client 0, three rows, one step: 0.25
    #                  client 1, six rows, two steps:  8 (1 - 49/64) = 1.875
    #   w = (3 0.25 + 6 1.875)/9 = 4/3;  tested half way on: 5/3 and 14/3
    task, world = one_number(), rows_of([[2.0] * 3, [8.0] * 6])
    method = perfedavg_hf(task, alpha=0.5, beta=0.5, recipe=ONE_ROW)
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4 / 3)
    assert of_models(sim, "w") == near(5 / 3, 14 / 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_different_halves_by_hand(engine):
    # rows 1 and 3, w = 0, α = β = 1/2. b0 = 1, b1 = 3:  w~ = 0.5, g1 = -2.5, w_k = 1.25
    #                                   b0 = 3, b1 = 1:  w~ = 1.5, g1 = 0.5,  w_k = -0.25
    # were both batches the same rows (mean 2): w~ = 1, g1 = -1, w_k = 0.5
    task = one_number()
    method = perfedavg_fo(task, alpha=0.5, beta=0.5, recipe=ONE_ROW)
    found = set()
    for seed in range(8):
        sim = simulate(method, rows_of([[1.0, 3.0]]), task, engine=engine, seed=seed)
        play(sim)
        found.add(round(float(sim.server["params"]["w"]), 5))
    assert found == {1.25, -0.25}


def _on_part(parts):
    """FedAvg on every `parts`-th example of a batch, from the second on: b1."""

    def gradient(at):
        def slope(theta, batch, given, carried):
            b1 = batch._replace(
                x=batch.x[1::parts], y=batch.y[1::parts], weight=batch.weight[1::parts]
            )
            return at(theta, b1, given, carried)

        return slope

    return gradient


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("factory", "parts"), [(perfedavg_fo, 2), (perfedavg_hf, 3)])
def test_without_an_inner_step_it_is_fedavg_on_b1(factory, parts, engine):
    """α = 0, β the learning rate: one after another exact; all at once up to rounding."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=parts * 4, lr=0.1)
    plain_one = fedavg(task, recipe=recipe, gradient=_on_part(parts))
    method = factory(task, alpha=0.0, beta=0.1, recipe=Recipe(batch=4, lr=9.0))
    sims = [simulate(m, world, task, engine=engine) for m in (method, plain_one)]
    for sim in sims:
        play(sim, COHORTS)
    if engine == "sequential":
        assert same(sims[0].server, sims[1].server)
        assert same(models(sims[0]), models(sims[1]))
    assert gap(sims[0].server, sims[1].server) < 1e-6
    other = simulate(factory(task, alpha=0.1, beta=0.1, recipe=Recipe(batch=4)), world, task)
    play(other, COHORTS)
    assert gap(other.server, sims[0].server) > 1e-4


def test_beta_0_takes_the_recipes_learning_rate():
    task, world = task_of(), ragged()
    sims = [
        simulate(perfedavg_fo(task, beta=beta, recipe=Recipe(lr=lr)), world, task)
        for beta, lr in ((0.0, 0.1), (0.1, 3.0))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert gap(sims[0].server["params"], sims[0].initial) > 1e-3


@pytest.mark.usefixtures("double")
def test_hessian_free_tends_to_the_exact_meta_gradient():
    """(I - α H(w; b2)) ∇F(w~; b1) by autograd; the error falls with d²."""
    task, world = task_of(), ragged()
    w = random_like(task.init(rng.key(1)), 3)
    batch = next(data_of(world, 1).batches(12, rng.key(2)))
    part = lambda i: batch._replace(x=batch.x[i::3], y=batch.y[i::3], weight=batch.weight[i::3])
    b0, b1, b2 = map(part, range(3))
    at = lambda b: grad(lambda p: task.loss(p, b)[0])
    alpha = 0.3
    there = tree.sub(w, tree.scale(at(b0)(w), alpha))
    g1 = at(b1)(there)
    dot = lambda p: torch.stack([(a * g1[k]).sum() for k, a in at(b2)(p).items()]).sum()
    exact = tree.sub(g1, tree.scale(grad(dot)(w), alpha))
    first_order = gap(g1, exact)
    errors = []
    for d in (1e-1, 1e-2, 1e-3):
        slope = hessian_free(alpha, d)(exact_gradient(lambda p, b, given, carried: task.loss(p, b)))
        errors.append(gap(slope(w, batch, {}, {})[0], exact))
    assert first_order > 1e-3  # there is something to get right
    assert errors[0] > 50 * errors[1] > 2500 * errors[2]
    assert errors[2] < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factory", [perfedavg_fo, perfedavg_hf])
def test_it_is_tested_after_one_step_on_a_training_batch(factory, engine):
    """One step of size α on `batch` rows, from the global model; that one is tested too."""
    task, world = task_of(), ragged()
    sim = simulate(factory(task, alpha=0.5, recipe=Recipe(batch=4)), world, task, engine=engine)
    play(sim, COHORTS)
    turn = sim._turn(rng.SCORE)
    for client in range(6):
        before = turn.of(torch.tensor(client)).at_client().split()[0]
        step = Recipe(steps=1, batch=4, lr=0.5)
        expected = fit(task, sim.server["params"], data_of(world, client), before, step)
        assert gap(models(sim)[str(client)], expected) < 1e-6
        assert gap(models(sim)[str(client)], sim.server["params"]) > 1e-3
    assert not torch.equal(sim.score().test.loss, sim.score(general=True).test.loss)


def test_a_client_with_a_single_row_learns_nothing_and_harms_nobody():
    """b1 is empty then; the weights stay finite and as they were."""
    task, world = one_number(), rows_of([[2.0], [8.0] * 4])
    sim = simulate(perfedavg_fo(task, alpha=0.5, beta=0.5, recipe=ONE_ROW), world, task)
    play(sim, [[0]])
    assert float(sim.server["params"]["w"]) == 0.0
    play(sim, [[1]])
    assert float(sim.server["params"]["w"]) == near(3.5)


# -------------------------------------------------------------- mistakes that public codes make


def _other_test_rows(world: ClientData) -> ClientData:
    x, y = world.x.clone(), world.y.clone()
    x[world.test.flat] += 5.0
    y[world.test.flat] = (y[world.test.flat] + 1) % 3
    return world._replace(x=x, y=y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factory", [perfedavg_fo, perfedavg_hf], ids=["fo", "hf"])
def test_per_fedavg_adapts_on_training_rows(factory, engine):
    """Guards against adapting on test rows: other test rows must not change any model."""
    task, world = task_of(), ragged()
    found = []
    for one in (world, _other_test_rows(world)):
        sim = simulate(factory(task, alpha=0.5), one, task, engine=engine)
        play(sim, 2)
        found.append(sim)
    assert same(models(found[0]), models(found[1]))
    assert same(*(sim.server for sim in found))
    # the scores see them, the models do not
    assert not torch.equal(found[0].score().test.loss, found[1].score().test.loss)
    assert torch.equal(found[0].score().val.loss, found[1].score().val.loss)
    # other training rows do change the adapted model of their client, at the same global model
    x = world.x.clone()
    rows, n = world.train.at(torch.tensor([1]))
    x[rows[0, : int(n)]] += 1.0
    moved = simulate(factory(task, alpha=0.5), world._replace(x=x), task, engine=engine)
    moved.server, moved.round = found[0].server, found[0].round
    after, before = models(moved), models(found[0])
    assert [gap(after[k], before[k]) > 1e-4 for k in "012345"] == [k == "1" for k in "012345"]
