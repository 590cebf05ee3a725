"""FedAvg+Data: a share of everybody's rows goes into a pool that all train on."""

import pytest
import torch

import fedtailor
from fedtailor.methods import fedavg, fedavg_data
from tests.methods.worlds import (
    ENGINES,
    HALF,
    models,
    near,
    of_models,
    one_number,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
ROW = 4 + 8  # one number as float32, its label as int64


def _world():
    """All rows of a client are alike, so that it does not matter which it gives."""
    return rows_of([[2.0] * 4, [8.0] * 2])


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # beta = 1/2: client 0 gives two rows (2, 2), client 1 gives one (8)
    #   client 0 trains on 2, 2, 2, 2, 8: mean 3.2, n = 5
    #   client 1 trains on 8, 8, 2, 2:    mean 5,   n = 4
    # round 0, w = 0:  0 -> 1.6 and 0 -> 2.5;    w = (5 1.6 + 4 2.5)/9 = 2
    # round 1, w = 2:  2 -> 2.6 and 2 -> 3.5;    w = (5 2.6 + 4 3.5)/9 = 3
    task = one_number()
    method = fedavg_data(task, beta=0.5, recipe=HALF)
    sim = simulate(method, _world(), task, engine=engine)
    assert sim.client_data.train.n.tolist() == [5, 4]
    play(sim)
    assert float(sim.server["params"]["w"]) == near(2.0)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.0)
    assert of_models(sim, "w") == near(3.0, 3.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_pool_is_counted_once(engine):
    """A client pays for the pool when it first takes part, and never again."""
    task = one_number()
    method = fedavg_data(task, beta=0.5, recipe=HALF)
    sim = simulate(method, _world(), task, engine=engine)
    first, both, again = play(sim, [[0], [0, 1], [0, 1]])
    # client 0 gives two rows and gets the other one; client 1 the reverse
    assert (first.down.tolist(), first.up.tolist()) == ([4 + ROW], [4 + 2 * ROW])
    assert (both.down.tolist(), both.up.tolist()) == ([4, 4 + 2 * ROW], [4, 4 + ROW])
    assert (again.down.tolist(), again.up.tolist()) == ([4, 4], [4, 4])


@pytest.mark.parametrize("engine", ENGINES)
def test_without_a_pool_it_is_fedavg(engine):
    """beta = 0: exact, with FedAvg's bytes; by default it is not."""
    task, world = task_of("norm"), ragged()
    plain = simulate(fedavg(task), world, task, engine=engine)
    reports = play(plain, COHORTS)
    for options in ({"beta": 0.0}, {}):
        sim = simulate(fedavg_data(task, **options), world, task, engine=engine)
        told = play(sim, COHORTS)
        equal = bool(options)
        assert same(sim.server, plain.server) == equal
        assert same(models(sim), models(plain)) == equal
        down = [r.down.tolist() for r in told] == [r.down.tolist() for r in reports]
        assert down == equal


def test_the_pool_has_a_share_of_everybodys_training_rows():
    """Rows of the pool are training rows; everybody keeps its own and gets all of the others'."""
    task, world = task_of(), ragged((7, 40, 13, 24, 9, 31))
    sim = simulate(fedavg_data(task, beta=0.1), world, task)
    own = [set(r.tolist()) for r in world.train.flat.split(world.train.n.tolist())]
    now = sim.client_data.train
    mine = [set(r.tolist()) for r in now.flat.split(now.n.tolist())]
    pool = set.intersection(*mine)
    # a tenth of each's rows, at least one
    assert [len(pool & rows) for rows in own] == [1, 4, 1, 2, 1, 3]
    assert all(rows == before | pool for rows, before in zip(mine, own, strict=True))
    held = set(world.val.flat.tolist()) | set(world.test.flat.tolist())
    assert not pool & held


def test_the_pool_is_drawn_once_from_the_seed():
    task, world = task_of(), ragged()
    pools = [
        simulate(fedavg_data(task, beta=0.1), world, task, seed=seed).client_data.train.flat
        for seed in (1, 1, 2)
    ]
    assert torch.equal(pools[0], pools[1])
    assert not torch.equal(pools[0], pools[2])


def test_held_out_clients_neither_give_nor_get_rows():
    task, world = task_of(), ragged()
    held = torch.tensor([1, 4])
    sim = simulate(fedavg_data(task, beta=0.1), world, task, held_out=held)
    own = [set(r.tolist()) for r in world.train.flat.split(world.train.n.tolist())]
    now = sim.client_data.train
    mine = [set(r.tolist()) for r in now.flat.split(now.n.tolist())]
    assert [mine[i] for i in (1, 4)] == [own[i] for i in (1, 4)]
    for i in (0, 2, 3, 5):
        assert mine[i] > own[i]
        assert not mine[i] & (own[1] | own[4])
    assert sim.pool.down[held].tolist() == sim.pool.up[held].tolist() == [0, 0]


def test_a_run_holds_its_held_out_clients_out():
    """Three of four download what three gave. If the fourth gave, too, it would be three quarters
    of what four download of four."""
    settings = {"model": "mlp", "clients": 4, "rounds": 1, "batch": 50, "partition": "iid"}
    all_four, three = (
        fedtailor.run("fedavg-data", options={"beta": 0.3}, held_out=held, **settings)["bytes"]
        for held in (0, 1)
    )
    assert three["down"] < 0.72 * all_four["down"]


def test_the_gap_counts_the_rows_of_the_pool():
    """Accuracy on training rows is at most 1, however many of them came from others."""
    settings = {"model": "mlp", "clients": 10, "rounds": 2, "batch": 50, "lr": 0.1}
    result = fedtailor.run("fedavg-data", options={"beta": 0.3}, **settings)
    assert 0 <= result["out_of_sample_gap"] + result["points"]["pre"]["mean"] <= 1
