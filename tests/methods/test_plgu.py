"""PLGU-LF, PLGU-GRep and PLGU-GHN: by hand, their limits and bytes."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedtailor.core import tree
from fedtailor.core.objectives import as_is, sam
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedavg, fedrep, local, pfedhn, plgu_ghn, plgu_grep, plgu_lf
from fedtailor.methods.parts.partial import Phase, partial
from tests.methods.worlds import (
    ENGINES,
    HALF,
    find,
    gap,
    models,
    near,
    numbers,
    of_models,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
)

RECIPE = Recipe(epochs=2, batch=8, lr=0.1)
COHORTS = [[0, 1, 2, 3], [1, 2, 5], [0, 3, 4], [0, 1, 2, 3, 4, 5]]


def deep() -> nn.Module:
    """4-5-5-3: 25 + 30 + 18 parameters."""
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))


def _task() -> Task:
    return classification(deep)


def _equal(a, b, engine) -> bool:
    """To the last bit one after another; mapped, another kernel multiplies what clients share."""
    return same(a, b) if engine == "sequential" else gap(a, b) < 1e-6


def _world():
    """One row, 2, against three with the mean 8."""
    return rows_of([[2.0], [7.0, 8.0, 9.0]])


def _slopes() -> Task:
    """(a - 3x)²/2 + (b - 4x)²/2: gradients from 0 are -3x and -4x, together 5x long."""
    error = lambda p, x: (p["a"] - 3 * x) ** 2 / 2 + (p["b"] - 4 * x) ** 2 / 2
    return numbers({"a": 0.0, "b": 0.0}, error)


# ------------------------------------------------------------------------------- PLGU-LF by hand


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_lf_by_hand(engine):
    """D = 1, ρ = 1/2, one step of 1/2 a round."""
    task = _slopes()
    sim = simulate(plgu_lf(task, D=1, rho=0.5, recipe=HALF), _world(), task, engine=engine)
    # t = 0: θ = w = 0, ξ = (1, 1). g = (-3x, -4x), ε = 0.5 g/|g| = (-0.3, -0.4)
    #   θ = (1.5x, 2x); w_i = -0.5 (g + ε) = (1.5x + 0.15, 2x + 0.2)
    # client 0 (x = 2): θ = (3, 4), w = (3.15, 4.2); client 1 (8): θ = (12, 16), w = (12.15, 16.2)
    # w = (7.65, 10.2), each client counts once
    (report,) = play(sim)
    assert report.notes["score"].tolist() == [[1, 1], [1, 1]]
    assert report.notes["personal_block"].tolist() == [[True, False]] * 2  # ties: by index
    assert sim.server["params"]["a"] == near(7.65)
    assert sim.server["params"]["b"] == near(10.2)
    assert of_models(sim, "a") == near(3.0, 12.0)
    # t = 1. client 0: |θ - w| = (4.65, 6.2): ξ = 2 (3/7, 4/7) = (6/7, 8/7); b is personal
    #   θ = (7.65, 4), g = (7.65 - 6, 4 - 8) = (1.65, -4), |g| = 4.32695043
    #   ε = 0.5 (6/7 1.65, 8/7 -4)/4.32695043 = (0.16342754, -0.52825063)
    #   θ = (6.825, 6); w_i = (7.65 - 0.5 (1.65 + 0.16342754), 10.2 - 0.5 (-4 - 0.52825063))
    #     = (6.74328623, 12.46412531)
    # client 1: |θ - w| = (4.35, 5.8), the same ξ; θ = (7.65, 16), g = (-16.35, -16),
    #   |g| = 22.87624314, ε = (-0.30630654, -0.39966602)
    #   θ = (15.825, 24); w_i = (15.97815327, 18.39983301)
    # w = (11.36071975, 15.43197916)
    (report,) = play(sim)
    assert report.notes["score"][0].tolist() == near(6 / 7, 8 / 7)
    assert report.notes["personal_block"].tolist() == [[False, True]] * 2
    assert of_models(sim, "a") == near(6.825, 15.825)
    assert of_models(sim, "b") == near(6.0, 24.0)
    assert sim.server["params"]["a"] == near(11.360719750114558)
    assert sim.server["params"]["b"] == near(15.431979163352013)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_lf_at_w_by_hand(engine):
    """`eval_point="w"`: both ε and the gradient are taken at w_i; θ goes as before."""
    task = _slopes()
    method = plgu_lf(task, D=1, rho=0.5, eval_point="w", recipe=HALF)
    sim = simulate(method, _world(), task, engine=engine)
    # t = 0: θ = w, so as above. t = 1:
    # client 0: g at w = (7.65 - 6, 10.2 - 8) = (1.65, 2.2), 2.75 long: ε = 0.5 (6/7 0.6, 8/7 0.8)
    #   = (0.25714286, 0.45714286), w_i = (7.65 - 0.95357143, 10.2 - 1.32857143)
    # client 1: g = (-16.35, -21.8), 27.25 long: -ε; w_i = (15.95357143, 21.32857143)
    play(sim, 2)
    assert of_models(sim, "a") == near(6.825, 15.825)
    assert sim.server["params"]["a"] == near((6.696428571428571 + 15.95357142857143) / 2)
    assert sim.server["params"]["b"] == near((8.87142857142857 + 21.32857142857143) / 2)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("perturb", "a", "b"),
    [
        # of the second round above, with ε = 0 on one of the blocks; b is personal, a universal
        ("all", 11.360719750114558, 15.431979163352013),
        ("uni", 11.360719750114558, 15.2),  # (10.2 + 2 + 10.2 + 8)/2
        ("per", 11.325, 15.431979163352013),  # (7.65 - 0.825 + 7.65 + 8.175)/2
    ],
)
def test_lf_may_perturb_some_blocks_only(perturb, a, b):
    task = _slopes()
    sim = simulate(plgu_lf(task, D=1, rho=0.5, recipe=HALF), _world(), task)
    play(sim)  # the same first round for all
    other = simulate(plgu_lf(task, D=1, rho=0.5, perturb=perturb, recipe=HALF), _world(), task)
    other.server = tree.map(torch.clone, sim.server)
    other.states.put(torch.arange(2), sim.states.rows)
    other.round = 1
    play(other)
    assert other.server["params"]["a"] == near(a)
    assert other.server["params"]["b"] == near(b)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("perturb", ["uni", "per"])
def test_lf_leaves_eps_as_it_is_where_it_perturbs(perturb):
    """In the form `asam`, too, whose |Λ g| is of all blocks."""
    task = _slopes()
    more = {"D": 1, "rho": 0.5, "form": "asam", "recipe": HALF}
    first = simulate(plgu_lf(task, **more), _world(), task)
    play(first)  # where scores and gradients of both blocks are other than 0
    w = {}
    for name in ("all", perturb):
        sim = simulate(plgu_lf(task, perturb=name, **more), _world(), task)
        sim.server = tree.map(torch.clone, first.server)
        sim.states.put(torch.arange(2), first.states.rows)
        sim.round = 1
        play(sim)
        w[name] = sim.server["params"]
    # one step: the block that is perturbed moves as if both were (b is personal, a universal)
    same_block, other = ("a", "b") if perturb == "uni" else ("b", "a")
    assert w[perturb][same_block] == near(float(w["all"][same_block]))
    assert abs(w[perturb][other] - w["all"][other]) > 0.01


@pytest.mark.usefixtures("double")
def test_lf_may_be_tested_recomposed():
    """`recompose`: universal blocks from the latest w, personal ones as stored."""
    task = _slopes()
    sim = simulate(plgu_lf(task, D=1, rho=0.5, recompose=True, recipe=HALF), _world(), task)
    play(sim)
    # θ = (3, 4) and (12, 16) against w = (7.65, 10.2): b is personal
    assert of_models(sim, "a") == near(7.65, 7.65)
    assert of_models(sim, "b") == near(4.0, 16.0)


@pytest.mark.usefixtures("double")
def test_lf_scores_grow_with_staleness_and_late_clients_compare_with_the_start():
    """Absent clients keep θ_i; the block that w moved most in is their most personal one."""
    task = numbers({"a": 0.0, "b": 0.0}, lambda p, x: (p["a"] - x) ** 2 / 2 + p["b"] ** 2 / 2)
    world = rows_of([[2.0], [8.0], [8.0]])
    sim = simulate(plgu_lf(task, D=1, rho=0.0, recipe=HALF), world, task)
    play(sim, [[0, 1], [1]])
    (report,) = play(sim, [[0, 2]])
    # only a ever moves, so that it has all of the score
    assert report.notes["score"].tolist() == [[2, 0], [2, 0]]


# ---------------------------------------------------------------------------- PLGU-LF's limits


def _fedsam(task, recipe, rho=0.05):
    """FedAvg with equal weights whose clients train with SAM."""
    plain = fedavg(task, weighting="uniform", recipe=recipe)

    def client(msg, state, data, turn):
        params = fit(task, msg["params"], data, turn, recipe, gradient=sam(rho))
        out = plain.client(msg, state, data, turn)
        return out._replace(upload=out.upload._replace(mean={"params": params}), model=params)

    return plain._replace(client=client)


def _global(method, task, world, engine, cohorts=COHORTS):
    sim = simulate(method, world, task, engine=engine)
    play(sim, cohorts)
    return sim.server["params"]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_lf_at_w_is_fedsam(engine):
    """D = 0, equal scores: w is FedSAM's for any number of local steps, and under any limit."""
    task, world = _task(), ragged()
    for recipe in (Recipe(steps=1, batch=8, lr=0.1), RECIPE, replace(RECIPE, clip=0.3)):
        ours = plgu_lf(task, D=0, score_scale="identity", eval_point="w", recipe=recipe)
        theirs = _fedsam(task, recipe)
        assert gap(*(_global(m, task, world, engine) for m in (ours, theirs))) < 1e-12


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_lf_at_theta_is_fedsam_for_one_step_only(engine):
    """Algorithm 1 takes the gradient at θ and applies it to w."""
    task, world = _task(), ragged()
    apart = []
    for steps in (1, 2, 5):
        recipe = Recipe(steps=steps, batch=8, lr=0.1)
        ours = plgu_lf(task, D=0, score_scale="identity", recipe=recipe)
        theirs = _fedsam(task, recipe)
        apart.append(gap(*(_global(m, task, world, engine) for m in (ours, theirs))))
    assert apart[0] < 1e-12
    assert apart[1] > 1e-6
    assert apart[2] > apart[1]


@pytest.mark.parametrize("eval_point", ["theta", "w"])
@pytest.mark.parametrize("engine", ENGINES)
def test_lf_without_radius_and_personal_blocks_is_fedavg(engine, eval_point):
    """ρ = 0, D = 0: both paths are FedAvg with uniform weights, exactly."""
    task, world = _task(), ragged()
    method = plgu_lf(task, D=0, rho=0.0, eval_point=eval_point, recipe=RECIPE)
    ours = simulate(method, world, task, engine=engine)
    theirs = fedavg(task, weighting="uniform", recipe=RECIPE)
    theirs = simulate(theirs, world, task, engine=engine)
    for cohort in COHORTS:
        play(ours, [cohort])
        play(theirs, [cohort])
        assert _equal(ours.server["params"], theirs.server["params"], engine)
    # the last round had everybody: the mean of all θ is w
    mean = tree.map(lambda p: p.mean(0), ours.states.rows["theta"])
    assert gap(mean, ours.server["params"]) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("D", "clip"), [(3, 0.0), (23, 0.0), (3, 0.3)])
def test_lf_with_all_blocks_personal_is_local(D, clip, engine):
    """For ever, also for clients that come late; w is a by-product, and limited by itself."""
    task, world, recipe = _task(), ragged(), replace(RECIPE, clip=clip)
    ours = simulate(plgu_lf(task, D=D, recipe=recipe), world, task, engine=engine)
    theirs = simulate(local(task, recipe=recipe), world, task, engine=engine)
    for cohort in COHORTS:
        play(ours, [cohort])
        play(theirs, [cohort])
        assert same(models(ours), models(theirs))
    assert gap(ours.server["params"], ours.initial) > 1e-3


def test_lf_d_counts_blocks():
    task, world = _task(), ragged()
    for D in (0, 1, 2, 3):
        sim = simulate(plgu_lf(task, D=D, recipe=RECIPE), world, task)
        for report in play(sim, 2):
            assert report.notes["personal_block"].sum(1).tolist() == [D] * 6
            assert report.notes["score"].mean(1).tolist() == near(*[1.0] * 6)


# ------------------------------------------------------------------------------ PLGU-GRep by hand


def _three() -> Task:
    """Body a, c and head b: (a - 3x)²/2 + (c - 4x)²/2 + (b - x)²/2."""
    return numbers(
        {"a": 0.0, "c": 0.0, "b": 0.0},
        lambda p, x: (p["a"] - 3 * x) ** 2 / 2 + (p["c"] - 4 * x) ** 2 / 2 + (p["b"] - x) ** 2 / 2,
    )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_grep_by_hand(engine):
    """ρ = 1/2, steps of 1/2: on each batch a plain step, then a perturbed one."""
    task = _three()
    method = plgu_grep(task, rho=0.5, head_epochs=1, recipe=HALF)
    sim = simulate(method, _world(), task, engine=engine)
    # t = 0: the scores are equal. g = (-3x, -4x), φ_a = (1.5x, 2x); there g = (-1.5x, -2x),
    #   ε = (-0.3, -0.4), φ = φ_a - 0.5 (-1.5x - 0.3, -2x - 0.4) = (2.25x + 0.15, 3x + 0.2)
    # client 0: (4.65, 6.2); client 1: (18.15, 24.2); φ = (11.4, 15.2). Heads: 1 and 4
    play(sim)
    assert sim.server["shared"]["a"] == near(11.4)
    assert sim.server["shared"]["c"] == near(15.2)
    assert of_models(sim, "b") == near(1.0, 4.0)
    # t = 1: |φ_i - φ| = (6.75, 9) for both: ξ = (6/7, 8/7)
    # client 0: g = (5.4, 7.2), φ_a = (8.7, 11.6); there (2.7, 3.6), 4.5 long
    #   ε = 0.5 (6/7 0.6, 8/7 0.8) = (0.25714286, 0.45714286)
    #   φ = (8.7 - 0.5 2.95714286, 11.6 - 0.5 4.05714286) = (7.22142857, 9.57142857)
    # client 1: g = (-12.6, -16.8), φ_a = (17.7, 23.6), there (-6.3, -8.4), -ε
    #   φ = (17.7 + 0.5 6.55714286, 23.6 + 0.5 8.85714286) = (20.97857143, 28.02857143)
    # φ = (14.1, 18.8); heads (1 + 2)/2 and (4 + 8)/2
    (report,) = play(sim)
    assert report.notes["score"].tolist() == [near(6 / 7, 8 / 7)] * 2
    assert find(sim.states.rows, "own")["a"].tolist() == near(7.221428571428571, 20.97857142857143)
    assert find(sim.states.rows, "own")["c"].tolist() == near(9.571428571428571, 28.02857142857143)
    assert sim.server["shared"]["a"] == near(14.1)
    assert sim.server["shared"]["c"] == near(18.8)
    assert of_models(sim, "b") == near(1.5, 6.0)


@pytest.mark.usefixtures("double")
def test_grep_may_reuse_the_gradient():
    """ε from the gradient at φ. With the loss 2(a - 3x)² + (c - 4x)²/2, which bends more in a than
    in c, the gradients at φ and at φ_a point elsewhere.

    From 0 with lr 0.1, x = 1: g = (-12, -4), φ_a = (1.2, 0.4); there g = (-7.2, -3.6).
    reused: ε = 0.5 (-12, -4)/12.64911064 = (-0.47434165, -0.15811388)
      φ = φ_a - 0.1 (-7.2 - 4 0.47434165, -3.6 - 0.15811388) = (2.10973666, 0.77581139)
    anew: ε = 0.5 (-7.2, -3.6)/8.04984472 = (-0.44721360, -0.22360680)
      φ = φ_a - 0.1 (-7.2 - 4 0.44721360, -3.6 - 0.22360680) = (2.09888544, 0.78236068)
    """
    task = numbers(
        {"a": 0.0, "c": 0.0, "b": 0.0},
        lambda p, x: 2 * (p["a"] - 3 * x) ** 2 + (p["c"] - 4 * x) ** 2 / 2 + 0 * p["b"],
    )
    recipe = Recipe(batch=0, lr=0.1)
    for reuse, a, c in ((True, 2.1097366596, 0.7758113883), (False, 2.0988854382, 0.7823606798)):
        method = plgu_grep(task, rho=0.5, reuse_grad=reuse, recipe=recipe)
        sim = simulate(method, rows_of([[1.0]]), task)
        play(sim)
        assert float(sim.server["shared"]["a"]) == pytest.approx(a, abs=1e-9)
        assert float(sim.server["shared"]["c"]) == pytest.approx(c, abs=1e-9)


# ---------------------------------------------------------------------------- PLGU-GRep's limits


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_grep_without_radius_makes_two_plain_steps(engine):
    """On full batches: FedRep with twice the epochs on the body."""
    task, world = _task(), ragged()
    recipe = Recipe(batch=0, lr=0.1)
    ours = plgu_grep(task, rho=0.0, head_epochs=2, recipe=recipe)
    theirs = fedrep(task, head_epochs=2, weighting="uniform", recipe=replace(recipe, epochs=2))
    found = []
    for method in (ours, theirs):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"body": sim.server["shared"], "models": models(sim)})
    assert gap(*found) < 1e-12


@pytest.mark.parametrize("engine", ENGINES)
def test_grep_without_its_second_step_is_fedrep(engine, monkeypatch):
    """The perturbed step taken out, what is left is FedRep, exactly."""
    task, world = _task(), ragged()

    def plain(task, head, phases, **options):
        phases = [Phase(p.train, p.epochs, as_is, p.steps) for p in phases]
        return partial(task, head, phases, **options)

    # the package's attribute of that name is the factory, not the module
    monkeypatch.setattr(
        sys.modules["fedtailor.methods.partial_sharing.plgu_grep"], "partial", plain
    )
    ours = plgu_grep(task, head_epochs=2, rep_epochs=2, recipe=RECIPE)
    theirs = fedrep(task, head_epochs=2, weighting="uniform", recipe=RECIPE)
    found = []
    for method in (ours, theirs):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"body": sim.server["shared"], "models": models(sim)})
    assert same(*found)


def test_grep_by_default_is_not_fedrep():
    task, world = _task(), ragged()
    found = []
    for method in (plgu_grep(task, recipe=RECIPE), plgu_grep(task, rho=0.0, recipe=RECIPE)):
        sim = simulate(method, world, task)
        play(sim, 2)
        found.append(models(sim))
    assert gap(*found) > 1e-5


@pytest.mark.usefixtures("double")
def test_grep_may_take_single_steps():
    """Algorithm 3, literally: one mini-batch on the body a round. (Two steps of 1/2: 3/4.)"""
    task = numbers({"a": 0.0, "b": 0.0}, lambda p, x: (p["a"] - x) ** 2 / 2 + (p["b"] - x) ** 2 / 2)
    recipe = Recipe(batch=1, lr=0.5)
    sim = simulate(
        plgu_grep(task, rho=0.0, head_epochs=1, rep_steps=1, recipe=recipe),
        rows_of([[8.0, 8.0, 8.0]]),
        task,
    )
    play(sim)
    assert sim.server["shared"]["a"] == near(6.0)
    assert of_models(sim, "b") == [near(7.0)]


@pytest.mark.usefixtures("double")
def test_grep_follows_the_learning_rates_schedule():
    """The middle point takes the round's rate. lr 1/2 then 1/4: 3/4 of the way, then 7/16 of it."""
    task = numbers({"a": 0.0, "b": 0.0}, lambda p, x: (p["a"] - x) ** 2 / 2 + (p["b"] - x) ** 2 / 2)
    method = plgu_grep(task, rho=0.0, recipe=Recipe(batch=0, lr=0.5, lr_decay=0.5))
    sim = simulate(method, rows_of([[8.0]]), task)
    play(sim)
    assert sim.server["shared"]["a"] == near(6.0)
    play(sim)
    assert sim.server["shared"]["a"] == near(6.0 + 2.0 * 7 / 16)


# ------------------------------------------------------------------------------------- PLGU-GHN


def _by_hand_net() -> dict:
    """One hidden number z = v: θ = (3, 4) z, with embeddings v = 1 and 2."""
    return {
        "embed": torch.tensor([[1.0], [2.0]]),
        "body": {"0": {"weight": torch.tensor([[1.0]]), "bias": torch.tensor([0.0])}},
        "heads": {
            "a": {"weight": torch.tensor([[3.0]]), "bias": torch.tensor([0.0])},
            "b": {"weight": torch.tensor([[4.0]]), "bias": torch.tensor([0.0])},
        },
    }


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_ghn_by_hand(engine):
    """ρ = 1/2, a step of 1/2 at clients, of 0.01 at the server, without clipping or decay."""
    task = _slopes()
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip": 0.0, "inner_clip": 0.0}
    method = plgu_ghn(task, rho=0.5, hidden=1, depth=0, embed=1, lr=0.01, recipe=HALF, **plain)
    sim = simulate(method, _world(), task, engine=engine)
    sim.server = sim.server | {"net": _by_hand_net()}
    # client 0 (x = 2): θ = (3, 4), g = (3 - 6, 4 - 8) = (-3, -4), ε = (-0.3, -0.4)
    #   θ~ = θ + 0.5 (3.3, 4.4) = (4.65, 6.2), d = θ - θ~ = (-1.65, -2.2)
    # client 1 (x = 8): θ = (6, 8), g = (-18, -24), ε = (-0.3, -0.4), d = (-9.15, -12.2)
    # gradients, means over both clients:
    #   heads: weights z d: (-1.65 - 2 9.15)/2 = -9.975, (-2.2 - 2 12.2)/2 = -13.3;
    #     biases -5.4 and -7.2
    #   z: 3 d_a + 4 d_b: -13.75 and -76.25; embeddings half of that: -6.875, -38.125
    #   body: weight (-13.75 - 2 76.25)/2 = -83.125, bias -45
    (report,) = play(sim)
    assert report.notes["score"].tolist() == [[1, 1], [1, 1]]
    net = sim.server["net"]
    assert net["heads"]["a"]["weight"].tolist() == [[near(3.09975)]]
    assert net["heads"]["b"]["weight"].tolist() == [[near(4.133)]]
    assert net["heads"]["a"]["bias"].tolist() == [near(0.054)]
    assert net["heads"]["b"]["bias"].tolist() == [near(0.072)]
    assert net["body"]["0"]["weight"].tolist() == [[near(1.83125)]]
    assert net["body"]["0"]["bias"].tolist() == [near(0.45)]
    assert net["embed"].flatten().tolist() == near(1.06875, 2.38125)
    # z = 1.83125 1.06875 + 0.45 = 2.40714844 and 4.81066406; θ = (3.09975, 4.133) z + (…)
    assert of_models(sim, "a") == near(7.515558369140625, 14.965855927734376)
    assert of_models(sim, "b") == near(10.0207444921875, 19.954474570312502)
    # scores against the last trained copy, (4.65, 6.2) and (15.15, 20.2): 3 : 4 again
    (report,) = play(sim)
    assert report.notes["score"].tolist() == [near(6 / 7, 8 / 7)] * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_ghn_without_radius_is_pfedhn(engine):
    """Exactly."""
    task, world = _task(), ragged()
    small = {"hidden": 6, "depth": 1, "recipe": RECIPE}
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (plgu_ghn(task, rho=0.0, **small), pfedhn(task, **small))
    ]
    for sim in sims:
        play(sim, COHORTS)
    assert same(sims[0].server, sims[1].server)
    assert same(*map(models, sims))
    moved = simulate(plgu_ghn(task, **small), world, task, engine=engine)
    play(moved, COHORTS)
    assert gap(models(moved), models(sims[0])) > 1e-5


# ------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("make", "numbers_sent"),
    [
        (lambda task: plgu_lf(task), 73),
        (lambda task: plgu_lf(task, eval_point="w"), 73),
        (lambda task: plgu_grep(task, head_epochs=1), 55),
        (lambda task: plgu_grep(task, head_epochs=1, head_blocks=2), 25),
        (lambda task: plgu_ghn(task, hidden=6, depth=1), 73),
    ],
)
def test_bytes(make, numbers_sent, engine):
    """Σ = 73 for LF and GHN, the body (25 + 30) for GRep, both ways."""
    task, world = _task(), ragged()
    sim = simulate(make(task), world, task, engine=engine)
    for report in play(sim, COHORTS):
        assert report.down.tolist() == [4 * numbers_sent] * len(report.ids)
        assert report.up.tolist() == [4 * numbers_sent] * len(report.ids)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [plgu_lf, plgu_grep])
def test_running_statistics_follow(make):
    """With BatchNorm: statistics move, are averaged, and have no score."""
    task, world = task_of("norm"), ragged()
    sim = simulate(make(task, recipe=Recipe(batch=8)), world, task)
    report = play(sim, 2)[1]
    server = sim.server.get("params", sim.server.get("shared"))
    assert bool((server["1.running_mean"] != 0).all())
    assert report.notes["score"].shape == (6, 2 if make is plgu_lf else 1)
