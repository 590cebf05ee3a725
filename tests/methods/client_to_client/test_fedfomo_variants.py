"""FedFomo-MA, and FedFomo with averages of clusters as candidates."""

import pytest
import torch

from fedtailor.core import tree, wire
from fedtailor.core.scoring import mean_loss
from fedtailor.core.training import Recipe
from fedtailor.methods import fedfomo, fedfomo_ma
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    models,
    near,
    of_models,
    one_number,
    outcome,
    play,
    ragged,
    rows_of,
    simulate,
    task_of,
    turn_of,
    two_clients,
)

SIGMA = 51
RECIPE = Recipe(epochs=2, batch=8, lr=0.1)


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    """(w - x)²/2, half the way to 2 and to 8 a round; validation rows are 3 and 6."""
    task = one_number()
    sim = simulate(fedfomo_ma(task, recipe=HALF), two_clients(), task, engine=engine)
    # nobody has uploaded: all begin with the mean, 0. -> 1 and 4
    (report,) = play(sim)
    assert report.notes["candidate_weight"].tolist() == [[0, 0], [0, 0]]
    assert sim.server["models"]["w"].tolist() == near(1.0, 4.0)
    assert sim.server["mean"]["w"] == near(2.5)
    # mean 2.5, without client 0: 4, without client 1: 1
    # client 0: L(2.5) = 0.125, L(4) = 0.5, L(1) = 2: w = (0.375, 1.875), w* = (1/6, 5/6)
    #   θ = 2.5 + 1/6 (1 - 2.5) + 5/6 (4 - 2.5) = 3.5 -> 2.75
    # client 1: L(2.5) = 6.125, L(4) = 2, L(1) = 12.5: w = (-4.125, 6.375), w* = (0, 1)
    #   θ = 4 -> 6
    assert of_models(sim, "w") == near(3.5, 4.0)
    (report,) = play(sim)
    assert report.notes["candidate_weight"].tolist() == [near(0.375, 1.875), near(-4.125, 6.375)]
    assert sim.server["models"]["w"].tolist() == near(2.75, 6.0)
    assert sim.server["mean"]["w"] == near(4.375)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_strangers_and_equals(engine):
    """Clients that never uploaded, and the mean itself where no w_n is positive.

    Uploads 1 and 4 as above. Client 2's validation row is 2.5, the mean: without either it is worse
    by as much, so 2.5 + 1/2 (-1.5) + 1/2 1.5 = 2.5. At 10, for client 3, only 4 helps.
    """
    task = one_number()
    world = rows_of([[2.0], [7.0, 8.0, 9.0], [2.5], [10.0]], [[3.0], [6.0], [2.5], [10.0]])
    sim = simulate(fedfomo_ma(task, recipe=HALF), world, task, engine=engine)
    play(sim, [[0, 1]])
    assert of_models(sim, "w") == near(3.5, 4.0, 2.5, 4.0)
    # equal uploads: no difference, no weight, the mean
    again = simulate(fedfomo_ma(task, recipe=HALF), rows_of([[2.0], [2.0], [2.0]]), task)
    play(again)
    (report,) = play(again)
    assert not report.notes["candidate_weight"].any()


# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_identical_uploads_leave_the_mean(engine):
    """Clients with the same rows: w_n = 0 and θ_new = mean, up to rounding."""
    task, world = task_of(), ragged([24])
    one = world.data(torch.tensor([0]))
    rows = [one.rows[0].numpy()] * 4
    val = [one.val_rows[0].numpy()] * 4
    same_rows = type(world).of(world.x, world.y, rows, val, val)
    sim = simulate(fedfomo_ma(task, recipe=Recipe(batch=0)), same_rows, task, engine=engine)
    play(sim)
    uploads = sim.server["models"]
    assert gap(tree.index(uploads, 0), tree.index(uploads, 3)) < 1e-6
    sim.server["models"] = tree.tile(tree.index(uploads, 0), 4)
    sim.server["mean"] = tree.index(uploads, 0)
    for model in models(sim).values():
        assert gap(model, sim.server["mean"]) < 1e-6
    (report,) = play(sim)
    assert report.notes["candidate_weight"].abs().max() < 1e-6


@pytest.mark.usefixtures("double")
def test_means_tell_every_model():
    """θ_n = N mean - (N - 1) mean without n, among those who uploaded."""
    task, world = task_of(), ragged()
    method = fedfomo_ma(task, recipe=RECIPE)
    sim = simulate(method, world, task)
    play(sim, [[0, 1, 3, 4]])
    message = method.send(sim.server, torch.tensor(2), turn_of())
    assert wire.here(message["without"]).tolist() == [True, True, False, True, True, False]
    for n in (0, 1, 3, 4):
        without = tree.index(wire.value(message["without"]), n)
        back = tree.sub(tree.scale(message["mean"], 4.0), tree.scale(without, 3.0))
        assert gap(back, tree.index(sim.server["models"], n)) < 1e-12
        others = [tree.index(sim.server["models"], m) for m in (0, 1, 3, 4) if m != n]
        mean = tree.map(lambda p: p.mean(0), tree.stack(others))
        assert gap(without, mean) < 1e-12


@pytest.mark.usefixtures("double")
def test_the_new_model_is_the_formula():
    """mean + Σ w*_n (θ_n - mean), worked out with the models themselves."""
    task, world = task_of(), ragged()
    sim = simulate(fedfomo_ma(task, recipe=RECIPE), world, task)
    play(sim)
    stored, mean = sim.server["models"], sim.server["mean"]
    for client, model in models(sim).items():
        val = data_of(world, int(client)).val
        weights = []
        for n in range(6):
            rest = [tree.index(stored, m) for m in range(6) if m != n]
            without = tree.map(lambda p: p.mean(0), tree.stack(rest))
            weights.append(float(mean_loss(task, without, val) - mean_loss(task, mean, val)))
        positive = torch.tensor(weights).clamp(min=0)
        share = positive / positive.sum() if positive.sum() > 0 else positive
        expected = tree.map(lambda m, p, s=share: m + torch.tensordot(s, p - m, 1), mean, stored)
        assert gap(model, expected) < 1e-10


# ------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes(engine):
    """Down: the mean and one more per upload, (N + 1) Σ once all have; up: Σ and N weights."""
    task, world = task_of(), ragged()
    sim = simulate(fedfomo_ma(task, recipe=RECIPE), world, task, engine=engine)
    # of one upload nothing would be left without it
    for cohort, means in (([2], 1), ([1, 3], 1), ([0, 1], 4), ([4, 5], 5), ([0, 5], 7), ([1], 7)):
        (report,) = play(sim, [cohort])
        assert report.down.tolist() == [4 * means * SIGMA] * len(cohort)
        assert report.up.tolist() == [4 * (SIGMA + 6)] * len(cohort)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_upload_is_the_mean(engine):
    task, world = task_of(), ragged()
    sim = simulate(fedfomo_ma(task, recipe=RECIPE), world, task, engine=engine)
    play(sim, [[2]])
    for model in models(sim).values():
        assert gap(model, tree.index(sim.server["models"], 2)) == 0


# -------------------------------------------------------------------------- averages of clusters


@pytest.mark.parametrize("engine", ENGINES)
def test_extra_candidates_cost_bytes(engine):
    """Two clusters' means and that of all: three models more, once there are any."""
    task, world = task_of(), ragged()
    plain, extra = (
        simulate(
            fedfomo(task, M=3, extra_candidates=e, federations=2, recipe=RECIPE),
            world,
            task,
            engine=engine,
        )
        for e in (False, True)
    )
    for number, cohort in enumerate([[0, 1, 2, 3, 4, 5], [0, 1, 3], [1, 2, 4, 5]]):
        (a,), (b,) = play(plain, [cohort]), play(extra, [cohort])
        assert (b.down - a.down).tolist() == [4 * 3 * SIGMA * (number > 0)] * len(cohort)
        # only the weights of single models are reported: P has no place for others
        assert a.up.tolist() == b.up.tolist() == [4 * (SIGMA + 3)] * len(cohort)
    assert gap(models(plain), models(extra)) > 1e-4


@pytest.mark.usefixtures("double")
def test_extra_candidates_by_hand():
    """Two clients, one cluster: the candidates are the own model and twice the mean of both.

    As FedFomo with M = 1 (nobody else's model) after one round: base 0, own 1 and 4, mean 2.5 (two
    clients are more than one cluster, so the cluster is everybody).
    client 0, validation row 3: L(0) = 4.5, L(1) = 2, L(2.5) = 0.125
      w = (2.5/1, 4.375/2.5, 4.375/2.5) = (2.5, 1.75, 1.75), Σ = 6
      θ = (2.5 1 + 3.5 2.5)/6 = 1.875
    client 1, validation row 6: L(0) = 18, L(4) = 2, L(2.5) = 6.125
      w = (16/4, 11.875/2.5, 11.875/2.5) = (4, 4.75, 4.75), Σ = 13.5
      θ = (4 4 + 9.5 2.5)/13.5 = 2.94444444
    """
    task = one_number()
    method = fedfomo(task, M=1, extra_candidates=True, federations=1, recipe=HALF)
    sim = simulate(method, two_clients(), task)
    play(sim)
    assert sim.server["extra"]["w"].tolist() == near(2.5, 2.5)
    assert of_models(sim, "w") == near(1.875, 39.75 / 13.5)
    (report,) = play(sim)
    assert report.notes["candidate_weight"].tolist() == [near(2.5, 1.75, 1.75), near(4, 4.75, 4.75)]
    # P[i, i]: 1 to begin with, + 2.5 and + 4 (and 0 in round 0: own and base were the same)
    assert sim.server["affinity"].tolist() == [near(3.5, 0.0), near(0.0, 5.0)]


@pytest.mark.usefixtures("double")
def test_engines_agree_with_clusters():
    task, world = task_of(), ragged()
    found = []
    for options in ({"engine": "sequential"}, {"engine": "vectorised"}, {"chunk": 2}):
        method = fedfomo(task, M=3, extra_candidates=True, federations=2, recipe=RECIPE)
        sim = simulate(method, world, task, **options)
        play(sim, [[0, 1, 2, 3, 4, 5], [0, 1, 3, 5], [1, 2, 4]])
        found.append(outcome(sim))
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[0], found[2]) < 1e-9


def test_weights_are_differences_of_losses():
    """MA's weights are not divided by distances (Eq. 14), and uploads may lie far apart."""
    task = one_number()
    world = rows_of([[2.0], [2.0], [2.0]])
    sim = simulate(fedfomo_ma(task, recipe=HALF), world, task)
    play(sim)
    sim.server["models"] = {"w": torch.tensor([2.0, 9.0, -8.0])}
    sim.server["mean"] = {"w": torch.tensor(1.0)}
    # without 0: (9 - 8)/2 = 0.5; without 1: (2 - 8)/2 = -3; without 2: (2 + 9)/2 = 5.5
    (report,) = play(sim)
    # L(1) = 0.5; L(0.5) = 1.125, L(-3) = 12.5, L(5.5) = 6.125
    assert report.notes["candidate_weight"][0].tolist() == near(0.625, 12.0, 5.625)


def test_a_mean_whose_outputs_overflow_weighs_nothing():
    """Without client 1 the mean is beyond what a row can be multiplied with: no loss, no weight."""
    task = task_of()
    data = data_of(ragged(), 0)
    mean = task.init(turn_of().key)
    wild = tree.map(lambda p: torch.full_like(p, 3e38), mean)
    without = tree.map(lambda *p: torch.stack(p), tree.map(lambda p: p * 0.5, mean), wild)
    message = {"mean": mean, "without": wire.maybe(torch.tensor([True, True]), without)}
    found = fedfomo_ma(task).client(message, {}, data, turn_of())
    weights = found.upload.each["weights"]
    assert weights.isfinite().all() and float(weights[1]) == 0
