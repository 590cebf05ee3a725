"""ALA as a part of FedProx, Ditto and FedRep."""

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedala
from fedtailor.methods.find import find as find_method
from tests.methods.worlds import (
    ENGINES,
    HALF,
    ala_alone,
    data_of,
    find,
    gap,
    models,
    near,
    numbers,
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
)

HOSTS = ("fedavg", "fedprox", "ditto", "fedrep", "fedalt", "fedsim")
COHORTS = [[0, 1, 2, 3], [1, 2, 5], [0, 3, 4], [0, 1, 2, 3, 4, 5]]
# one step on W a round, on all rows, so that it can be followed by hand
BY_HAND = {"s": 100, "eta": 0.1, "max_ala_epochs": 1}
QUICK = {"max_ala_epochs": 3}


def _world():
    """One row, 2, against three with the mean 8: weights 1 : 3."""
    return rows_of([[2.0], [7.0, 8.0, 9.0]])


# ---------------------------------------------------------------------------------------- by hand

# (w - x)²/2, steps of 1/2. Round 0: own and received model are the same, nothing to adapt.
# w = 1 and 4, global (1 + 3 4)/4 = 3.25.
# Round 1, ALA from W = 1 with η = 0.1:
#   client 0: own 1, received 3.25: dL/dW = (3.25 - 2) (3.25 - 1) = 2.8125, W = 0.71875,
#     Θ^ = 1 + 2.25 0.71875 = 2.6171875
#   client 1: own 4, received 3.25: dL/dW = (3.25 - 8) (3.25 - 4) = 3.5625, W = 0.64375,
#     Θ^ = 4 - 0.75 0.64375 = 3.5171875
ADAPTED = (2.6171875, 3.5171875)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_fedprox_by_hand(engine):
    """The proximal term is around the received model, 3.25, not around Θ^. μ = 1/2."""
    task = one_number()
    method = find_method("fedprox+ala")(task, mu=0.5, recipe=HALF, **BY_HAND)
    sim = simulate(method, _world(), task, engine=engine)
    play(sim)
    assert sim.server["params"]["w"] == near(3.25)
    assert of_models(sim, "w") == near(*ADAPTED)
    # client 0: gradient 0.6171875 + 0.5 (2.6171875 - 3.25) = 0.30078125 -> 2.466796875
    # client 1: gradient -4.4828125 + 0.5 (3.5171875 - 3.25) = -4.34921875 -> 5.691796875
    # global: (2.466796875 + 3 5.691796875)/4 = 4.885546875
    # (around Θ^ itself there would be no pull: 2.30859375 and 5.75859375)
    (report,) = play(sim)
    assert find(sim.states.rows, "own")["w"].tolist() == near(2.466796875, 5.691796875)
    assert sim.server["params"]["w"] == near(4.885546875)
    assert report.notes["ala_weight"].flatten().tolist() == near(0.71875, 0.64375)
    # the loss at W = 1, before its step: 1.25²/2, and the mean of 3.75², 4.75², 5.75² halved
    assert report.notes["ala_loss"].tolist() == near(0.78125, (3.75**2 + 4.75**2 + 5.75**2) / 6)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_ditto_by_hand(engine):
    """Θ^ is where the global path begins and what v is pulled to. λ = 1/2."""
    task = one_number()
    method = find_method("ditto+ala")(task, lam=0.5, recipe=HALF, **BY_HAND)
    sim = simulate(method, _world(), task, engine=engine)
    # round 0: w and v alike: 1 and 4
    play(sim)
    assert of_models(sim, "w") == near(1.0, 4.0)
    # round 1, global path from Θ^: (2.6171875 + 2)/2 = 2.30859375, (3.5171875 + 8)/2 = 5.75859375
    #   global (2.30859375 + 3 5.75859375)/4 = 4.89609375
    # v_0: gradient (1 - 2) + 0.5 (1 - 2.6171875) = -1.80859375 -> 1.904296875
    # v_1: gradient (4 - 8) + 0.5 (4 - 3.5171875) = -3.75859375 -> 5.879296875
    # (pulled to the received 3.25: 2.0625 and 5.8125)
    play(sim)
    assert sim.server["params"]["w"] == near(4.89609375)
    assert of_models(sim, "w") == near(1.904296875, 5.879296875)
    assert sim.states.rows["own"]["w"].tolist() == near(2.30859375, 5.75859375)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_fedrep_by_hand(engine):
    """Body a, c and head b: (a - x)²/2 + (b c - x)²/2 from a = c = 0, b = 1/2; steps of 0.1.

    p = 1: the topmost block of the body, c, is weighted; a is taken as received, b is the own.
    """
    task = numbers(
        {"a": 0.0, "c": 0.0, "b": 0.5},
        lambda p, x: (p["a"] - x) ** 2 / 2 + (p["b"] * p["c"] - x) ** 2 / 2,
    )
    recipe = Recipe(batch=0, lr=0.1)
    method = find_method("fedrep+ala")(task, head_epochs=1, recipe=recipe, **BY_HAND)
    sim = simulate(method, _world(), task, engine=engine)
    # round 0: b stays (its gradient has the factor c = 0); a = 0.1 x, c = 0.1 1/2 x
    # client 0: (0.2, 0.1); client 1: (0.8, 0.4); body (0.65, 0.325)
    play(sim)
    assert sim.server["shared"]["a"] == near(0.65)
    assert sim.server["shared"]["c"] == near(0.325)
    # round 1. client 0: dL/dW = b (b c - x) (0.325 - 0.1) = 0.5 (0.1625 - 2) 0.225 < 0: W stays 1
    #   c^ = 0.325; b = 0.5 - 0.1 0.325 (0.1625 - 2) = 0.55971875;
    #   a = 0.65 + 0.135 = 0.785, c = 0.325 - 0.1 0.55971875 (0.18190859 - 2) = 0.42676198
    # client 1: dL/dW = 0.5 (0.1625 - 8) (0.325 - 0.4) = 0.29390625, W = 0.970609375
    #   c^ = 0.4 - 0.075 0.970609375 = 0.32720430; b = 0.5 + 0.032720430 (8 - 0.16360215)
    #   = 0.75641030; a = 0.65 + 0.735 = 1.385, c = 0.32720430 + 0.075641030 (8 - 0.24750070)
    #   = 0.91361133
    assert of_models(sim, "c") == near(0.325, 0.3272042968750001)
    (report,) = play(sim)
    assert report.notes["ala_weight"].flatten().tolist() == near(1.0, 0.970609375)
    own = sim.states.rows["own"]
    assert own["a"].tolist() == near(0.785, 1.385)
    assert own["c"].tolist() == near(0.4267619849291993, 0.9136113326554571)
    assert sim.states.rows["host"]["personal"]["b"].tolist() == near(0.55971875, 0.756410304905327)
    assert sim.server["shared"]["c"] == near(0.7918989957238927)


# --------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", HOSTS)
def test_without_blocks_it_is_the_host(host, engine):
    """p = 0: exactly the host."""
    task, world = task_of("norm"), ragged()
    found = []
    for method in (
        find_method(host)(task, recipe=Recipe(batch=8)),
        find_method(f"{host}+ala")(task, p=0, recipe=Recipe(batch=8)),
    ):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS[:3])
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


@pytest.mark.parametrize("host", HOSTS)
def test_with_weights_of_one_it_is_the_host(host):
    """η = 0: W stays 1, and what is received is taken."""
    task, world = task_of(), ragged()
    found = []
    for method in (
        find_method(host)(task),
        find_method(f"{host}+ala")(task, eta=0.0, p=2, max_ala_epochs=2),
    ):
        sim = simulate(method, world, task)
        play(sim, COHORTS[:3])
        found.append({"server": sim.server, "models": models(sim)})
    assert gap(*found) < 1e-6


@pytest.mark.parametrize("host", HOSTS)
def test_by_default_it_is_not_the_host(host):
    task, world = task_of(), ragged()
    found = []
    for method in (find_method(host)(task), find_method(f"{host}+ala")(task)):
        sim = simulate(method, world, task)
        play(sim, 3)
        found.append(models(sim))
    assert gap(*found) > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
def test_fedavg_with_ala_is_fedala(engine):
    task, world = task_of(), ragged()
    options = {"s": 60, "p": 2, "eta": 0.5, **QUICK}
    found = []
    for method in (fedala(task, **options), find_method("fedavg+ala")(task, **options)):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim), "states": sim.states.rows})
    assert same(*found)


def _prox_centre(host: str, option: str) -> dict[str, float]:
    """How far clients' models stay from received and from adapted, under a mighty pull."""
    task, world = task_of(), ragged()
    recipe = Recipe(epochs=30, batch=0, lr=0.001)
    options = {option: 100.0, "eta": 5.0, "max_ala_epochs": 20, "recipe": recipe}
    method = find_method(f"{host}+ala")(task, **options)
    sim = simulate(method, world, task)
    # far apart, so that there is something to adapt
    play(sim)
    maker = torch.Generator().manual_seed(0)
    far = lambda p: p + torch.randn(p.shape, generator=maker)
    sim.server = {"params": tree.map(far, sim.server["params"])}
    received, state = sim.server["params"], tree.map(torch.clone, sim.states.rows)
    turn = sim._turn(rng.TURN)
    part = ala_alone(task, recipe, eta=5.0, max_ala_epochs=20)
    memory = tree.index(tree.drop(state, ["host"]), 1)
    mine = turn.of(torch.tensor(1)).at_client()
    adapted = part.adapt(received, memory, {}, data_of(world, 1), mine).params
    assert gap(adapted, received) > 0.1
    play(sim, [[1]])
    rows = sim.states.rows
    after = tree.index(rows.get("host", rows)["own"], 1)  # FedProx's trained model, Ditto's v
    return {"received": gap(after, received), "adapted": gap(after, adapted)}


def test_centre_of_fedprox_is_the_received_model():
    """Local SGD with the proximal centre w, not Θ^."""
    apart = _prox_centre("fedprox", "mu")
    assert apart["received"] < 0.3 * apart["adapted"]


def test_centre_of_ditto_is_the_adapted_model():
    """Θ^ is the anchor of v."""
    apart = _prox_centre("ditto", "lam")
    assert apart["adapted"] < 0.3 * apart["received"]


@pytest.mark.parametrize("engine", ENGINES)
def test_fedrep_weighs_the_top_of_the_body_and_leaves_heads_alone(engine):
    task = classification(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    )
    world = ragged()
    for p, blocks in ((1, task.blocks[1:2]), (2, task.blocks[:2]), (9, task.blocks[:2])):
        sim = simulate(find_method("fedrep+ala")(task, p=p, **QUICK), world, task, engine=engine)
        play(sim, 2)
        assert set(find(sim.states.rows, "weight")) == {k for block in blocks for k in block}
        assert not set(sim.states.rows["own"]) & set(task.head)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("host", "sent"), [("fedprox", 51), ("ditto", 51), ("fedrep", 30)])
def test_bytes_are_the_hosts(host, sent, engine):
    """W never travels."""
    task, world = task_of(), ragged()
    sim = simulate(find_method(f"{host}+ala")(task, **QUICK), world, task, engine=engine)
    for report in play(sim, COHORTS[:3]):
        assert report.down.tolist() == report.up.tolist() == [4 * sent] * len(report.ids)


@pytest.mark.parametrize("host", ["fedprox", "ditto", "fedrep"])
def test_evaluation_leaves_weights_as_they_are(host):
    task, world = task_of(), ragged()
    sim = simulate(find_method(f"{host}+ala")(task, **QUICK), world, task)
    play(sim, 2)
    before = tree.map(torch.clone, sim.states.rows)
    sim.score()
    list(sim.models())
    assert same(before, sim.states.rows)


# ------------------------------------------------------------------------ hosts of other families

OTHERS = ("perfedavg-fo", "perfedavg-hf", "pfedme", "fedphp", "partialfed")
MORE = {"pfedme": {"R": 2, "K": 2}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", OTHERS)
def test_without_blocks_it_is_the_host_in_other_families(host: str, engine: str) -> None:
    """p = 0: exactly the host."""
    task, world = task_of("norm"), ragged()
    more = MORE.get(host, {})
    found = []
    for method in (find_method(host)(task, **more), find_method(f"{host}+ala")(task, p=0, **more)):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS[:3])
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", [*OTHERS, "fedamp"])
def test_training_begins_with_the_adapted_model(host: str, engine: str) -> None:
    """A client of the host that is sent Θ^ ends as one of host+ala that is sent Θ and adapts."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=5, lr=0.05)
    part = {"eta": 5.0, "max_ala_epochs": 3, "p": 2}
    # FedAMP's pull to u_i is looked at in `test_fedamp`; pFedMe has an η of its own
    more = {
        "pfedme": MORE["pfedme"],
        "partialfed": {"mode": "fix", "fixed_blocks": 2},
        "fedamp": {"lam": 0.0},
    }.get(host, {})
    named = {"ala_eta" if (host, k) == ("pfedme", "eta") else k: v for k, v in part.items()}
    method = find_method(f"{host}+ala")(task, recipe=recipe, **more, **named)
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    if host == "fedamp":
        far = tree.stack([random_like(sim.initial, 30 + i) for i in range(6)])
        server = sim.server | {"models": far}
    else:
        server = {"params": random_like(sim.initial, 30)}
    sim.server = server
    cid = torch.tensor(3)
    turn = sim._turn(rng.TURN).of(cid)
    received = sim.method.send(server, cid, turn)["params"]
    state = tree.index(snapshot(sim)["states"], 3)
    begin = ala_alone(task, recipe, **part)
    data, mine = data_of(world, 3), turn.at_client()
    adapted = begin.adapt(received, tree.drop(state, ["host"]), {}, data, mine).params
    assert gap(adapted, received) > 1e-2
    plain = find_method(host)(task, recipe=recipe, **more)
    own = {"own": adapted} if host == "fedamp" else state.get("host", {})  # with which it begins
    ends = {
        name: plain.client({"params": sent}, own, data, mine)
        for name, sent in (("adapted", adapted), ("received", received))
    }
    play(sim, [[3]])
    trained = tree.index(sim.states.rows["own"], 3)
    upload = ends["adapted"].upload
    expected = (upload.mean | upload.each)["params"]
    assert gap(trained, expected) < 1e-5
    if host != "fedamp":
        assert gap(trained, ends["received"].upload.mean["params"]) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["perfedavg-fo", "perfedavg-hf"])
def test_per_fedavg_with_ala_is_tested_after_one_step(name: str, engine: str) -> None:
    """The adapted model, then one step of size α on a training batch."""
    task, world = task_of(), ragged()
    part = {"eta": 5.0, "max_ala_epochs": 3}
    recipe = Recipe(batch=5)
    method = find_method(f"{name}+ala")(task, alpha=0.3, recipe=recipe, **part)
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    sim.server = {"params": random_like(sim.initial, 30)}
    turn = sim._turn(rng.SCORE)
    begin = ala_alone(task, recipe, **part)
    for client in range(6):
        before = turn.of(torch.tensor(client)).at_client().split()[0]
        data = data_of(world, client)
        state = tree.index(sim.states.rows, client)
        adapted = begin.adapt(sim.server["params"], state, {}, data, before).params
        step = Recipe(steps=1, batch=5, lr=0.3)
        expected = fit(task, adapted, data, before, step)
        assert gap(models(sim)[str(client)], expected) < 1e-5
        assert gap(expected, adapted) > 1e-3
        assert gap(adapted, sim.server["params"]) > 1e-3
