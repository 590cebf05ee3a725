"""pMixFed: by hand, its limits, networks of several depths, and clients that were not there."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedtailor
import fedtailor.methods.mixture.pmixfed as mixing
from fedtailor.core import rng, tree
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedavg, fedsim, local, pmixfed
from tests.methods.worlds import (
    ENGINES,
    HALF,
    find,
    gap,
    models,
    near,
    numbers,
    of_models,
    outcome,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_clients,
    two_numbers,
)

RECIPE = Recipe(epochs=2, batch=8, lr=0.1)
FROZEN = {"mix_policy": "gradual", "mu_start": 0.0, "mu_end": 0.0}  # μ = 0: λ_b = 0, λ_a = 1
FULL = {"mix_policy": "dynamic", "mu0": 1.0}  # μ = 1: λ_b = 1 but for the head, λ_a = 0
COHORTS = [[0, 1, 2, 3], [1, 2, 5], [0, 3, 4], [0, 1, 2, 3, 4, 5]]


def deep() -> nn.Module:
    """4-5-5-3: three blocks."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


def shallow() -> nn.Module:
    """4-5-3: its head has the place of the deep net's middle, and another shape."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def _task() -> Task:
    return classification(deep)


def _equal(a, b, engine) -> bool:
    """To the last bit one after another; mapped, another kernel multiplies what clients share."""
    return same(a, b) if engine == "sequential" else gap(a, b) < 1e-6


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    """Blocks a (input, i = 1) and b (head, i = 2) with the loss (a - x)²/2 + (b - x)²/2.

    A row counts as right while its loss is below log 2 = 0.693. Every round takes one step of 0.5:
    half the way to the rows' mean (client 0: 2, one row; client 1: 8, three rows). T = 2.
    """
    task = two_numbers()
    world = rows_of([[2.0], [7.0, 8.0, 9.0]], [[0.5, 2.5], [0.0, 0.25, 4.0, 9.0]])
    sim = simulate(pmixfed(task, recipe=HALF), world, task, engine=engine, rounds=2)

    # t = 0: δ = 0, so μ = 1/2 for all: λ_b = (1/2, 0), λ_a = (1/2, 0). Own and global model are 0.
    # client 0: (0, 0) -> (1, 1); client 1: (0, 0) -> (4, 4); weighted 1 : 3 the mean is 3.25
    # G_a = 1/2 0 + 1/2 3.25 = 1.625, G_b = 0 + 3.25
    # accuracy of G = 0: client 0 has 0.5 right (loss 0.25), 2.5 wrong (6.25): 1/2;
    #   client 1 has 0 and 0.25 right (0, 0.0625), 4 and 9 wrong: 1/2. A_G = 1/2
    (report,) = play(sim)
    assert sim.server["shared"]["a"] == near(1.625)
    assert sim.server["shared"]["b"] == near(3.25)
    assert sim.server["accuracy"] == near(0.5)
    assert report.notes["mix_factor"].tolist() == near(0.5, 0.5)
    assert report.notes["mix_degree"].tolist() == [[0.5, 0], [0.5, 0]]

    # t = 1: δ = 1/2.
    # client 0: (1, 1) has 0.5 right (0.25), 2.5 wrong (2.25): A = (1/2) / (1/2) = 1, μ = 1/2
    #   a = 1/2 1.625 + 1/2 1 = 1.3125, b = 1 -> (1.65625, 1.5)
    # client 1: (4, 4) has only 4 right: 1/4, A = 1/2, μ = σ(0.5 (1 - 0.25)) = σ(0.375) = 0.59266660
    #   a = 4 - 0.59266660 (4 - 1.625) = 2.59241683, b = 4 -> (5.29620841, 6)
    # G = (1.625, 3.25): client 0 has 0.5 wrong (4.41), 2.5 right ((0.875² + 0.75²)/2 = 0.664): 1/2;
    #   client 1 has none (at 4: (2.375² + 0.75²)/2 = 3.10): 0. A_G = 1/4
    #   μ_G = σ(0.5 (1 - 0.0625)) = σ(0.46875) = 0.61508786, λ_a = (0.38491214, 0)
    # means: a (1.65625 + 3 5.29620841)/4 = 4.38621881, b (1.5 + 3 6)/4 = 4.875
    # G_a = 0.38491214 1.625 + 0.61508786 4.38621881 = 3.32339216, G_b = 4.875
    (report,) = play(sim)
    assert report.notes["mix_factor"].tolist() == near(0.5, 0.5926665999540697)
    assert find(sim.states.rows, "own")["a"].tolist() == near(1.65625, 5.296208412554542)
    assert find(sim.states.rows, "own")["b"].tolist() == near(1.5, 6.0)
    assert sim.server["shared"]["a"] == near(3.323392156094256)
    assert sim.server["shared"]["b"] == near(4.875)
    assert sim.server["accuracy"] == near(0.25)

    # tested with the mix at δ = 1. client 0: (1.65625, 1.5): 2.5 has (0.84375² + 1)/2 = 0.856,
    #   0.5 has (1.15625² + 1)/2 = 1.168: both wrong; A = 0, μ = σ(1) = 0.73105858
    #   a = 1.65625 + 0.73105858 (3.32339216 - 1.65625) = 2.87502819
    # client 1: (5.29620841, 6): none right either, the same μ
    #   a = 5.29620841 + 0.73105858 (3.32339216 - 5.29620841) = 3.85396415
    first = 1.65625 + 0.7310585786300049 * (3.323392156094256 - 1.65625)
    second = 5.296208412554542 + 0.7310585786300049 * (3.323392156094256 - 5.296208412554542)
    assert (first, second) == (pytest.approx(2.87502, abs=1e-4), pytest.approx(3.85396, abs=1e-4))
    assert of_models(sim, "a") == near(first, second)
    assert of_models(sim, "b") == near(1.5, 6.0)


@pytest.mark.usefixtures("double")
def test_aggregation_can_look_at_the_ratio():
    """`agg_ratio`: A = mean local over global accuracy. In the example above at t = 1:
    local 1/2 and 1/4, global 1/2 and 0: A = 0.375/0.25 = 1.5, μ_G = σ(0.5 (1 - 2.25)) = 0.34864514;
    λ_a = (0.65135486, 0.30270973).
    """
    task = two_numbers()
    world = rows_of([[2.0], [7.0, 8.0, 9.0]], [[0.5, 2.5], [0.0, 0.25, 4.0, 9.0]])
    sim = simulate(pmixfed(task, recipe=HALF, agg_ratio=True), world, task, rounds=2)
    play(sim, 2)
    mu = 1 / (1 + np.exp(0.625))
    assert mu == pytest.approx(0.34864514, abs=1e-8)
    assert sim.server["shared"]["a"] == near((1 - mu) * 1.625 + mu * 4.386218809415906)
    assert sim.server["shared"]["b"] == near((1 - 2 * mu) * 3.25 + 2 * mu * 4.875)


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["option", "patch"])
def test_without_mixing_clients_train_alone_and_g_stands_still(how, engine, monkeypatch):
    """μ = 0 in both stages, exactly."""
    task, world = _task(), ragged()
    options = FROZEN if how == "option" else {}
    if how == "patch":
        monkeypatch.setattr(mixing, "mix_factor", lambda progress, a: torch.zeros_like(a))
    ours = simulate(pmixfed(task, recipe=RECIPE, **options), world, task, engine=engine)
    alone = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
    for cohort in COHORTS:
        play(ours, [cohort])
        play(alone, [cohort])
        assert same(models(ours), models(alone))
        assert same(ours.server["shared"], ours.initial)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["option", "patch"])
def test_with_a_factor_of_one_it_is_fedper_and_not_fedavg(how, engine, monkeypatch):
    """All blocks but the head follow FedAvg; the head is never taken over."""
    task, world = _task(), ragged()
    options = FULL if how == "option" else {}
    if how == "patch":
        monkeypatch.setattr(mixing, "mix_factor", lambda progress, a: torch.ones_like(a) * 1.7)
    ours = simulate(pmixfed(task, recipe=RECIPE, **options), world, task, engine=engine)
    fedper = fedsim(task, shared_blocks=2, weighting="data", recipe=RECIPE)
    theirs = simulate(fedper, world, task, engine=engine)
    average = simulate(fedavg(task, recipe=RECIPE), world, task, engine=engine)
    for number in range(4):
        for sim in (ours, theirs, average):
            play(sim)
        assert _equal(models(ours), models(theirs), engine), number
        body = tree.pick(ours.server["shared"], theirs.server["shared"])
        assert _equal(body, theirs.server["shared"], engine)
    assert gap(models(ours), models(average)) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["sigmoid", "dynamic", "random"])
def test_both_stages_off_is_fedavg(policy, engine):
    """λ_b = 1 and λ_a = 0, exactly, whatever the policy."""
    task, world = _task(), ragged()
    off = {"use_broadcast_mix": False, "use_aggregation_mix": False, "mix_policy": policy}
    ours = simulate(pmixfed(task, recipe=RECIPE, **off), world, task, engine=engine)
    theirs = simulate(fedavg(task, recipe=RECIPE), world, task, engine=engine)
    for cohort in COHORTS:
        play(ours, [cohort])
        play(theirs, [cohort])
        assert _equal(ours.server["shared"], theirs.server["params"], engine)
        assert _equal(models(ours), models(theirs), engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_download_is_local_and_no_aggregation_freezes(engine):
    """λ_b = 0: clients are alone, though G follows them; λ_a = 1: G stands still."""
    task, world = _task(), ragged()
    deaf = pmixfed(task, recipe=RECIPE, **FROZEN, use_aggregation_mix=False)
    deaf = simulate(deaf, world, task, engine=engine)
    alone = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
    mute = pmixfed(task, recipe=RECIPE, **FROZEN, use_broadcast_mix=False)
    mute = simulate(mute, world, task, engine=engine)
    for _ in range(3):
        for sim in (deaf, alone, mute):
            play(sim)
        assert same(models(deaf), models(alone))
        assert same(mute.server["shared"], mute.initial)
    assert gap(deaf.server["shared"], deaf.initial) > 1e-3
    # λ_b = 1: whatever it learnt, a client begins with G again
    assert all(same(model, mute.initial) for model in models(mute).values())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["sigmoid", "dynamic", "gradual", "random", "random_adaptive"])
def test_a_client_that_was_never_there_gets_g_as_it_is(policy, engine):
    """L = G: mixing changes nothing, in the first round and at a cold start."""
    task, world = _task(), ragged()
    sim = simulate(pmixfed(task, mix_policy=policy, recipe=RECIPE), world, task, engine=engine)
    assert all(same(model, sim.initial) for model in models(sim).values())
    play(sim, [[0, 1, 2, 3], [1, 2, 3]])
    found = models(sim)
    for client in ("4", "5"):
        assert same(found[client], sim.server["shared"])
    assert not any(same(found[c], sim.server["shared"]) for c in ("0", "1", "2", "3"))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_late_client_begins_with_the_initial_model_by_hand(engine):
    # body a, head b, both 0 at first; half the way to 2 or 8; μ = 1/2: λ_b = (1/2, 0) = λ_a
    # round 0, client 0:  L = (1, 1);  G = (0.5 0 + 0.5 1, 1) = (0.5, 1)
    # client 1 has no model of its own yet and is tested with G
    # round 1, client 1:  L = G⁰ = 0:  L' = (0.5 0.5, 0);  trained (4.125, 4)
    #   G = (0.5 0.5 + 0.5 4.125, 4) = (2.3125, 4)
    task = two_numbers()
    method = pmixfed(task, mix_policy="dynamic", mu0=0.5, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim, [[0]])
    assert [of_models(sim, k)[1] for k in "ab"] == near(0.5, 1.0)
    play(sim, [[1]])
    assert [float(sim.states.rows["own"][k][1]) for k in "ab"] == near(4.125, 4.0)
    assert [float(sim.server["shared"][k]) for k in "ab"] == near(2.3125, 4.0)
    assert sim.states.rows["trained"].tolist() == [True, True]


@pytest.mark.parametrize("engine", ENGINES)
def test_cold_start_is_fine_tuned(engine):
    """F epochs on the newcomer's own training rows, from G; its state stays empty."""
    task, world = _task(), ragged()
    sim = simulate(pmixfed(task, recipe=RECIPE), world, task, engine=engine)
    play(sim, [[0, 1, 2, 3], [0, 1, 2, 3]])
    before = sim.score(torch.tensor([4, 5]), part="train").test.loss
    tuned = replace(RECIPE, epochs=5)
    after = sim.score(torch.tensor([4, 5]), part="train", finetune=tuned).test.loss
    assert (after < before).all()
    found = dict(sim.models(tuned))
    for client in (4, 5):
        assert gap(found[client], sim.server["shared"]) > 1e-3
        turn = sim._turn(rng.SCORE).of(torch.tensor(client)).at_client().split()[1]
        data = world.data(torch.tensor([client]))
        one = data._replace(
            rows=data.rows[0], n=data.n[0], val_rows=data.val_rows[0], val_n=data.val_n[0]
        )
        expected = fit(task, sim.server["shared"], one, turn, tuned)
        assert gap(found[client], expected) < 1e-5
    assert not sim.states.met[4:].any()


# ------------------------------------------------------------------------------------------ random


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_random_degrees_differ_by_block_client_round_and_stage(engine):
    task, world = _task(), ragged()
    sim = simulate(pmixfed(task, mix_policy="random", recipe=RECIPE), world, task, engine=engine)
    degrees = torch.cat([report.notes["mix_degree"] for report in play(sim, 3)])
    assert degrees.shape == (18, 3)
    assert degrees.unique().numel() == 54
    assert (degrees.diff(dim=1) > 0).any()  # no ramp
    # the two stages: G'_k = G + (1 - λ)(L_k - G) tells λ, and it is not the download's
    before, state = tree.map(torch.clone, sim.server["shared"]), find(sim.states.rows, "own")
    (report,) = play(sim, [[2]])
    down = report.notes["mix_degree"][0]
    for i, block in enumerate(task.blocks):
        name = block[0]
        moved = sim.server["shared"][name] - before[name]
        share = 1 - moved / (state[name][2] - before[name])
        assert float(share.std()) < 1e-6
        assert abs(float(share.mean() - down[i])) > 1e-6


def test_uniform_weights():
    """Algorithm 1: 1/K each. With one block λ_a = 1 - μ = 1/2 at t = 0: (1/2) (1 + 4)/2 = 1.25."""
    task = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2)
    world = rows_of([[2.0], [7.0, 8.0, 9.0]])
    for weighting, expected in (("uniform", 1.25), ("data", 1.625)):
        sim = simulate(pmixfed(task, weighting=weighting, recipe=HALF), world, task)
        play(sim)
        assert sim.server["shared"]["w"] == near(expected)


# ------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["sigmoid", "random"])
def test_bytes(policy, engine):
    """Σ and one accuracy down, Σ and two up; Σ = 4·5 + 5 + 5·5 + 5 + 5·3 + 3 = 73."""
    task, world = _task(), ragged()
    sim = simulate(pmixfed(task, mix_policy=policy), world, task, engine=engine)
    for report in play(sim, COHORTS):
        assert report.down.tolist() == [4 * (73 + 1)] * len(report.ids)
        assert report.up.tolist() == [4 * (73 + 2)] * len(report.ids)


# ------------------------------------------------------------------- networks of several depths


def _mixed(sizes=(40, 31, 24, 13, 9, 7), *, lone=(3, 4, 5), engine="sequential", **options):
    """The last three clients have the shallow net, beside the server's deep one."""
    big, small, world = _task(), classification(shallow), ragged(sizes)
    options = {"recipe": RECIPE, **options}
    sim = simulate(
        pmixfed(big, networks=(big, small), **options),
        world,
        big,
        engine=engine,
        others=[(pmixfed(small, networks=(big, small), **options), small, torch.tensor(lone))],
    )
    return sim, big, small


@pytest.mark.parametrize("policy", ["sigmoid", "random"])
@pytest.mark.parametrize("engine", ENGINES)
def test_equal_depths_are_the_plain_path(engine, policy):
    """`networks=` the own one alone changes nothing."""
    task, world = _task(), ragged()
    options = {"mix_policy": policy, "recipe": RECIPE}
    plain = simulate(pmixfed(task, **options), world, task, engine=engine)
    whole = simulate(pmixfed(task, networks=(task,), **options), world, task, engine=engine)
    for cohort in COHORTS:
        play(plain, [cohort])
        play(whole, [cohort])
    assert same(outcome(plain), outcome(whole))


def test_groups_of_equal_depth_are_the_plain_path():
    """Exactly, where clients are added up in the same order (largest first)."""
    sizes = (40, 31, 24, 13, 9, 7)
    task, world = _task(), ragged(sizes)
    make = lambda **more: pmixfed(task, recipe=RECIPE, **more)
    plain = simulate(make(), world, task, engine="sequential")
    found = {}
    for ids in ((3, 4, 5), (0, 4)):
        others = [(make(networks=(task,)), task, torch.tensor(ids))]
        sim = simulate(make(networks=(task,)), world, task, engine="sequential", others=others)
        play(sim, COHORTS)
        found[ids] = {"server": sim.server, "models": models(sim)}
    play(plain, COHORTS)
    expected = {"server": plain.server, "models": models(plain)}
    assert same(found[3, 4, 5], expected)
    assert gap(found[0, 4], expected) < 1e-5


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_block_that_nobody_has_keeps_its_value(engine, renormalise):
    """Shallow clients alone teach the first block only."""
    sim, _, _ = _mixed(engine=engine, renormalise=renormalise)
    play(sim)
    before = tree.map(torch.clone, sim.server["shared"])
    play(sim, [[3, 4, 5]])
    after = sim.server["shared"]
    assert after.keys() == before.keys()
    for name in before:
        assert torch.equal(after[name], before[name]) == (name not in ("0.weight", "0.bias"))


@pytest.mark.parametrize("engine", ENGINES)
def test_unmatched_blocks_do_not_travel(engine):
    """Deep: 73 numbers; shallow: only 4·5 + 5 = 25; and one accuracy down, two up."""
    sim, _, small = _mixed(engine=engine)
    report = play(sim, 2)[1]
    assert report.down.tolist() == [4 * 74] * 3 + [4 * 26] * 3
    assert report.up.tolist() == [4 * 75] * 3 + [4 * 27] * 3
    assert set(sim.clients.stores[1].rows["own"]) == {"0.weight", "0.bias"}
    assert set(sim.clients.stores[1].rows["host"]["personal"]) == set(small.blocks[1])
    # everyone has a model of the own kind
    assert [len(m) for m in models(sim).values()] == [6] * 3 + [4] * 3
    assert sim.score().test.loss.isfinite().all()


def _vector(start: dict[str, list[float]]) -> Task:
    """Blocks of some numbers each, with the loss Σ (p - x)²/2 over all numbers."""
    base = numbers(
        dict.fromkeys(start, 0.0),
        lambda p, x: sum((v[None] - x[:, None]).square().sum(1) / 2 for v in p.values()),
    )
    return base._replace(init=lambda key: {k: torch.tensor(v) for k, v in start.items()})


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_vote_for_the_old_value_by_hand(engine):
    """Client 0 (one row, 2) has a: 1 number, then b: 2 numbers, which match nothing.
    Client 1 (rows 7, 8, 9) has the server's a: 1 number, b: 1 number, c: 1 number.

    Both stages off, so that only the vote is left: λ_b = 1, λ_a = 0. One step of 0.5 from 0, 1, 2.
    """
    whole = _vector({"a": [0.0], "b": [1.0], "c": [2.0]})
    small = _vector({"a": [0.0], "b": [10.0, 20.0]})
    world = rows_of([[2.0], [7.0, 8.0, 9.0]])
    off = {"use_broadcast_mix": False, "use_aggregation_mix": False, "recipe": HALF}
    for renormalise, b, c in (
        # a: 0 -> 1 and 0 -> 4: (1 + 3 4)/4 = 3.25
        # b: 1 -> 4.5 at client 1 with weight 3/4; client 0 votes for 1: 3/4 4.5 + 1/4 1 = 3.625
        # c: 2 -> 5: 3/4 5 + 1/4 2 = 4.25
        (False, 3.625, 4.25),
        (True, 4.5, 5.0),
    ):
        others = [(pmixfed(small, networks=(whole, small), renormalise=renormalise, **off), small)]
        sim = simulate(
            pmixfed(whole, networks=(whole, small), renormalise=renormalise, **off),
            world,
            whole,
            engine=engine,
            others=[(*others[0], torch.tensor([0]))],
        )
        (report,) = play(sim)
        server = {k: v.tolist() for k, v in sim.server["shared"].items()}
        assert server == {"a": [near(3.25)], "b": [near(b)], "c": [near(c)]}
        # client 0 trains its own b: 10 -> 6, 20 -> 11
        found = models(sim)
        assert found["0"]["a"].tolist() == [near(3.25)]
        assert found["0"]["b"].tolist() == near(6.0, 11.0)
        assert report.up.tolist() == [8 * 3, 8 * 5]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_ramps_use_the_clients_own_depth(engine):
    """`dynamic` with 1/(n - 1): λ_b = (1, 1/2, 0) for three blocks, (1, 0) for two."""
    sim, big, small = _mixed(engine=engine, mix_policy="dynamic", use_aggregation_mix=False)
    play(sim)
    found, server = models(sim), sim.server["shared"]
    for client in ("3", "4", "5"):
        assert (
            gap(tree.pick(found[client], small.blocks[0]), tree.pick(server, small.blocks[0]))
            < 1e-12
        )
        own = tree.index(sim.clients.stores[1].rows["host"]["personal"], int(client) - 3)
        assert same(tree.pick(found[client], small.blocks[1]), own)
    own = tree.index(sim.states.rows["own"], 1)
    for name in big.blocks[1]:
        torch.testing.assert_close(found["1"][name], (own[name] + server[name]) / 2)


@pytest.mark.usefixtures("double")
def test_engines_agree_on_several_depths():
    results = []
    for options in ({"engine": "sequential"}, {"engine": "vectorised"}):
        sim, _, _ = _mixed(**options)
        play(sim, COHORTS)
        banks = {str(i): store.rows for i, store in enumerate(sim.clients.stores)}
        results.append({"server": sim.server, "banks": banks, "models": models(sim)})
    assert gap(*results) < 1e-9


@pytest.mark.parametrize("engine", ENGINES)
def test_a_cohort_that_shares_no_block_at_all(engine):
    """Clients whose network has nothing in common with the server's only train; G stays."""
    task = _task()
    other = classification(lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    sim = simulate(
        pmixfed(task, networks=(task, other)),
        ragged(),
        task,
        engine=engine,
        others=[(pmixfed(other, networks=(task, other)), other, torch.tensor([0, 1]))],
    )
    play(sim)
    before = tree.map(torch.clone, sim.server["shared"])
    play(sim, [[0, 1]])
    assert same(sim.server["shared"], before)


# ------------------------------------------------------------------------------------ running stats


def test_running_statistics_are_mixed_like_parameters():
    """They belong to their block; with both stages off they are FedAvg's, to the last bit."""
    task, world = task_of("norm"), ragged()
    off = {"use_broadcast_mix": False, "use_aggregation_mix": False}
    ours = simulate(pmixfed(task, **off), world, task, engine="sequential")
    theirs = simulate(fedavg(task), world, task, engine="sequential")
    play(ours, 2)
    play(theirs, 2)
    assert same(ours.server["shared"], theirs.server["params"])


def test_without_validation_rows_accuracies_are_zero():
    """Nothing to measure: A = 0, not NaN."""
    task = _task()
    sim = simulate(pmixfed(task), ragged(val=0), task)
    report = play(sim, 2)[1]
    assert sim.server["accuracy"] == 0
    assert report.notes["mix_factor"].tolist() == near(*[1 / (1 + np.exp(-0.1))] * 6)


# --------------------------------------------------------------------------------------- leaks


def test_accuracies_of_test_rows_are_marked_as_leaking(tmp_path):
    """`acc_source=test` is for literal replication: another result, and it says so."""
    settings = {"model": "mlp", "clients": 4, "rounds": 3, "batch": 50, "lr": 0.1}
    plain = fedtailor.run("pmixfed", **settings)
    leaking = fedtailor.run(
        "pmixfed", options={"acc_source": "test"}, out=tmp_path / "run", **settings
    )
    assert (plain["leaks_test"], leaking["leaks_test"]) == (False, True)
    assert plain["accuracy"]["loss"] != leaking["accuracy"]["loss"]
    # what it looks at are the test rows: the best round is chosen by their accuracies
    rows = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert all(line["pre_val"] == line["pre"] for line in map(json.loads, rows))
    with pytest.raises(fedtailor.BadInput, match="val is 0"):
        fedtailor.run("pmixfed", val=0.0, **settings)


# ---------------------------------------------------------------------------------------- late


def test_a_client_that_comes_late_begins_with_what_it_receives():
    """Its own model is the G of its first round: mixing changes nothing then."""
    task, world = _task(), ragged()
    sim = simulate(pmixfed(task), world, task)
    play(sim, [[0, 1, 2], [0, 1, 2]])
    assert same(models(sim)["5"], sim.server["shared"])
    first = {k: v.clone() for k, v in sim.server["shared"].items()}
    assert not same(first, sim.initial)
