"""pFedSim: bodies are mixed by how alike the heads are."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch

from fedtailor import BadInput
from fedtailor.core import rng, tree, wire
from fedtailor.core.method import ClientCount, Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, local, pfedsim
from tests.methods.worlds import (
    ENGINES,
    gap,
    labelled,
    models,
    near,
    one_number,
    play,
    ragged,
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_layers,
)


def told(uploads: list, method, task, round: int = 5) -> dict:
    """The server after a cohort of everybody in a late round of ten."""
    count = ClientCount.of(torch.ones(len(uploads), dtype=torch.int64))
    server = method.init(count, task.init(rng.key(0)), rng.key(0))
    up = Upload(each={"params": tree.stack(uploads)})
    return method.receive(server, torch.arange(len(uploads)), up, turn_of(round))


@pytest.mark.usefixtures("double")
def test_three_heads_by_hand() -> None:
    # W_0 = (1, 0), (0, 1);  W_1 = (1, 1), (0, 2): cosines 1/√2 and 1;  W_2 = -W_0
    # s_01 = (1/√2 + 1)/2;  s_02 = max(0, -1) = 0;  s_12 = 0;  s_ii = 0.9999
    # bodies 1, 2 and 4: body_0 = (1 ω + 2 ω_01)/(ω + ω_01), ω = -log(1 - s)
    heads = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0]], [[-1.0, 0.0], [0.0, -1.0]]]
    task = two_layers([[0.0], [0.0]], heads[0])
    uploads = [
        task.init(rng.key(0))
        | {"head.weight": torch.tensor(head), "body.weight": torch.full((2, 1), float(2**i))}
        for i, head in enumerate(heads)
    ]
    method = pfedsim(task)
    server = told(uploads, method, task)
    s = (1 / sqrt(2) + 1) / 2
    assert server["likeness"].flatten().tolist() == near(
        0.9999, s, 0.0, s, 0.9999, 0.0, 0.0, 0.0, 0.9999
    )
    own, other = -log(1 - 0.9999), -log(1 - s)
    sent = [method.send(server, torch.tensor(i), turn_of(6)) for i in range(3)]
    bodies = [float(one["body"]["body.weight"][0]) for one in sent]
    mean = lambda a, b: (a * own + b * other) / (own + other)
    assert bodies == near(mean(1.0, 2.0), mean(2.0, 1.0), 4.0)
    assert not any(wire.here(one["head"]) for one in sent)  # each has its own
    # lengths of rows do not count, signs do
    scaled = [u | {"head.weight": u["head.weight"] * torch.tensor([[3.0], [0.1]])} for u in uploads]
    assert gap({"s": told(scaled, method, task)["likeness"]}, {"s": server["likeness"]}) < 1e-12


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # z = a x, a = 1, W = b = 0, x = 1, η = 1.  Both clients of class 0, with one and two rows:
    # round 0 (FedAvg): W = b = (1/2, -1/2), the body has no slope: w is the same
    # round 1: logits ±1, p = 1/(1 + e^2) of class 1; slope of a: -2 W p = -p
    #   both end alike: s = 0.9999 and not 1, so weights are halves and bodies 1 + p
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 0)] * 2])
    recipe = Recipe(batch=0, lr=1.0)
    sim = simulate(pfedsim(task, recipe=recipe), world, task, engine=engine, rounds=2)
    play(sim)
    assert sim.server["params"]["head.bias"].tolist() == near(0.5, -0.5)
    assert sim.server["met"].tolist() == [0, 0]
    play(sim)
    p = 1 / (1 + torch.tensor(2.0).exp().item())
    assert sim.server["params"]["body.weight"].tolist() == [[1.0]]
    assert sim.server["likeness"].flatten().tolist() == near(0.9999, 0.9999, 0.9999, 0.9999)
    for model in models(sim).values():
        assert float(model["body.weight"]) == near(1 + p)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_warm_up_is_fedavg(weighting: str, engine: str) -> None:
    task, world = task_of("norm"), ragged()
    methods = (
        pfedsim(task, warmup=1.0, weighting=weighting),
        fedavg(task, weighting=weighting),
        pfedsim(task, warmup=0.5),
    )
    sims = [simulate(m, world, task, engine=engine, rounds=4) for m in methods]
    for sim in sims:
        play(sim, [[0, 1, 3], [1, 2, 4, 5]])
    assert gap(*map(models, sims[:2])) < 1e-12
    if weighting == "data":
        assert gap(*map(models, sims[1:])) < 1e-12
    for sim in sims:
        play(sim, 2)
    assert gap(*map(models, sims[:2])) < 1e-12
    assert gap(*map(models, sims[1:])) > 1e-3


def test_warm_up_may_be_a_number_of_rounds() -> None:
    """Three of eight, as a share and as a number; 1 is all."""
    task, world = task_of(), ragged()
    ends = []
    for warmup in (3 / 8, 3.0, 4.0, 1.0):
        sim = simulate(pfedsim(task, warmup=warmup), world, task, rounds=8)
        play(sim, 8)
        ends.append(models(sim))
    share, number, later, whole = ends
    assert same(share, number)
    assert gap(share, later) > 1e-4
    assert gap(later, whole) > 1e-4


def test_clients_that_are_not_alike_train_alone() -> None:
    """Heads that point away from each other: s = 0, and a row without partners is its own."""
    task = two_layers([[1.0]], [[0.0], [0.0]])
    world = labelled([[([1.0], 0)], [([1.0], 1)]])
    recipe = Recipe(batch=0, lr=1.0)
    sims = [
        simulate(m, world, task)
        for m in (pfedsim(task, warmup=0.0, recipe=recipe), local(task, recipe=recipe))
    ]
    for sim in sims:
        play(sim, 3)
    assert same(*map(models, sims))


def test_heads_that_are_the_same_give_no_nan() -> None:
    """In single precision 1 - cos may be 0: a public code then divides infinity by itself."""
    task = task_of("norm")
    w = task.init(rng.key(0))
    method = pfedsim(task)
    bodies = [tree.pick(random_like(w, i), [k for k in w if k not in task.head]) for i in range(3)]
    server = told([w | body for body in bodies], method, task)
    sent = method.send(server, torch.tensor(1), turn_of(6))
    mean = tree.map(lambda *p: torch.stack(p).mean(0), *bodies)
    assert gap(sent["body"], mean) < 1e-5


@pytest.mark.usefixtures("double")
def test_nobody_outweighs_a_client_itself() -> None:
    """A cosine of 0.99995 counts as 0.9999: else the other would have 0.518, and itself 0.482."""
    task = two_layers([[0.0], [0.0]], [[1.0, 0.0], [1.0, 0.0]])
    near_by = [0.99995, sqrt(1 - 0.99995**2)]
    uploads = [
        task.init(rng.key(0))
        | {"head.weight": torch.tensor([row, row]), "body.weight": torch.full((2, 1), value)}
        for row, value in (([1.0, 0.0], 0.0), (near_by, 1.0))
    ]
    method = pfedsim(task)
    server = told(uploads, method, task)
    for client in range(2):
        sent = method.send(server, torch.tensor(client), turn_of(6))["body"]
        assert float(sent["body.weight"][0]) == near(0.5)


def test_likeness_is_of_pairs_that_met_and_the_absent_keep_theirs() -> None:
    task, world = task_of(), ragged()
    sim = simulate(pfedsim(task, warmup=0.0), world, task)
    play(sim, [[0, 1, 2]])
    before = snapshot(sim)["server"]
    play(sim, [[2, 3]])
    known = sim.server["likeness"]
    assert torch.equal(known, known.T)
    assert float(known[0, 1]) == float(before["likeness"][0, 1])
    assert float(known[0, 3]) == 0
    for client in range(6):
        old, new = (tree.index(s["models"], client) for s in (before, sim.server))
        assert same(old, new) == (client not in (2, 3))
    found = models(sim)
    assert same(found["5"], sim.initial)


@pytest.mark.parametrize("engine", ENGINES)
def test_heads_stay_with_their_clients(engine: str) -> None:
    """A model down in the warm-up and in a client's first turn after it, then a body: 54 of 75."""
    task, world = task_of("norm"), ragged()
    sim = simulate(pfedsim(task, warmup=2.0), world, task, engine=engine)
    down = []
    for cohort in ([0, 1], [0, 2], [0, 1, 2], [0, 1, 3], [0, 3]):
        (report,) = play(sim, [cohort])
        down.append([n // 4 for n in report.down.tolist()])
        assert report.up.tolist() == [4 * 75] * len(cohort)
    assert down == [[75] * 2, [75] * 2, [75] * 3, [54, 54, 75], [54, 54]]
    found = models(sim)
    for client in range(4):
        own = tree.pick(found[str(client)], task.head)
        assert same(own, tree.pick(tree.index(sim.server["models"], client), task.head))
    assert same(found["5"], sim.server["params"])
    assert not same(*(tree.pick(found[k], task.head) for k in "01"))


def test_a_network_without_a_head_is_refused() -> None:
    with pytest.raises(BadInput, match="pFedSim compares heads, but the network's head is no"):
        pfedsim(one_number())
