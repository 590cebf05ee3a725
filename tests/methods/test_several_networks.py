"""Clients with different networks: what must hold for every method that takes them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.method import ClientCount
from fedtailor.core.task import Task, classification
from fedtailor.core.tree import Tree
from fedtailor.engine import Simulation
from fedtailor.methods import METHODS, fedalt, fedavg, fedkd, fedsim, fml, lg_fedavg
from fedtailor.methods.combine import with_own_networks
from fedtailor.methods.describe import among
from fedtailor.methods.find import find
from fedtailor.methods.parts.partial import matched
from fedtailor.methods.parts.robust import TrimmedMean, with_max_norm, with_robust_mean
from tests.methods.worlds import QUICK, gap, models, play, ragged, same, simulate, turn_of

HALF = torch.tensor([0, 2, 4])
COHORTS = [[0, 1, 3], [1, 2, 3], [0, 2, 5], [1, 3]]  # nobody of the deep ones in the last


def net(*widths: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for low, high in pairwise(widths):
            layers += [nn.Linear(low, high), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return build


def two() -> tuple[Task, Task]:
    """Their lower blocks are alike, and so are their heads, under other names."""
    return classification(net(4, 6, 6, 3)), classification(net(4, 6, 3))


def simulation(name: str, networks: tuple[Task, ...], **options: Any) -> Simulation:
    """Clients 1 and 3 have the last network, the others the first."""
    factory = find(name)
    known = among(factory, networks) | QUICK.get(name, {})
    first, last = (factory(task, **known) for task in (networks[0], networks[-1]))
    others = [(last, networks[-1], torch.tensor([1, 3]))]
    return Simulation(first, ragged(), networks[0], others=others, rounds=5, **options)


def kept(sim: Simulation) -> Tree:
    states = {str(i): store.rows for i, store in enumerate(sim.clients.stores)}  # type: ignore[attr-defined]
    return {"server": sim.server, "states": states, "models": models(sim)}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", with_own_networks())
def test_one_after_another_and_all_at_once_are_the_same(name: str) -> None:
    found = []
    for options in ({"engine": "sequential"}, {"engine": "vectorised"}, {"chunk": 1}):
        sim = simulation(name, two(), **options)
        play(sim, COHORTS)
        found.append(kept(sim))
        assert sim.outputs().test.isfinite().all()
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[0], found[2]) < 1e-9


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["fml", "fedkd"])
def test_a_common_network_that_no_client_has(name: str) -> None:
    """It has BatchNorm and features of another width; clients' own are two others."""
    meme = classification(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    )
    deep, small = two()
    networks, ids, found = (meme, deep, small), torch.arange(6), []
    first, *rest = (find(name)(task, networks=networks) for task in networks)
    for engine in ("sequential", "vectorised"):
        having = zip(rest, networks[1:], (ids[::2], ids[1::2]), strict=True)
        sim = Simulation(first, ragged(), meme, others=[*having], rounds=5, engine=engine)
        initial = {"0": deep, "1": small}
        began = {k: task.init(rng.key(0, rng.INITIAL)) for k, task in initial.items()}
        assert all(same(models(sim)[k], began[k]) for k in began), "tested with its own, untrained"
        reports = play(sim, COHORTS)
        for report in reports:
            assert len(set(report.up.tolist())) == 1 or name == "fedkd", "all send the same network"
        assert sim.server["params"].keys() == meme.init(rng.key(0)).keys()
        assert {k: len(v) for k, v in models(sim).items()} == {
            str(i): 4 if i % 2 else 6 for i in range(6)
        }
        general = sim.outputs(general=True).test
        assert general.isfinite().all()
        rows = sim.client_data.part(torch.tensor([1]), "test")
        x = rows.x[rows.rows[0, : int(rows.n[0])]]
        torch.testing.assert_close(general[1, : len(x)], meme.predict(sim.server["params"], x))
        found.append(kept(sim))
    assert gap(*found) < 1e-9


@pytest.mark.usefixtures("double")
def test_a_meme_that_is_a_clients_network_is_what_it_would_be_alone() -> None:
    """All clients have the named network: groups change nothing, untrained ones have the meme."""
    task = two()[0]
    plain = simulate(fml(task), ragged(), task)
    apart = simulate(fml(task), ragged(), task, others=[(fml(task, networks=(task,)), task, HALF)])
    for sim in (plain, apart):
        play(sim, COHORTS[:2])
    assert gap(models(plain), models(apart)) < 1e-12
    assert same(models(apart)["4"], apart.server["params"]), "client 4 was never trained"


def test_fedkds_map_is_as_wide_as_the_student_and_as_high_as_the_teacher() -> None:
    deep, meme = two()[0], classification(net(4, 5, 3))
    method = fedkd(deep, networks=(meme, deep))
    server = fedkd(meme, networks=(meme, deep)).init(ClientCount.of(torch.ones(2)), {}, rng.key(0))
    message = method.send(server, torch.tensor(0), turn_of())
    state = method.start(message, deep.init(rng.key(0)), rng.key(0))
    assert torch.equal(state["map"], torch.eye(6, 5))
    assert state["student"].keys() == meme.init(rng.key(0)).keys()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("make", [fedalt, fedsim])
def test_blocks_that_all_have_are_shared_and_the_rest_is_personal(make: Any) -> None:
    """4-6-6-3, 4-6-3 and 4-6-6-2-3: the first block is common; the first and third have two."""
    deep, small, third = *two(), classification(net(4, 6, 6, 2, 3))
    networks, ids = (third, deep, small), torch.arange(6)
    methods = [make(task, networks=networks) for task in networks]
    first, *others = zip(methods, networks, (ids[::3], ids[1::3], ids[2::3]), strict=True)
    sim = Simulation(first[0], ragged(), third, others=others, rounds=5)
    assert sim.server["shared"].keys() == {"0.weight", "0.bias"}
    play(sim, COHORTS)
    found = models(sim)
    for client in found.values():
        assert torch.equal(client["0.weight"], sim.server["shared"]["0.weight"])
    assert not torch.equal(found["0"]["2.weight"], found["1"]["2.weight"])
    assert not torch.equal(found["0"]["2.weight"], found["3"]["2.weight"])
    pair = (deep, classification(net(4, 6, 6, 5)))  # without the small one two blocks are common
    assert len(make(deep, networks=pair).init(0, deep.init(rng.key(0)), rng.key(0))["shared"]) == 4


def test_what_is_said_where_nothing_or_all_is_common() -> None:
    deep, small = two()
    other = classification(net(4, 7, 3))
    with pytest.raises(BadInput, match="networks have no block in common, so nothing is left to"):
        fedsim(deep, networks=(deep, small, other))
    with pytest.raises(BadInput, match="networks are all alike: leave --models out"):
        fedalt(deep, networks=(deep, classification(net(4, 6, 6, 3))))
    said = "shared_blocks is 2, but of the first 2 blocks 1 are alike in all networks: give fewer"
    with pytest.raises(BadInput, match=said):
        fedalt(small, shared_blocks=2, networks=(deep, small))
    fedalt(small, shared_blocks=1, networks=(deep, small))


def test_who_takes_them_says_so() -> None:
    assert set(with_own_networks()) == {
        "local", "lg-fedavg", "fedproto", "fedgh", "fedtgp", "pmixfed", "feddistill", "fml",
        "fedkd", "fedalt", "fedsim",
    }  # fmt: skip
    assert not find("lg-fedavg+ala")(two()[0]).own_networks, "parts are made for one network"
    task = two()[0]
    assert not with_robust_mean(lg_fedavg(task), task, TrimmedMean()).own_networks
    assert not fedavg(task).own_networks
    assert METHODS.keys() >= set(with_own_networks())


@pytest.mark.usefixtures("double")
def test_a_limit_on_uploads_is_by_the_client_s_own_names() -> None:
    """The head is 4.weight at the server and 2.weight here: what it moves is its own move."""
    deep, small = two()
    host = lg_fedavg(small, networks=(deep, small))
    method = with_max_norm(host, small, 0.001)
    others = [(method, small, torch.tensor([1, 3]))]
    sim = Simulation(lg_fedavg(deep, networks=(deep, small)), ragged(), deep, others=others)
    before = tree.map(torch.clone, sim.server["shared"])
    report = sim.step(torch.tensor([1]))
    move = float(tree.sq_norm(tree.sub(sim.server["shared"], before)).sqrt())
    assert move == pytest.approx(0.001)
    assert report.uploads is not None
    far = float(report.uploads.norm[0])
    free = Simulation(
        lg_fedavg(deep, networks=(deep, small)), ragged(), deep, others=[(host, *others[0][1:])]
    )
    free.step(torch.tensor([1]))
    change = tree.sub(free.server["shared"], before)
    assert far == pytest.approx(float(tree.sq_norm(change).sqrt()), rel=1e-5)


def test_blocks_match_by_place_and_shape() -> None:
    """Block i with block i; a head of another width stays out, though its name is taken."""
    deep, shallow = two()
    assert matched(deep, deep) == {k: k for k in deep.init(rng.key(0))}
    # block 2 is 6 -> 3 here, 6 -> 6 there
    assert matched(shallow, deep) == {"0.weight": "0.weight", "0.bias": "0.bias"}
    # names differ, places and shapes agree
    spaced = classification(
        lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    )
    assert matched(spaced, deep) == {"1.weight": "0.weight", "1.bias": "0.bias"}
    assert matched(classification(net(5, 7, 3)), deep) == {}
    # a block without bias is another block
    bare = classification(lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 6)))
    assert matched(bare, deep) == {"1.weight": "2.weight", "1.bias": "2.bias"}
