"""kNN-Per: FedAvg's model, and a vote of the client's own rows that look most alike."""

import math

import numpy as np
import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData
from fedtailor.methods import fedavg, knn_per
from tests.methods.worlds import (
    ENGINES,
    SIZES,
    data_of,
    gap,
    labelled,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
    two_layers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
STILL = Recipe(lr=0.0)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1)]]


def said(method, model, *x: float) -> list[list[float]]:
    """Probabilities of inputs that are one number each."""
    logits = method.predict(model, torch.tensor([[value] for value in x]))
    return logits.softmax(-1).tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = x, the head is 0 and stays so: its probabilities are 1/2.  x = 6, K = 1, σ = 1:
    #   client 1: e^-1 for class 0, e^-4 for class 1: p_knn[0] = 1/(1 + e^-3)
    #   client 0 has class 0 alone, whatever k: p_knn = (1, 0)
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = knn_per(task, lam=0.4, choose="fixed", recipe=STILL)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    play(sim)
    found = models(sim)
    first = 0.4 / (1 + math.exp(-3)) + 0.3
    assert said(method, found["1"], 6.0) == [near(first, 1 - first)]
    assert said(method, found["0"], 6.0) == [near(0.7, 0.3)]
    # one neighbour, and kernels of twice the width
    one = simulate(knn_per(task, lam=0.4, k=1, choose="fixed", recipe=STILL), labelled(ROWS), task)
    assert said(method, models(one)["1"], 6.0, 7.0) != said(one.method, models(one)["1"], 6.0, 7.0)
    assert said(one.method, models(one)["1"], 6.0, 7.0) == [near(0.7, 0.3), near(0.3, 0.7)]
    wide = knn_per(task, lam=1.0, sigma=2.0, choose="fixed")
    first = 1 / (1 + math.exp(-1.5))
    assert said(wide, found["1"] | {"share": torch.tensor(1.0)}, 6.0) == [near(first, 1 - first)]


def store_of(keys: list[float], labels: list[int], share: float, params: dict) -> dict:
    return {
        "params": params,
        "keys": torch.tensor(keys)[:, None],
        "labels": torch.tensor(labels),
        "real": torch.ones(len(keys), dtype=torch.bool),
        "share": torch.tensor(share),
    }


def test_probabilities_are_mixed_not_logits():
    # logits (6, 0), p_knn = (0, 1), λ = 1/2: class 1, though (3, 1/2) would be class 0
    task = two_layers([[1.0]], [[6.0], [0.0]])
    method, params = knn_per(task, capacity=1), task.init(rng.key(0))
    model = store_of([1.0], [1], 0.5, params)
    p = 0.5 / (1 + math.exp(-6))
    assert said(method, model, 1.0) == [near(p, 1 - p)]
    assert int(method.predict(model, torch.tensor([[1.0]])).argmax()) == 1


def test_far_neighbours_still_vote():
    """A quotient of kernels would be 0/0."""
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = knn_per(task, capacity=2)
    model = store_of([0.0, 1.0], [0, 1], 1.0, task.init(rng.key(0)))
    assert said(method, model, 1e4) == [near(0.0, 1.0)]
    assert said(method, model, -1e4) == [near(1.0, 0.0)]


def test_near_features_that_are_far_from_0_are_told_apart():
    """In single precision: 1000² has no digits left for the square of 0.01."""
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = knn_per(task, k=1, capacity=4)
    keys, labels = [1000.0, 1000.01, 1000.02, 1000.03], [0, 1, 0, 1]
    model = store_of(keys, labels, 1.0, task.init(rng.key(0)))
    assert [int(p[1] > 0.5) for p in said(method, model, *keys)] == labels


@pytest.mark.parametrize("engine", ENGINES)
def test_with_share_0_it_is_fedavg(engine):
    """Training is FedAvg's in any case; predictions are, too, then."""
    task, world = task_of("norm"), ragged()
    ways = (knn_per(task, lam=0.0, choose="fixed"), fedavg(task), knn_per(task, lam=0.5))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert same(sims[2].server, sims[1].server)
    x, params = world.x[:30], sims[1].server["params"]
    for model in models(sims[0]).values():
        plain = task.predict(params, x).log_softmax(-1)
        assert torch.equal(sims[0].method.predict(model, x), plain)
    assert torch.equal(sims[0].score().test.correct, sims[1].score().test.correct)


@pytest.mark.usefixtures("double")
def test_limits_of_the_vote():
    task, world = task_of(), ragged()
    data, params = data_of(world, 3), task.init(rng.key(1))
    rows = data.rows[: int(data.n)]
    msg = {"params": params}
    # a row of the store is its own nearest neighbour
    one = knn_per(task, k=1, lam=1.0, choose="fixed", capacity=60)
    model = one.personal(msg, {}, data, turn_of())
    assert torch.equal(one.predict(model, data.x[rows]).argmax(-1), data.y[rows])
    # all vote alike: class frequencies, and no padding among them
    all_of = knn_per(task, k=60, sigma=1e9, lam=1.0, choose="fixed", capacity=60)
    p = all_of.predict(model, world.x[:4]).softmax(-1)
    shares = torch.bincount(data.y[rows], minlength=3) / len(rows)
    torch.testing.assert_close(p, shares.expand(4, 3), rtol=0, atol=1e-6)
    # another order of rows changes nothing
    turned = data._replace(rows=torch.cat([rows.flip(0), data.rows[int(data.n) :]]))
    other = knn_per(task, lam=0.5, choose="fixed", capacity=60)
    ends = [
        other.predict(other.personal(msg, {}, d, turn_of(key=i)), world.x[:9])
        for i, d in enumerate((data, turned))
    ]
    torch.testing.assert_close(*ends)
    torch.testing.assert_close(ends[0].exp().sum(-1), torch.ones(9))


def test_a_store_has_room_for_some_rows():
    task, world = task_of(), ragged()
    data, params = data_of(world, 1), task.init(rng.key(1))  # 40 rows
    method = knn_per(task, choose="fixed", capacity=6)
    model = method.personal({"params": params}, {}, data, turn_of())
    assert model["real"].tolist() == [True] * 6
    mine = task.features(params, data.x[data.rows[:40]])
    apart = torch.cdist(model["keys"], mine)
    assert (apart.min(1).values < 2e-3).all()
    assert len(set(apart.argmin(1).tolist())) == 6
    again = method.personal({"params": params}, {}, data, turn_of(key=5))
    assert not torch.equal(model["keys"], again["keys"])
    small = data_of(world, 0)  # 7 rows
    many = knn_per(task, choose="fixed", capacity=9).personal(
        {"params": params}, {}, small, turn_of()
    )
    assert many["real"].tolist() == [True] * 7 + [False] * 2


def test_a_store_that_is_too_small_is_told_of(caplog):
    """In one line as the run begins, with what would be enough; then nothing is said."""
    task, world = task_of(), ragged()
    told = {}
    for capacity in (6, 20):
        caplog.clear()
        sim = simulate(knn_per(task, choose="fixed", capacity=capacity), world, task)
        play(sim, 2)
        told[capacity] = [record.message for record in caplog.records]
        stored = [int(model["real"].sum()) for model in models(sim).values()]
        assert stored == [min(n, capacity) for n in SIZES]
    assert told[20] == []
    (line,) = told[6]
    assert line.startswith("capacity is 6: ")
    assert "--set capacity=20 has room for all" in line


@pytest.mark.parametrize("engine", ENGINES)
def test_each_client_chooses_on_its_validation_rows(engine):
    # the head says class 0 to all; rows near 1 are of class 1, those near -1 of class 0
    task = two_layers([[1.0]], [[0.0], [0.0]])
    x = torch.tensor([-1.0, 1.0, -1.1, 1.1, -0.9, 0.9, 1.2, -1.2, 1.3])[:, None]
    y = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0])
    rows = lambda *parts: [np.array(part, dtype=np.int64) for part in parts]
    train = rows([0, 1], [0, 1], [0, 1])
    val = rows([2, 3], [6, 7], [])  # the second's are the other way round, the third has none
    world = ClientData.of(x, y, train, val, rows([4, 5], [4, 5], [4, 5]))
    method = knn_per(task, k=1, lam=0.3, recipe=STILL)
    sim = simulate(method, world, task, engine=engine)
    shares = [float(model["share"]) for model in models(sim).values()]
    # client 0: all λ > 0 have both right, and 1 the least loss;  client 1: none has, but 0, by ties
    assert shares == near(1.0, 0.0, 0.3)
    assert method.validates
    assert not knn_per(task, choose="fixed").validates


@pytest.mark.usefixtures("double")
def test_fine_tuning_trains_the_model_and_makes_the_store_anew():
    """Neither stored features nor λ have a slope to follow."""
    task, world, recipe = task_of(), ragged(), Recipe(epochs=3, lr=0.2)
    sim = simulate(knn_per(task, choose="fixed", lam=0.4, capacity=60), world, task)
    play(sim)
    ((_, tuned),) = sim.models(recipe, ids=torch.tensor([1]))
    assert gap(tuned["params"], sim.server["params"]) > 1e-3
    assert float(tuned["share"]) == 0.4
    keys = task.features(tuned["params"], data_of(world, 1).x[data_of(world, 1).rows[:20]])
    assert float(torch.cdist(tuned["keys"][tuned["real"]], keys).min(1).values.max()) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_who_never_took_part_has_a_store_and_who_has_no_rows_none(engine):
    task = task_of()
    sim = simulate(knn_per(task, choose="fixed", lam=1.0), ragged(), task, engine=engine)
    play(sim, [[0, 1]])
    found = models(sim)
    assert int(found["4"]["real"].sum()) == 9
    assert float(found["4"]["share"]) == 1
    none = Data.of(torch.zeros(1, 4), torch.zeros(1).long(), val=1)
    model = sim.method.personal({"params": sim.server["params"]}, {}, none, turn_of())
    x = ragged().x[:5]
    torch.testing.assert_close(
        sim.method.predict(model, x), task.predict(sim.server["params"], x).log_softmax(-1)
    )


def test_a_validation_row_that_is_answered_by_no_number_does_not_choose():
    """The head is sure of class 1, and of x = 5 it says infinity; neighbours are right of the rest.
    Before, that one row made every λ as good as none, and λ = 0 was taken: the head alone."""
    task = two_layers([[1.0]], [[-1e38], [1e38]])
    world = labelled([[([x], 0) for x in (1.0, 1.1, 1.2, 5.0)]])
    sim = simulate(knn_per(task, k=1, recipe=STILL), world, task)
    assert float(models(sim)["0"]["share"]) == 1
