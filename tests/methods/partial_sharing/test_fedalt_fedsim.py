"""FedAlt and FedSim: by hand, their limits, bytes, and with mixing."""

import pytest
import torch
from torch import nn

import fedtailor.methods.mixture.pmixfed as mixing
from fedtailor.core import rng, tree
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe, fit
from fedtailor.engine import Simulation
from fedtailor.engine.fold import Fold
from fedtailor.methods import fedalt, fedavg, fedrep, fedsim, local
from fedtailor.methods.find import find as find_method
from fedtailor.methods.parts.partial import Phase, all_names, partial
from tests.methods.worlds import (
    ENGINES,
    data_of,
    find,
    gap,
    models,
    near,
    of_models,
    play,
    product,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_numbers,
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


# ---------------------------------------------------------------------------------------- by hand

# The loss (a b - x)²/2 from a = b = 1, lr 0.1. Client 0 has one row, 2, so one batch; client 1
# three rows, all 8, so two batches of mean 8. u = a is shared, v = b personal; weights are 1 : 2.


def _world():
    return rows_of([[2.0], [8.0, 8.0, 8.0]])


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_fedalt_by_hand(engine):
    task = product()
    sim = simulate(fedalt(task, recipe=Recipe(batch=2, lr=0.1)), _world(), task, engine=engine)
    # first b with a fixed: b - 0.1 a (a b - x); then a with the new b: a - 0.1 b (a b - x)
    # client 0: b = 1 + 0.1 = 1.1; a = 1 - 0.1 1.1 (1.1 - 2) = 1.099
    # client 1: b = 1 + 0.7 = 1.7, b = 1.7 + 0.63 = 2.33;
    #   a = 1 - 0.1 2.33 (2.33 - 8) = 2.32111, a = 2.32111 - 0.233 (5.4081863 - 8) = 2.9250025921
    # u = (1.099 + 2 2.9250025921)/3 = 2.3163350614
    play(sim)
    assert sim.server["shared"]["a"] == near(2.3163350614)
    assert find(sim.states.rows, "personal")["b"].tolist() == near(1.1, 2.33)
    # client 0: a b = 2.54796857; b = 1.1 - 0.23163351 0.54796857 = 0.97307212;
    #   a = 2.31633506 - 0.097307212 (2.25396106 - 2) = 2.29162282
    # client 1: b: 2.33 -> 2.93292796 -> 3.21236046; a: 2.31633506 -> 2.49593712 -> 2.49020315
    # u = (2.29162282 + 2 2.49020315)/3 = 2.42400970
    play(sim)
    assert sim.server["shared"]["a"] == near(2.4240097048202713)
    assert of_models(sim, "b") == near(0.9730721194461965, 3.212360459943753)
    assert of_models(sim, "a") == near(2.4240097048202713, 2.4240097048202713)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_fedsim_by_hand(engine):
    task = product()
    sim = simulate(fedsim(task, recipe=Recipe(batch=2, lr=0.1)), _world(), task, engine=engine)
    # both at once, from the same a b - x
    # client 0: (1.1, 1.1)
    # client 1: (1.7, 1.7), then 1.7 - 0.17 (2.89 - 8) = 2.5687 both
    # u = (1.1 + 2 2.5687)/3 = 2.0791333333
    play(sim)
    assert sim.server["shared"]["a"] == near(2.0791333333333333)
    assert of_models(sim, "b") == near(1.1, 2.5687)
    # client 0: a b - 2 = 0.28704667: a = 2.07913333 - 0.11 0.28704667 = 2.0475582,
    #   b = 1.1 - 0.20791333 0.28704667 = 1.04031917
    # client 1: (2.07913333, 2.5687) -> (2.76223548, 3.12161021) -> (2.56787701, 2.94962722)
    # u = (2.0475582 + 2 2.56787701)/3 = 2.39443741
    play(sim)
    assert sim.server["shared"]["a"] == near(2.394437409440937)
    assert of_models(sim, "b") == near(1.0403191707111112, 2.9496272165971376)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [fedalt, fedsim])
@pytest.mark.parametrize(
    ("weighting", "by_batch", "at_once"),
    [("batches", 13 / 3, 2.5), ("data", 19 / 4, 3.25), ("uniform", 7 / 2, 2.5)],
)
def test_weights_of_clients(make, weighting, by_batch, at_once):
    """a goes half the way to 2 in client 0's batch: 1; to 8 in client 1's two: 4, then 6.

    Batches are 1 : 2, rows 1 : 3: (1 + 2 6)/3, (1 + 3 6)/4, (1 + 6)/2. All rows at once are one
    batch for everyone, and a is 1 and 4: (1 + 4)/2, (1 + 3 4)/4, (1 + 4)/2.
    """
    task = two_numbers()
    for batch, expected in ((2, by_batch), (0, at_once)):
        recipe = Recipe(batch=batch, lr=0.5)
        sim = simulate(make(task, weighting=weighting, recipe=recipe), _world(), task)
        play(sim)
        assert sim.server["shared"]["a"] == near(expected)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [fedalt, fedsim])
def test_server_lr(make):
    """u <- u - η (u - mean): 0 stands still, 1/2 goes half the way, 2 overshoots."""
    task = two_numbers()
    for rate, u in ((0.0, 0.0), (0.5, 1.25), (1.0, 2.5), (2.0, 5.0)):
        recipe = Recipe(batch=0, lr=0.5)
        sim = simulate(make(task, server_lr=rate, recipe=recipe), _world(), task)
        play(sim)
        assert sim.server["shared"]["a"] == near(u)


@pytest.mark.parametrize("make", [fedalt, fedsim])
def test_statistics_are_means_whatever_the_servers_rate(make):
    """Twice the way from a variance of 1 to one of 0.1 would lead below 0, and to NaN in tests."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=10, batch=4)
    found = []
    for rate in (1.0, 2.0):
        method = make(task, shared_blocks=2, server_lr=rate, recipe=recipe)
        sim = simulate(method, world, task)
        play(sim)
        found.append(tree.pick(sim.server["shared"], task.buffers))
        assert sim.score().test.loss.isfinite().all()
    assert same(*found)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [fedalt, fedsim])
def test_stateless_starts_the_personal_part_again(make, engine):
    """v from its first value every round: b is half the way to 2 and 8 again and again."""
    task, recipe = two_numbers(), Recipe(batch=0, lr=0.5)
    kept, fresh = (
        simulate(make(task, stateless=s, recipe=recipe), _world(), task, engine=engine)
        for s in (False, True)
    )
    play(kept, 3)
    play(fresh, 3)
    assert of_models(fresh, "b") == near(1.0, 4.0)
    assert of_models(kept, "b") == near(1.75, 7.0)
    assert torch.equal(kept.server["shared"]["a"], fresh.server["shared"]["a"])


@pytest.mark.usefixtures("double")
def test_personal_epochs_are_fedalts_own():
    """τ_v epochs on v, the recipe's on u: b goes 7/8 of the way with three, a 3/4 with two."""
    task = two_numbers()
    method = fedalt(task, personal_epochs=3, recipe=Recipe(epochs=2, batch=0, lr=0.5))
    sim = simulate(method, _world(), task)
    play(sim)
    assert of_models(sim, "b") == near(2 * 7 / 8, 8 * 7 / 8)
    assert sim.server["shared"]["a"] == near((1.5 + 6.0) / 2)


# ----------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [fedalt, fedsim])
def test_everything_shared_is_fedavg(make, engine):
    """No personal part: there is nothing for FedAlt's personal epochs to train."""
    task, world = _task(), ragged()
    for blocks in (3, 7):  # more blocks than there are
        method = make(task, shared_blocks=blocks, weighting="data", recipe=RECIPE)
        ours = simulate(method, world, task, engine=engine)
        theirs = simulate(fedavg(task, recipe=RECIPE), world, task, engine=engine)
        for cohort in COHORTS:
            play(ours, [cohort])
            play(theirs, [cohort])
        assert _equal(ours.server["shared"], theirs.server["params"], engine)
        assert _equal(models(ours), models(theirs), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("phases", ["alt", "sim"])
def test_nothing_shared_is_local(phases, engine):
    """With everything personal nothing travels."""
    task, world = _task(), ragged()
    names = all_names(task)
    todo = [Phase(names, 2), Phase([], 2)] if phases == "alt" else [Phase(names, 2)]
    ours = simulate(partial(task, names, todo, recipe=RECIPE), world, task, engine=engine)
    theirs = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
    for cohort in COHORTS:
        (report,) = play(ours, [cohort])
        play(theirs, [cohort])
        assert report.down.tolist() == report.up.tolist() == [0] * len(cohort)
    assert same(models(ours), models(theirs))


def _fedper(task: Task, world, recipe: Recipe, cohorts) -> tuple[dict, dict]:
    """FedPer without any of this package's methods: bodies averaged by rows, heads kept."""
    initial = task.init(rng.key(0, rng.INITIAL))
    body, heads = tree.drop(initial, task.head), {}
    clock = Simulation(local(task), world, task, rounds=10)
    for cohort in cohorts:
        fold, turn = Fold(), clock._turn(rng.TURN)
        for cid in sorted(cohort, key=lambda c: -int(world.train.n[c])):
            data = data_of(world, cid)
            own = body | heads.get(cid, tree.pick(initial, task.head))
            begun = {k: own[k] for k in initial}
            done = fit(task, begun, data, turn.of(torch.tensor(cid)).at_client(), recipe)
            heads[cid] = tree.pick(done, task.head)
            fold.add(tree.map(lambda p: p[None], tree.drop(done, task.head)), data.n[None] * 1.0)
        body = fold.mean()
        clock.round += 1
    return body, heads


@pytest.mark.parametrize("engine", ENGINES)
def test_fedsim_with_a_personal_head_is_fedper(engine):
    """Bodies averaged, heads kept, all trained at once."""
    task, world = _task(), ragged()
    method = fedsim(task, shared_blocks=2, weighting="data", recipe=RECIPE)
    sim = simulate(method, world, task, engine=engine)
    play(sim, COHORTS)
    body, heads = _fedper(task, world, RECIPE, COHORTS)
    assert _equal(sim.server["shared"], body, engine)
    for cid, head in heads.items():
        assert _equal(tree.pick(models(sim)[str(cid)], task.head), head, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_fedalt_with_a_personal_head_is_fedrep(engine):
    """The same split and the same two phases."""
    task, world = _task(), ragged()
    ours = fedalt(task, shared_blocks=2, personal_epochs=3, weighting="data", recipe=RECIPE)
    theirs = fedrep(task, head_epochs=3, recipe=RECIPE)
    found = []
    for method in (ours, theirs):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


# ------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedalt", "fedsim", "fedalt+mix", "fedsim+mix"])
def test_bytes(name, engine):
    """The shared blocks only: 25 of 73 numbers by default (the lower half of three), 55 for two."""
    task, world = _task(), ragged()
    mix = name.endswith("mix")
    for blocks, shared in ((0, 25), (1, 25), (2, 55), (3, 73)):
        sim = simulate(find_method(name)(task, shared_blocks=blocks), world, task, engine=engine)
        (report,) = play(sim, [[0, 2, 4]])
        assert report.down.tolist() == [4 * (shared + mix)] * 3
        assert report.up.tolist() == [4 * (shared + 2 * mix)] * 3


# ----------------------------------------------------------------------------------------- mixing


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_fedsim_with_mixing_by_hand(engine):
    """As pMixFed's example, but b is personal: degrees ramp over both blocks, only a is mixed.

    T = 2, one step of 0.5. t = 0: μ = 1/2. a: 1 and 4, mean 2.5 (one batch each),
    G_a = 1/2 2.5 = 1.25; b: 1 and 4. Validation rows are 0.5 and 4: with G = 0 client 0 is right
    (0.25), client 1 is not (16): A_G = 1/2.
    t = 1: client 0 (1, 1): 0.25, right, A = 1/(1/2) = 2, μ = σ(0.5 (1 - 4)) = σ(-1.5) = 0.18242552;
      a = 1 + 0.18242552 0.25 = 1.04560638 -> 1.52280319
    client 1 (4, 4): right, the same μ; a = 4 - 0.18242552 2.75 = 3.49832981 -> 5.74916490
    G with the own head: client 0 (1.25, 1): (0.75² + 0.5²)/2 = 0.40625: right;
      client 1 (1.25, 4): 2.75²/2 = 3.78: wrong; A_G = 1/2, μ_G = σ(0.5 (1 - 0.25)) = 0.59266660
    G_a = 0.40733340 1.25 + 0.59266660 (1.52280319 + 5.74916490)/2 = 2.66409305
    """
    task = two_numbers()
    world = rows_of([[2.0], [7.0, 8.0, 9.0]], [[0.5], [4.0]])
    method = find_method("fedsim+mix")(task, recipe=Recipe(batch=0, lr=0.5))
    sim = simulate(method, world, task, engine=engine, rounds=2)
    play(sim)
    assert sim.server["shared"]["a"] == near(1.25)
    (report,) = play(sim)
    assert report.notes["mix_factor"].tolist() == near(0.18242552380635635, 0.18242552380635635)
    assert report.notes["mix_degree"][0].tolist() == near(0.18242552380635635, 0.0)
    assert sim.states.rows["own"]["a"].tolist() == near(1.5228031904757946, 5.749164904766260)
    assert of_models(sim, "b") == near(1.5, 6.0)
    assert sim.server["shared"]["a"] == near(2.6640930530482034)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedalt", "fedsim"])
def test_mixing_switched_off_leaves_the_host(name, engine):
    """Both stages off: exactly the host. Fully mixed (μ = 1) too: its shared part has no head."""
    task, world = _task(), ragged()
    host = simulate(find_method(name)(task, recipe=RECIPE), world, task, engine=engine)
    play(host, 3)
    for options in (
        {"use_broadcast_mix": False, "use_aggregation_mix": False},
        {"mix_policy": "dynamic", "mu0": 1.0},
    ):
        method = find_method(f"{name}+mix")(task, recipe=RECIPE, **options)
        sim = simulate(method, world, task, engine=engine)
        play(sim, 3)
        assert _equal(sim.server["shared"], host.server["shared"], engine)
        assert _equal(models(sim), models(host), engine)
    plain = simulate(find_method(f"{name}+mix")(task, recipe=RECIPE), world, task, engine=engine)
    play(plain, 3)
    assert gap(models(plain), models(host)) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedalt", "fedsim"])
def test_without_mixing_clients_are_alone(name, engine, monkeypatch):
    """In the shared blocks: μ = 0 keeps the client's own copy, and G where it was."""
    monkeypatch.setattr(mixing, "mix_factor", lambda progress, a: torch.zeros_like(a))
    task, world = _task(), ragged()
    sim = simulate(find_method(f"{name}+mix")(task, recipe=RECIPE), world, task, engine=engine)
    play(sim, 3)
    assert same(sim.server["shared"], tree.pick(sim.initial, sim.server["shared"]))
    if name == "fedsim":
        alone = simulate(local(task, recipe=RECIPE), world, task, engine=engine)
        play(alone, 3)
        assert same(models(sim), models(alone))
