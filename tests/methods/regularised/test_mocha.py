"""MOCHA for deep networks: models that are related through a penalty on all of them together."""

import pytest
import torch
from torch.func import grad

from fedtailor.core import rng, tree
from fedtailor.core.training import Recipe
from fedtailor.methods import local, mocha
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
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
SIGMA = 51  # of the net `mlp`


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("omega", "first", "second"), [("mean", 1.55, 5.45), ("lgfedavg", 1.275, 5.475)]
)
def test_two_clients_by_hand(omega, first, second, engine):
    # one parameter: c = 10^-2, strength 10: c = 0.1, and the penalty's gradient is 0.2 (w_k + Σ)
    # round 0, everybody at 0:  0 -> 1 and 0 -> 4
    # round 1, mean: Ω = [[1/2, -1/2], [-1/2, 1/2]]:
    #   client 0:  g = -1 + 0.2 (1 + 0.5 - 2) = -1.1      1.55
    #   client 1:  g = -4 + 0.2 (4 + 2 - 0.5) = -2.9      5.45
    # round 1, lgfedavg: Ω = (1/2)² everywhere:
    #   client 0:  g = -1 + 0.2 (1 + 0.25 + 1) = -0.55    1.275
    #   client 1:  g = -4 + 0.2 (4 + 1 + 0.25) = -2.95    5.475
    task = one_number()
    method = mocha(task, omega=omega, strength=10.0, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(1.0, 4.0)
    play(sim)
    assert of_models(sim, "w") == near(first, second)
    assert sim.server["models"]["w"].tolist() == near(first, second)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("omega", ["mean", "lgfedavg"])
def test_without_the_penalty_it_is_local(omega, engine):
    """c = 0: exact; with c > 0 it is not."""
    task, world = task_of("norm"), ragged()
    alone = simulate(local(task), world, task, engine=engine)
    play(alone, COHORTS)
    for strength in (0.0, 1.0):
        sim = simulate(mocha(task, omega=omega, strength=strength), world, task, engine=engine)
        play(sim, COHORTS)
        assert same(sim.states.rows["own"], alone.states.rows["own"]) == (strength == 0)
        assert same(models(sim), models(alone)) == (strength == 0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("omega", ["mean", "lgfedavg"])
def test_the_penalty_is_that_of_all_models_together(omega, engine):
    """One step against autograd through c (|W|² + tr(W Ω Wᵀ)), W written out."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, lr=0.3)
    sim = simulate(mocha(task, omega=omega, strength=20.0, recipe=recipe), world, task)
    play(sim)
    apart = tree.stack([random_like(sim.initial, 20 + i) for i in range(6)])
    sim.server = sim.server | {"models": apart}
    sim.states.rows.update({"own": tree.map(torch.clone, apart)})
    ones = torch.ones(6, 6)
    relation = torch.eye(6) - ones / 6 if omega == "mean" else (1 - 1 / 6) ** 2 * ones
    c = 20 * 10.0**-3  # 51 parameters: 10^-(1 + 2)
    flat = torch.cat([apart[k].flatten(1) for k in apart], 1).T  # one column per client

    def whole(params, batch, i):
        column = torch.cat([p.flatten() for p in params.values()])
        mine = (torch.arange(6) == i).to(flat.dtype)
        W = flat * (1 - mine) + column[:, None] * mine
        return task.loss(params, batch)[0] + c * (W.square().sum() + (W @ relation @ W.T).trace())

    play(sim)
    for i in range(6):
        own = data_of(world, i)
        batch = next(own._replace(rows=own.rows[: int(own.n)]).batches(0, rng.key(0)))
        start = tree.index(apart, i)
        g = grad(lambda p, b=batch, i=i: whole(p, b, i))(start)
        expected = tree.sub(start, tree.scale(g, 0.3))
        assert gap(tree.index(sim.states.rows["own"], i), expected) < 1e-9
        assert gap(g, grad(lambda p, b=batch: task.loss(p, b)[0])(start)) > 1e-2


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes(engine):
    """One model down, not everybody's, and one up; the client's entry of Ω once."""
    task, world = task_of(), ragged()
    sim = simulate(mocha(task), world, task, engine=engine)
    met: set[int] = set()
    for report in play(sim, COHORTS):
        ids = report.ids.tolist()
        assert report.down.tolist() == [4 * (SIGMA + (i not in met)) for i in ids]
        assert report.up.tolist() == [4 * SIGMA] * len(ids)
        met |= set(ids)


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_count_with_their_latest_model(engine):
    """State and server row of the absent: bitwise; the sum is over everybody."""
    task, world = task_of("norm"), ragged()
    sim = simulate(mocha(task), world, task, engine=engine)
    for cohort in COHORTS:
        before = snapshot(sim)
        play(sim, [cohort])
        for client in range(6):
            kept = [
                same(tree.index(a, client), tree.index(b, client))
                for a, b in (
                    (before["states"], sim.states.rows),
                    (before["server"]["models"], sim.server["models"]),
                )
            ]
            assert kept == [client not in cohort] * 2
    others = sim.method.send(sim.server, torch.tensor(4), sim._turn(rng.TURN))["others"]
    expected = tree.map(lambda p: -sum(p[j] for j in range(6) if j != 4) / 6, sim.server["models"])
    assert gap(others, expected) < 1e-6


def test_a_stronger_penalty_draws_the_models_together():
    task, world = task_of(), ragged()
    spread = []
    for strength in (0.0, 100.0, 300.0):
        sim = simulate(mocha(task, strength=strength, recipe=Recipe(epochs=3)), world, task)
        play(sim, 4)
        spread.append(sum(float(p.var(0).sum()) for p in tree.leaves(sim.server["models"])))
    assert spread[0] > spread[1] > spread[2]


# -------------------------------------------------------------- mistakes that public codes make


def test_moving_the_others_moves_the_client():
    """Guards against MOCHA's penalty made of detached tensors: that is bitwise Local too."""
    task, world = task_of(), ragged()
    sim = simulate(mocha(task, strength=30.0), world, task)
    play(sim)
    ends = []
    for seed in (1, 2):
        others = tree.stack([random_like(sim.initial, 10 * seed + i) for i in range(6)])
        server = sim.server | {"models": others}
        message = sim.method.send(server, torch.tensor(1), turn_of(1))
        state, data = tree.index(sim.states.rows, 1), data_of(world, 1)
        ends.append(sim.method.client(message, state, data, turn_of(1)).state["own"])
    assert gap(*ends) > 1e-3
