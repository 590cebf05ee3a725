"""FedDBE: an offset in the features of each client, and their mean held near all's."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import rng
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, feddbe, local
from fedtailor.methods.check import toy_federation, toy_task
from fedtailor.methods.leakage import leaks_of
from fedtailor.methods.parts.representation import mean_features
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
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
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1), ([8.0], 1)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = a x with a = 1, the head is 0, so that the body's only slope is that of the mean
    # round 0: models are let go of; ḡ = (2 2 + 3 7)/5 = 5
    # round 1, κ = 1/2: slope of a is κ (a x̄ - ḡ) x̄
    #   client 0: (2 - 5) 2/2 = -3:  a = 1 + 3/8;   W = ±(1/2) 2/8 = ±1/8, b = ±1/16
    #   client 1: (7 - 5) 7/2 = 7:   a = 1 - 7/8;   W[0]: (-5 + 8 + 8)/2/3 = 11/6, b[0]: 1/6
    #     W = ∓11/48, b = ∓1/48
    #   a = (2 11/8 + 3/8)/5 = 0.625, W = (2/8 - 33/48)/5 = -0.0875, b = (2/16 - 3/48)/5 = 0.0125
    task = two_layers([[1.0]], [[0.0], [0.0]])
    sim = simulate(feddbe(task, kappa=0.5, recipe=EIGHTH), labelled(ROWS), task, engine=engine)
    play(sim)
    assert same(sim.server["params"], sim.initial)
    assert float(sim.server["mean"]) == near(5.0)
    play(sim)
    server = sim.server["params"]
    assert float(server["body.weight"]) == near(0.625)
    assert server["head.weight"].flatten().tolist() == near(-0.0875, 0.0875)
    assert server["head.bias"].tolist() == near(0.0125, -0.0125)
    assert sim.states.rows["offset"].flatten().tolist() == [0.0, 0.0]  # the head was 0
    # round 2, client 0 of class 0 alone: q(x) of class 1 is 1/(1 + exp(2 (W a x + b)))
    #   slope of the offset: -2 W mean(q);  ḡ stays
    play(sim, [[0]])
    q = [1 / (1 + math.exp(2 * (-0.0875 * 0.625 * x + 0.0125))) for x in (1, 3)]
    moved = -0.125 * 2 * 0.0875 * sum(q) / 2
    assert sim.states.rows["offset"].flatten().tolist() == near(moved, 0.0)
    assert float(sim.server["mean"]) == near(5.0)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_a_turn_in_plain_pytorch(mu):
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.05, momentum=0.5)
    data, turn = data_of(ragged(), 1), turn_of(round=3)
    method = feddbe(task, kappa=7.0, mu=mu, mean_from="last", recipe=recipe)
    initial, goal = task.init(rng.key(3)), torch.randn(6)
    begun = torch.randn(6)
    out = method.client({"params": initial, "mean": goal}, {"offset": begun}, data, turn)
    net, offset = mlp(), begun.clone().requires_grad_()
    net.load_state_dict(initial)
    step = torch.optim.SGD([*net.parameters(), offset], lr=0.05, momentum=0.5)
    mean = torch.zeros(6)
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        x, y = batch.x[real], batch.y[real]
        step.zero_grad()
        z = net[:2](x)
        mean = (1 - mu) * mean.detach() + mu * z.mean(0)
        hold = 7 * torch.mean(0.5 * (mean - goal) ** 2)
        (F.cross_entropy(net[2](z + offset), y) + hold).backward()
        step.step()
    assert gap(out.upload.mean["params"], dict(net.state_dict())) < 1e-12
    torch.testing.assert_close(out.state["offset"], offset.detach())
    torch.testing.assert_close(out.upload.mean["mean"], mean.detach())
    x = data.x[:9]
    torch.testing.assert_close(method.predict(out.model, x), net[2](net[:2](x) + offset))


@pytest.mark.parametrize("engine", ENGINES)
def test_without_both_parts_it_is_fedavg(engine):
    """Exact, from the first round on; each part alone makes a difference."""
    task, world = task_of("norm"), ragged()
    ways = (
        feddbe(task, kappa=0, offset=False),
        fedavg(task),
        feddbe(task, kappa=0),
        feddbe(task, offset=False),
    )
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    for other in sims[2:]:
        assert gap(other.server["params"], sims[1].server["params"]) > 1e-4
    assert not sims[3].states.rows["offset"].any()
    assert sims[2].states.rows["offset"].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_is_for_the_mean_alone(engine):
    """It is that of FedAvg's trained models, by rows, over those who take part; then it stays."""
    task, world = task_of("norm"), ragged()
    sim = simulate(feddbe(task), world, task, engine=engine)
    play(sim, [[0, 1, 3]])
    assert same(sim.server["params"], sim.initial)
    assert not sim.states.rows["offset"].any()
    first = sim.server["mean"].clone()
    plain = simulate(fedavg(task), world, task, engine=engine)
    found, sizes = [], []
    for cid, model in plain.models(ids=torch.tensor([0, 1, 3]), point="post"):
        data = data_of(world, cid)
        found.append(mean_features(task, model, data))
        sizes.append(float(data.n))
    weight = torch.tensor(sizes) / sum(sizes)
    torch.testing.assert_close(first, (torch.stack(found) * weight[:, None]).sum(0))
    play(sim, COHORTS)
    assert torch.equal(sim.server["mean"], first)


def test_the_last_batch_is_not_all_rows():
    """What the authors' code sends with μ = 1."""
    task, data, recipe = task_of(), data_of(ragged(), 1), Recipe(batch=8)
    initial = task.init(rng.key(3))
    sent = {
        source: feddbe(task, mean_from=source, recipe=recipe)
        .client(
            {"params": initial, "mean": torch.zeros(6)}, {"offset": torch.zeros(6)}, data, turn_of()
        )
        .upload.mean
        for source in ("rows", "last")
    }
    assert same(sent["rows"]["params"], sent["last"]["params"])
    assert float((sent["rows"]["mean"] - sent["last"]["mean"]).abs().max()) > 0.01
    of_all = mean_features(task, sent["rows"]["params"], data)
    torch.testing.assert_close(sent["rows"]["mean"], of_all)
    one = Recipe(batch=0, lr=0.0)  # all rows in one batch, and nothing moves: the same
    whole = feddbe(task, mean_from="last", recipe=one)
    told = whole.client(
        {"params": initial, "mean": torch.zeros(6)}, {"offset": torch.zeros(6)}, data, turn_of()
    )
    torch.testing.assert_close(told.upload.mean["mean"], mean_features(task, initial, data))


def test_an_offset_undoes_a_shift_of_features():
    task = two_layers([[1.0, 2.0], [0.5, 1.0]], [[1.0, -1.0], [2.0, 0.5]])
    method, params, x = feddbe(task), task.init(rng.key(0)), torch.randn(5, 2)
    shift = torch.tensor([0.7, -1.1])
    shifted = params | {"head.bias": params["head.bias"] + params["head.weight"] @ shift}
    said = method.predict({"params": params, "offset": shift}, x)
    torch.testing.assert_close(said, task.predict(shifted, x))
    torch.testing.assert_close(
        method.predict({"params": shifted, "offset": -shift}, x), task.predict(params, x)
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_and_strangers(engine):
    """A model and six features each way; who was never there has no offset."""
    task = task_of()
    sim = simulate(feddbe(task), ragged(), task, engine=engine)
    for report in play(sim, COHORTS[:2]):
        assert report.down.tolist() == report.up.tolist() == [4 * 57] * len(report.ids)
    bare = simulate(feddbe(task, kappa=0), ragged(), task, engine=engine)
    assert play(bare)[0].down.tolist() == [4 * 51] * 6
    assert not play(sim, [[0, 1]])[0].skipped.tolist()
    late = simulate(feddbe(task), ragged(), task, engine=engine)
    play(late, [[0, 1], [0, 1]])
    assert not models(late)["4"]["offset"].any()
    assert same(models(late)["4"]["params"], late.server["params"])


@pytest.mark.usefixtures("double")
def test_fine_tuning_trains_the_offset_alone():
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=2, lr=0.1)
    sim = simulate(feddbe(task), world, task, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 3]] * 2)
    for cid, tuned in sim.models(recipe, ids=torch.tensor([0, 5])):
        assert same(tuned["params"], sim.server["params"])
        assert gap({"b": tuned["offset"]}, {"b": models(sim)[str(cid)]["offset"]}) > 1e-4


def test_without_offsets_fine_tuning_is_fedavgs():
    """It must not learn the offset after all."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=2, lr=0.1)
    sims = [
        simulate(method, world, task)
        for method in (feddbe(task, kappa=0, offset=False), fedavg(task))
    ]
    for sim in sims:
        play(sim, [[0, 1, 3]] * 2)
    ours, theirs = (dict(sim.models(recipe)) for sim in sims)
    for cid, tuned in ours.items():
        assert same(tuned["params"], theirs[cid])
        assert not tuned["offset"].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_one_client_trains_alone_beside_its_offset(engine):
    """N = 1, κ = 0, b_k fixed: training alone; with b_k it is not."""
    task, world = task_of("norm"), ragged([23])
    ways = (feddbe(task, kappa=0, offset=False), local(task), feddbe(task, kappa=0))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, 3)
    ours, alone, moved = (models(sim)["0"] for sim in sims)
    assert same(ours["params"], alone)
    assert gap(moved["params"], alone) > 1e-4


@pytest.mark.usefixtures("double")
def test_without_the_mean_noise_covers_everything():
    task, noise = toy_task(), Recipe(batch=4, lr=0.1, dp_clip=1.0, dp_noise=1.0)
    method = feddbe(task, kappa=0, recipe=noise)
    assert not method.not_private
    assert leaks_of(method, task, toy_federation()).train == ()
    assert "mean" in str(leaks_of(feddbe(task, recipe=noise), task, toy_federation()).train)
