"""FedAMP and HeurFedAMP: clients are drawn to the models of those that are like them."""

import math

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.objectives import prox
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedamp, heurfedamp, local
from fedtailor.methods.find import find as find_method
from tests.methods.worlds import (
    ENGINES,
    HALF,
    ala_alone,
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
    snapshot,
    task_of,
    turn_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


def _number() -> Task:
    """`one_number` with w as a vector of length one."""
    return one_number()._replace(init=lambda key: {"w": torch.zeros(1)})


def _own(sim) -> list[float]:
    return sim.states.rows["own"]["w"].flatten().tolist()


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # σ = α_K = 9/ln 2, so that ξ_ij = exp(-|w_i - w_j|² ln 2/9): 1 at distance 0, 1/2 at 3;
    # λ = α_K/2, so that the pull is (w - u)/2
    # round 0: everybody at 0, ξ_ij = 1, u = 0:  0 -> 1 and 0 -> 4
    # round 1: |1 - 4|² = 9: ξ = 1/2 everywhere, u_0 = u_1 = 2.5; from the own models
    #   client 0:  g = -1 + (1 - 2.5)/2 = -1.75     1 + 0.875 = 1.875
    #   client 1:  g = -4 + (4 - 2.5)/2 = -3.25     4 + 1.625 = 5.625
    # then |3.75|² = 14.0625: ξ_01 = 2^(-1.5625) = 0.33856269;
    #   u_0 = 1.875 + 3.75 0.33856269 = 3.1446101,  u_1 = 5.625 - 1.2696101 = 4.3553899
    # round 2:
    #   client 0:  g = -0.125 + (1.875 - 3.1446101)/2 = -0.75980505    2.25490252
    #   client 1:  g = -2.375 + (5.625 - 4.3553899)/2 = -1.74019495    6.49509748
    scale = 9 / math.log(2)
    task = _number()
    method = fedamp(task, alpha_K=scale, lam=scale / 2, sigma=scale, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert _own(sim) == near(1.0, 4.0)
    assert sim.records()["attention"].flatten().tolist() == near(0.5, 0.5, 0.5, 0.5)
    play(sim)
    assert _own(sim) == near(1.875, 5.625)
    assert of_models(sim, "w") == near(1.875, 5.625)
    attention = sim.records()["attention"]
    assert attention.flatten().tolist() == near(0.66143731, 0.33856269, 0.33856269, 0.66143731)
    play(sim)
    assert _own(sim) == near(2.25490252, 6.49509748)


@pytest.mark.parametrize("engine", ENGINES)
def test_heuristic_by_hand(engine):
    # two clients: the other's weight is 1 - ξ_ii = 1/4 whatever the angle; pull (w - u)/2
    # round 1, from 1 and 4:  u_0 = 0.75 + 1 = 1.75,  u_1 = 3 + 0.25 = 3.25
    #   client 0:  g = -1 + (1 - 1.75)/2 = -1.375     1.6875
    #   client 1:  g = -4 + (4 - 3.25)/2 = -3.625     5.8125
    task = _number()
    method = heurfedamp(task, self_weight=0.75, lam=0.5, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert _own(sim) == near(1.0, 4.0)
    play(sim)
    assert _own(sim) == near(1.6875, 5.8125)


def test_the_heuristics_attention_by_hand():
    # models 1, 4 and -1: cosines 1 and -1; with σ = ln(3)/2 the odds of like against unlike are
    # e^(2σ) = 3; ξ_ii = 0.2 leaves 0.8: 0.6 and 0.2, and halves where both are alike
    task = _number()
    method = heurfedamp(task, self_weight=0.2, sigma=math.log(3) / 2, recipe=HALF)
    sim = simulate(method, rows_of([[2.0], [8.0], [-2.0]]), task)
    play(sim)
    expected = [[0.2, 0.6, 0.2], [0.6, 0.2, 0.2], [0.4, 0.4, 0.2]]
    torch.testing.assert_close(sim.records()["attention"], torch.tensor(expected))


# -------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 50.0])
def test_rows_sum_to_one(name, sigma):
    """And none is negative: α_K is made smaller where ξ_ii would be."""
    task, world = task_of("norm"), ragged()
    extra = {"alpha_K": 30.0} if name == "fedamp" else {}
    sim = simulate(find_method(name)(task, sigma=sigma, **extra), world, task)
    for cohort in [range(6), *COHORTS]:
        weights = sim.records()["attention"]
        torch.testing.assert_close(weights.sum(1), torch.ones(6))
        assert (weights >= -1e-6).all()
        play(sim, [list(cohort)])


def test_a_flat_attention_is_no_attention():
    """σ -> infinity: A' = exp(-x/σ)/σ -> 0, so u_i = w_i."""
    task, world = task_of(), ragged()
    sim = simulate(fedamp(task, sigma=1e12), world, task)
    play(sim, 2)
    torch.testing.assert_close(sim.records()["attention"], torch.eye(6))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_without_the_pull_it_is_local(name, engine):
    """λ = 0: exact, whatever the attention; with λ > 0 it is not."""
    task, world = task_of("norm"), ragged()
    alone = simulate(local(task), world, task, engine=engine)
    play(alone, COHORTS)
    for lam in (0.0, 1.0):
        sim = simulate(find_method(name)(task, lam=lam), world, task, engine=engine)
        play(sim, COHORTS)
        assert same(sim.states.rows["own"], alone.states.rows["own"]) == (lam == 0)
        assert same(models(sim), models(alone)) == (lam == 0)


def test_nearer_models_attract_more():
    task = _number()
    sim = simulate(fedamp(task, sigma=10.0, recipe=HALF), rows_of([[2.0], [3.0], [9.0]]), task)
    play(sim)
    weights = sim.records()["attention"]
    assert weights[0, 1] > weights[0, 2] > 0
    assert weights[2, 1] > weights[2, 0] > 0


# ----------------------------------------------------------------------------------- who is absent


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_absent_clients_count_with_their_latest_model(name, engine):
    """State and server row of the absent: bitwise; u_i is the mixture of what is there."""
    task, world = task_of("norm"), ragged()
    sim = simulate(find_method(name)(task), world, task, engine=engine)
    for cohort in COHORTS:
        before = snapshot(sim)
        play(sim, [cohort])
        for client in range(6):
            kept = (
                same(tree.index(before["states"], client), tree.index(sim.states.rows, client)),
                same(
                    tree.index(before["server"]["models"], client),
                    tree.index(sim.server["models"], client),
                ),
            )
            assert kept == (client not in cohort,) * 2
    message = sim.method.send(sim.server, torch.tensor(4), sim._turn(rng.TURN))["params"]
    weights = sim.server["weights"][4]
    mixed = tree.map(lambda p: sum(weights[j] * p[j] for j in range(6)), sim.server["models"])
    assert gap(message, mixed) < 1e-6


@pytest.mark.parametrize("factory", [fedamp, heurfedamp])
def test_parameters_may_be_single_numbers(factory):
    """A learnt temperature or scale is a 0-dim parameter."""
    task = one_number()
    play(simulate(factory(task, recipe=HALF), two_clients(), task))


# -------------------------------------------------------------------------------------------- +ala


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])
def test_ala_without_blocks_is_the_host(name, engine):
    task, world = task_of("norm"), ragged()
    found = []
    for method in (find_method(name)(task), find_method(f"{name}+ala")(task, p=0)):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


@pytest.mark.parametrize("engine", ENGINES)
def test_ala_begins_with_the_adapted_model_and_is_pulled_to_the_mixture(engine):
    """From Θ^ of u_i and w_i, with the proximal centre u_i."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, lr=0.1, epochs=2)
    options = {"eta": 5.0, "max_ala_epochs": 3, "p": 2}
    method = find_method("fedamp+ala")(task, lam=2.0, recipe=recipe, **options)
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    far = tree.stack([random_like(sim.initial, 10 + i) for i in range(6)])
    sim.server = sim.server | {"models": far}
    turn = sim._turn(rng.TURN).of(torch.tensor(2))
    mixture = sim.method.send(sim.server, torch.tensor(2), turn)["params"]
    memory = tree.index(tree.drop(sim.states.rows, ["host"]), 2)
    part = ala_alone(task, recipe, **options)
    data, mine = data_of(world, 2), turn.at_client()
    adapted = part.adapt(mixture, memory, {}, data, mine).params
    assert gap(adapted, mixture) > 1e-2
    results = {
        name: fit(task, adapted, data, mine, recipe, loss=prox(task, 2.0), given={"anchor": centre})
        for name, centre in (("mixture", mixture), ("adapted", adapted))
    }
    play(sim, [[2]])
    after = tree.index(sim.states.rows["own"], 2)
    assert gap(after, results["mixture"]) < 1e-5
    assert gap(after, results["adapted"]) > 1e-3


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_ala_by_hand(engine):
    # as above: 1 and 4 after round 0, then u = 2.5 for both; one step on W from 1 with η = 0.1
    #   client 0:  dL/dW = (2.5 - 2) (2.5 - 1) = 0.75,  W = 0.925,  Θ^ = 1 + 1.5 0.925 = 2.3875
    #     g = 0.3875 + (2.3875 - 2.5)/2 = 0.33125,   w = 2.3875 - 0.165625 = 2.221875
    #   client 1:  dL/dW = (2.5 - 8) (2.5 - 4) = 8.25,  W = 0.175,  Θ^ = 4 - 1.5 0.175 = 3.7375
    #     g = -4.2625 + (3.7375 - 2.5)/2 = -3.64375,  w = 3.7375 + 1.821875 = 5.559375
    scale = 9 / math.log(2)
    task = _number()
    method = find_method("fedamp+ala")(
        task, alpha_K=scale, lam=scale / 2, sigma=scale, recipe=HALF, s=100, eta=0.1,
        max_ala_epochs=1,
    )  # fmt: skip
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert _own(sim) == near(1.0, 4.0)
    (report,) = play(sim)
    assert report.notes["ala_weight"].flatten().tolist() == near(0.925, 0.175)
    assert _own(sim) == near(2.221875, 5.559375)
    assert of_models(sim, "w") == near(2.221875, 5.559375)


# -------------------------------------------------------------- mistakes that public codes make


@pytest.mark.parametrize("factory", [fedamp, heurfedamp], ids=["fedamp", "heurfedamp"])
def test_moving_the_mixture_moves_the_client(factory):
    """Guards against a pull made of detached tensors: that FedAMP is bitwise Local."""
    task, world = task_of(), ragged()
    sim = simulate(factory(task), world, task)
    play(sim)
    state, data = tree.index(sim.states.rows, 1), data_of(world, 1)
    near_by, far = (
        sim.method.client({"params": u}, state, data, turn_of(1)).state["own"]
        for u in (state["own"], random_like(state["own"], 3))
    )
    # 4 steps of 0.05 with the strength 1 go a fifth of the way
    assert gap(near_by, far) > 0.05
    # towards u, not away from it
    u = random_like(state["own"], 3)
    assert tree.sq_norm(tree.sub(far, u)) < tree.sq_norm(tree.sub(near_by, u))
