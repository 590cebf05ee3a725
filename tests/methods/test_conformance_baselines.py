"""The conformance suite on the baselines, and what concerns all of them: bytes, who is absent,
a hundred clients, and ALA as a part of those that can take it.

The suite itself runs with --slow.
"""

from typing import Any

import pytest
import torch

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.training import Recipe, fit
from fedtailor.engine import draw_cohort
from fedtailor.methods.check import check_method
from fedtailor.methods.find import find as find_method
from tests.methods.worlds import (
    ENGINES,
    ala_alone,
    data_of,
    gap,
    make,
    models,
    outcome,
    play,
    ragged,
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
BASELINES = (
    "fedsam", "fedavg-c", "fedprox-c", "fedavg-data", "pfedme", "perfedavg-fo", "perfedavg-hf",
    "fedper", "fedbabu", "lg-fedavg", "fedbn", "fedamp", "heurfedamp", "fedphp", "apple",
    "partialfed", "mocha", "cfl", "scaffold", "apfl",
)  # fmt: skip
# Shorter than by default, where only equality is asked for.
QUICK: dict[str, dict[str, Any]] = {
    "fedavg-c": {"F": 1},
    "fedprox-c": {"F": 1},
    "fedbabu": {"F": 1},
    "pfedme": {"R": 2, "K": 2},
}


def quick(name: str, task: Any, recipe: Recipe = Recipe()) -> Any:
    return make(name, task, recipe, **QUICK.get(name, {}))


@pytest.mark.slow  # in daily use `test_check.py` has all methods, in a smaller world
@pytest.mark.parametrize("name", BASELINES)
def test_conforms(name: str) -> None:
    broken = [f for f in check_method(find_method(name)) if not f.passed]
    assert not broken, "\n".join(f"{f.check}: {f.detail}" for f in broken)


# ------------------------------------------------------------------------------------------- bytes

SIGMA, BODY, HEAD = 51, 30, 21  # of the net `mlp`
CLIENTS = 6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BASELINES)
def test_bytes_are_those_of_the_table(name: str, engine: str) -> None:
    """Four bytes a number; one-off extras at first contact alone."""
    task, world = task_of(), ragged()
    sim = simulate(quick(name, task), world, task, engine=engine)
    down, up = {
        "fedper": (BODY, BODY),
        "fedbabu": (BODY, BODY),
        "lg-fedavg": (SIGMA - BODY, SIGMA - BODY),  # the upper of the two blocks
        "apple": ((CLIENTS - 1) * SIGMA, SIGMA),
        "scaffold": (2 * SIGMA, 2 * SIGMA),
    }.get(name, (SIGMA, SIGMA))
    row = 4 * 4 + 8  # four features and a label
    given = [max(1, round(0.05 * n)) for n in world.train.n.tolist()]
    met: set[int] = set()
    for report in play(sim, COHORTS):
        ids = report.ids.tolist()
        once = dict.fromkeys(ids, (0, 0))
        for i in set(ids) - met:
            if name == "apple":  # prior and own place
                once[i] = (4 * 2 * CLIENTS, 0)
            if name == "mocha":  # its own entry of Ω
                once[i] = (4, 0)
            if name == "fedavg-data":  # what the others gave, what it gave
                once[i] = (row * (sum(given) - given[i]), row * given[i])
        assert report.down.tolist() == [4 * down + once[i][0] for i in ids]
        assert report.up.tolist() == [4 * up + once[i][1] for i in ids]
        met |= set(ids)


# ------------------------------------------------------------------------------------ who is absent


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BASELINES)
def test_absent_clients_and_evaluation_leave_states_alone(name: str, engine: str) -> None:
    """Bitwise; scoring changes neither states nor the rounds that follow."""
    task, world = task_of("norm"), ragged()
    quiet, curious = (simulate(quick(name, task), world, task, engine=engine) for _ in range(2))
    for cohort in COHORTS:
        before = snapshot(curious)["states"]
        play(quiet, [cohort])
        play(curious, [cohort])
        absent = torch.tensor([c for c in range(6) if c not in cohort])
        assert same(tree.index(before, absent), tree.index(curious.states.rows, absent))
        after = snapshot(curious)
        curious.score()
        assert same(snapshot(curious), after)
    assert same(outcome(quiet), outcome(curious))


@pytest.mark.parametrize("name", BASELINES)
def test_full_batches_with_batch_norm_are_refused(name: str) -> None:
    """Rows repeated up to the longest client's number would count in the statistics."""
    task, world = task_of("norm"), ragged()
    sim = simulate(quick(name, task, Recipe(batch=0)), world, task)
    with pytest.raises(BadInput, match="batch is 0, but BatchNorm needs"):
        play(sim)


# -------------------------------------------------------------------------------- a hundred clients


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedamp", {}),
        ("apple", {"M": 5}),
        ("cfl", {"e1": 10.0, "e2": 0.01, "first_split": 0}),
        ("mocha", {}),
    ],
    ids=["fedamp", "apple", "cfl", "mocha"],
)
def test_a_hundred_clients(name: str, options: dict[str, Any]) -> None:
    """10 % a round in chunks of 16: whoever is not drawn is as before."""
    task, world = task_of(), ragged([5 + i % 7 for i in range(100)], val=2)
    sim = simulate(make(name, task, **options), world, task, chunk=16, rounds=2)
    assert sim.chunk == 16
    met = torch.zeros(100, dtype=torch.bool)
    rows = {"fedamp": "models", "apple": "cores", "mocha": "models"}
    for number in range(2):
        before = snapshot(sim)
        cohort = draw_cohort(0, number, torch.arange(100), 0.1)
        report = sim.step(cohort)
        assert report.ids.tolist() == cohort.tolist()
        assert len(cohort) == 10
        met[cohort] = True
        absent = torch.tensor(sorted(set(range(100)) - set(cohort.tolist())))
        assert same(tree.index(before["states"], absent), tree.index(sim.states.rows, absent))
        if name in rows:
            old, new = before["server"][rows[name]], sim.server[rows[name]]
            assert same(tree.index(old, absent), tree.index(new, absent))
            for i in cohort.tolist():
                assert not same(tree.index(old, i), tree.index(new, i))
        else:
            assert torch.equal(before["server"]["cluster"][absent], sim.server["cluster"][absent])
        if name == "apple":
            assert (report.down <= 4 * (5 * SIGMA + 200)).all()
    assert torch.equal(sim.states.met, met)
    scores = sim.score()
    assert len(scores.test.loss) == 100
    assert scores.test.loss.isfinite().all()
    if name == "cfl":
        assert sim.records()["cluster"].max() == 1
    # those who were never drawn have what they would get by joining now
    stranger = models(sim)[str(int((~met).nonzero()[0]))]
    if name in ("fedamp", "mocha"):
        assert same(stranger, sim.initial)


# --------------------------------------------------------------------------------------------- +ala

HOSTS = ("perfedavg-fo", "perfedavg-hf", "pfedme", "fedphp", "partialfed")
# ALA takes the batches of training, and these train on several at a time
PARTS = {"perfedavg-fo": 2, "perfedavg-hf": 3}
MORE = {"pfedme": {"R": 2, "K": 2}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", HOSTS)
def test_ala_without_blocks_is_the_host(host: str, engine: str) -> None:
    """p = 0: exactly the host. (FedAMP: in `test_fedamp`.)"""
    task, world = task_of("norm"), ragged()
    more = MORE.get(host, {})
    found = []
    for method in (find_method(host)(task, **more), find_method(f"{host}+ala")(task, p=0, **more)):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("host", [*HOSTS, "fedamp"])
def test_with_ala_training_begins_with_the_adapted_model(host: str, engine: str) -> None:
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
