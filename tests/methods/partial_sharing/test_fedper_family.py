"""FedPer, FedBABU, LG-FedAvg and FedBN: some parameters are learnt together, others stay."""

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedavg, fedbabu, fedbn, fedper, fedsim, lg_fedavg, local
from tests.methods.worlds import (
    ENGINES,
    data_of,
    find,
    gap,
    make,
    models,
    near,
    of_models,
    play,
    product,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
EIGHTH = Recipe(batch=3, lr=0.125)  # one step a round: nobody has more than three rows


def deep() -> nn.Module:
    """Three blocks of 20, 20 and 15 parameters."""
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


# ---------------------------------------------------------------------------------------- by hand

# Body a and head b begin at 1, loss (a b - x)²/2 with r = a b - mean:
# gradients r b for a and r a for b, both from the old values. Round 0:
#   client 0:  r = -1:  a = b = 1 + 1/8 = 1.125
#   client 1:  r = -7:  a = b = 1 + 7/8 = 1.875


@pytest.mark.parametrize("engine", ENGINES)
def test_fedper_by_hand(engine):
    # a = (1.125 + 3 1.875)/4 = 1.6875; b stays with its client
    # round 1:
    #   client 0:  r = 1.6875 1.125 - 2 = -0.1015625
    #     a = 1.6875 + 0.1015625 1.125/8 = 1.7017822265625
    #     b = 1.125 + 0.1015625 1.6875/8 = 1.14642333984375
    #   client 1:  r = 1.6875 1.875 - 8 = -4.8359375
    #     a = 1.6875 + 4.8359375 1.875/8 = 2.8209228515625
    #     b = 1.875 + 4.8359375 1.6875/8 = 2.89508056640625
    #   a = (1.7017822265625 + 3 2.8209228515625)/4 = 2.5411376953125
    task = product()
    sim = simulate(fedper(task, recipe=EIGHTH), two_clients(), task, engine=engine)
    play(sim)
    assert set(sim.server["shared"]) == {"a"}
    assert of_models(sim, "a") == near(1.6875, 1.6875)
    assert of_models(sim, "b") == near(1.125, 1.875)
    play(sim)
    assert float(sim.server["shared"]["a"]) == near(2.5411376953125)
    assert sim.states.rows["personal"]["b"].tolist() == near(1.14642333984375, 2.89508056640625)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedbabu_by_hand(engine):
    # b = 1 for ever; a = (1.125 + 1.875)/2 = 1.5 with equal weights
    # tested after F = 1 step on both, from (1.5, 1):
    #   client 0:  r = -0.5:  a = 1.5 + 0.5/8 = 1.5625,  b = 1 + 0.5 1.5/8 = 1.09375
    #   client 1:  r = -6.5:  a = 1.5 + 6.5/8 = 2.3125,  b = 1 + 6.5 1.5/8 = 2.21875
    # round 1 trains a alone: a = (1.5625 + 2.3125)/2 = 1.9375
    task = product()
    sim = simulate(fedbabu(task, F=1, recipe=EIGHTH), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["shared"]["a"]) == near(1.5)
    assert of_models(sim, "a") == near(1.5625, 2.3125)
    assert of_models(sim, "b") == near(1.09375, 2.21875)
    play(sim)
    assert float(sim.server["shared"]["a"]) == near(1.9375)
    assert sim.states.rows["personal"]["b"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_lg_fedavg_by_hand(engine):
    # the upper block b is shared: b = (1.125 + 1.875)/2 = 1.5; a stays: 1.125 and 1.875
    # round 1:
    #   client 0:  r = 1.125 1.5 - 2 = -0.3125
    #     a = 1.125 + 0.3125 1.5/8 = 1.18359375,  b = 1.5 + 0.3125 1.125/8 = 1.5439453125
    #   client 1:  r = 1.875 1.5 - 8 = -5.1875
    #     a = 1.875 + 5.1875 1.5/8 = 2.84765625,  b = 1.5 + 5.1875 1.875/8 = 2.7158203125
    #   b = (1.5439453125 + 2.7158203125)/2 = 2.1298828125
    task = product()
    method = lg_fedavg(task, global_blocks=1, recipe=EIGHTH)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert set(sim.server["shared"]) == {"b"}
    assert of_models(sim, "a") == near(1.125, 1.875)
    assert of_models(sim, "b") == near(1.5, 1.5)
    play(sim)
    assert sim.states.rows["personal"]["a"].tolist() == near(1.18359375, 2.84765625)
    assert float(sim.server["shared"]["b"]) == near(2.1298828125)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedbn_by_hand(engine):
    # b plays the part of BatchNorm: it stays, and a is shared: LG-FedAvg's numbers, a for b
    task = product()._replace(batch_norm=("b",))
    sim = simulate(fedbn(task, recipe=EIGHTH), two_clients(), task, engine=engine)
    play(sim)
    assert set(sim.server["shared"]) == {"a"}
    assert of_models(sim, "a") == near(1.5, 1.5)
    assert of_models(sim, "b") == near(1.125, 1.875)
    play(sim)
    assert float(sim.server["shared"]["a"]) == near(2.1298828125)
    assert sim.states.rows["personal"]["b"].tolist() == near(1.18359375, 2.84765625)


# ------------------------------------------------------------------------------------------ limits


def _compare(ours, theirs, task, engine, server=True) -> None:
    sims = [simulate(method, ragged(), task, engine=engine) for method in (ours, theirs)]
    for sim in sims:
        play(sim, COHORTS)
    assert same(models(sims[0]), models(sims[1]))
    if server:
        assert same(sims[0].server["shared"], sims[1].server["params"])


@pytest.mark.parametrize("engine", ENGINES)
def test_with_nothing_personal_it_is_fedavg(engine):
    """Exact, for networks with BatchNorm and dropout too."""
    task, even = task_of("norm"), {"weighting": "uniform"}
    _compare(fedper(task, head_blocks=0), fedavg(task), task, engine)
    _compare(fedbabu(task, head_blocks=0, F=0), fedavg(task, **even), task, engine)
    _compare(lg_fedavg(task, global_blocks=2), fedavg(task, **even), task, engine)
    _compare(lg_fedavg(task, global_blocks=9), fedavg(task, **even), task, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_fedbn_is_fedavg_without_batch_norm_only(net, engine):
    """Exact."""
    task, world = task_of(net), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (fedbn(task), fedavg(task, weighting="uniform"))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(models(sims[0]), models(sims[1])) == (net == "mlp")


@pytest.mark.parametrize("engine", ENGINES)
def test_with_nothing_shared_it_is_local(engine):
    """Exact."""
    task = task_of("norm")
    _compare(fedper(task, head_blocks=2), local(task), task, engine, server=False)
    _compare(lg_fedavg(task, global_blocks=0), local(task), task, engine, server=False)


def test_fedbabu_with_nothing_shared_only_fine_tunes():
    """Everything is head then, which is never trained: Local is the fine-tuning alone."""
    task, world = task_of(), ragged()
    sim = simulate(fedbabu(task, head_blocks=2, F=2), world, task)
    play(sim, COHORTS)
    turn = sim._turn(rng.SCORE)
    for client in range(6):
        before = turn.of(torch.tensor(client)).at_client().split()[0]
        expected = fit(task, sim.initial, data_of(world, client), before, Recipe(epochs=2))
        assert gap(models(sim)[str(client)], expected) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_fedsim_with_a_personal_head_is_fedper(engine):
    """Exact."""
    task, world = task_of("norm"), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (fedper(task), fedsim(task, shared_blocks=1, weighting="data"))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert same(sims[0].states.rows, sims[1].states.rows)
    assert same(models(sims[0]), models(sims[1]))


# ---------------------------------------------------------------------------------------- FedBABU


@pytest.mark.parametrize("engine", ENGINES)
def test_fedbabus_head_is_constant_to_the_last_bit(engine):
    """Also with momentum and weight decay, and after an evaluation that fine-tunes it."""
    task, world = task_of("norm"), ragged()
    recipe = Recipe(momentum=0.9, weight_decay=0.1, epochs=2)
    sim = simulate(fedbabu(task, F=2, recipe=recipe), world, task, engine=engine)
    for cohort in COHORTS:
        play(sim, [cohort])
        sim.score()
    for name in task.head:
        assert name not in sim.server["shared"]
        for client in range(6):
            kept = sim.states.rows["personal"][name][client]
            assert torch.equal(kept, sim.initial[name] if sim.states.met[client] else kept * 0)
    # the tested head did move
    assert all(
        gap({"h": m["4.bias"]}, {"h": sim.initial["4.bias"]}) > 0 for m in models(sim).values()
    )


def test_fedbabus_global_model_is_tested_before_fine_tuning():
    """Body and random head: the same for all; the personal model is F epochs from it."""
    task, world = task_of(), ragged()
    none, some = (simulate(fedbabu(task, F=F), world, task) for F in (0, 5))
    for sim in (none, some):
        play(sim, COHORTS)
    assert same(none.server, some.server)  # F belongs to evaluation alone
    assert torch.equal(none.score().test.loss, some.score(general=True).test.loss)
    assert not torch.equal(some.score().test.loss, some.score(general=True).test.loss)
    tuned = some.score(part="train").test.loss.sum()
    assert tuned < none.score(part="train").test.loss.sum()


# ------------------------------------------------------------------------------ who keeps and sends


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_of_three_blocks(engine):
    """Blocks of 20, 20 and 15 numbers."""
    task, world = classification(deep), ragged()
    for method, sent in (
        (fedper(task), 40),
        (fedper(task, head_blocks=2), 20),
        (fedbabu(task), 40),
        (lg_fedavg(task), 35),
        (lg_fedavg(task, global_blocks=1), 15),
        (fedbn(task), 55),
    ):
        sim = simulate(method, world, task, engine=engine)
        for report in play(sim, COHORTS[:2]):
            assert report.down.tolist() == report.up.tolist() == [4 * sent] * len(report.ids)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_belongs_to_batch_norm_never_travels(engine):
    """75 numbers less 24: scale, shift, running mean and variance of six units."""
    task, world = task_of("norm"), ragged()
    sim = simulate(fedbn(task), world, task, engine=engine)
    (report,) = play(sim)
    assert report.down.tolist() == report.up.tolist() == [4 * 51] * 6
    assert not set(find(sim.server, "shared")) & set(task.batch_norm)
    assert set(sim.states.rows["personal"]) == set(task.batch_norm)
    # all of it is each client's own
    for name in task.batch_norm:
        rows = sim.states.rows["personal"][name]
        assert len({tuple(row.tolist()) for row in rows}) == 6


def test_fedper_trains_body_and_head_at_once():
    """With two epochs one after the other, FedRep's way, the result would be another."""
    task, world = task_of(), ragged()
    sim = simulate(fedper(task, recipe=Recipe(batch=0, epochs=1)), world, task)
    play(sim)
    own = turn_of(key=0)._replace(key=rng.key(0, rng.TURN, 0)).of(torch.tensor(3)).at_client()
    expected = fit(task, sim.initial, data_of(world, 3), own, Recipe(batch=0))
    assert gap(tree.index(sim.states.rows["personal"], 3), tree.pick(expected, task.head)) < 1e-6


# -------------------------------------------------------------- mistakes that public codes make


def _three() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_lg_fedavg_shares_the_upper_blocks(engine):
    """Guards against a key order that shares conv1 and conv2, the lower part."""
    task, world = classification(_three), ragged()
    sim = simulate(lg_fedavg(task), world, task, engine=engine)
    play(sim, 2)
    lower = {"0.weight", "0.bias"}
    assert set(sim.server["shared"]) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert set(sim.states.rows["personal"]) == lower
    everyone = list(models(sim).values())
    for name in everyone[0]:
        values = {tuple(m[name].flatten().tolist()) for m in everyone}
        assert len(values) == (6 if name in lower else 1)


def test_lg_fedavg_is_not_fedavg_by_default():
    """On a network with more than two blocks."""
    task, world = classification(_three), ragged()
    sim = simulate(lg_fedavg(task), world, task)
    fed = simulate(make("fedavg", task, weighting="uniform"), world, task)
    for one in (sim, fed):
        play(one, 2)
    assert gap(models(sim), models(fed)) > 1e-3


class _Odd(nn.Module):
    """BatchNorm that is not called so, and a Linear that is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm1 = nn.BatchNorm2d(3)
        self.bn_like = nn.Linear(27, 4)
        self.shortcut = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm1(self.conv(x)).relu().flatten(1)
        return self.out(self.shortcut(self.bn_like(x)))


@pytest.mark.parametrize("engine", ENGINES)
def test_fedbn_finds_batch_norm_by_type(engine):
    """Guards against looking for "bn" in names: that misses `norm1` and takes `bn_like`."""
    task, world = classification(_Odd), ragged(image=True)
    sim = simulate(fedbn(task), world, task, engine=engine)
    play(sim, 2)
    parts = ("weight", "bias", "running_mean", "running_var")
    expected = {f"{norm}.{part}" for norm in ("norm1", "shortcut.1") for part in parts}
    assert set(task.batch_norm) == set(sim.states.rows["personal"]) == expected
    assert {"bn_like.weight", "bn_like.bias", "shortcut.0.weight"} <= set(sim.server["shared"])
    assert not expected & set(sim.server["shared"])
