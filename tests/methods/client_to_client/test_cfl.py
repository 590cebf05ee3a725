"""CFL: clients are split into clusters when their updates pull apart."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import tree
from fedtailor.core.method import Upload
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.methods import cfl, fedavg
from tests.methods.worlds import (
    ENGINES,
    HALF,
    SIZES,
    data_of,
    gap,
    models,
    module_of,
    near,
    of_models,
    one_number,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
# splits as soon as it may, in round 1; after that updates are shorter than 0.5
AT_ONCE = {"e1": 10.0, "e2": 0.5, "first_split": 1}


def _number() -> Task:
    """`one_number` with w as a vector of length one."""
    return one_number()._replace(init=lambda key: {"w": torch.zeros(1)})


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # two members are never split; equal weights
    # round 0, w = 0:    updates 1 and 4,         w = 2.5
    # round 1, w = 2.5:  updates -0.25 and 2.75,  w = 3.75
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(2.5, 2.5)
    play(sim)
    assert of_models(sim, "w") == near(3.75, 3.75)
    assert sim.records()["cluster"].tolist() == [0, 0]


def _opposed():
    """Two clients at 2, three at -2."""
    return rows_of([[2.0], [-2.0], [2.0], [-2.0], [-2.0]])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_split_by_hand(engine):
    # round 0 (too early to split): updates 1, -1, 1, -1, -1, mean -0.2
    # round 1, w = -0.2: updates 1.1, -0.9, 1.1, -0.9, -0.9: 0 and 2 leave the others
    #   the three: -0.2 - 0.9 = -1.1
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(*[-0.2] * 5)
    assert sim.records()["cluster"].tolist() == [0] * 5
    play(sim)
    assert sim.records()["cluster"].tolist() == [1, 0, 1, 0, 0]
    assert [of_models(sim, "w")[i] for i in (1, 3, 4)] == near(*[-1.1] * 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_of_a_new_cluster_by_hand(engine):
    # as above: client 0 and 2 have trained -0.2 to 0.9, and that is their model.
    # (-1.1 + 1.1 = 0 would be both halves' updates)
    # round 2:  0.9 -> 1.45,  -1.1 -> -1.55
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task, engine=engine)
    play(sim, 2)
    assert of_models(sim, "w") == near(0.9, -1.1, 0.9, -1.1, -1.1)
    play(sim)
    assert of_models(sim, "w") == near(1.45, -1.55, 1.45, -1.55, -1.55)


@pytest.mark.parametrize("e1", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("e2", [0.5, 1.05, 5.0])
def test_both_conditions_and_the_round_decide(e1, e2):
    """|mean| = 0.1 < e1 and max |update| = 1.1 > e2, and the round is past `first_split`."""
    task = _number()
    for first in (1, 2):
        method = cfl(task, e1=e1, e2=e2, first_split=first, recipe=HALF)
        sim = simulate(method, _opposed(), task)
        play(sim, 2)
        split = len(set(sim.records()["cluster"].tolist())) == 2
        assert split == (first == 1 and e1 > 0 and e2 < 1.1)


def test_by_default_nothing_is_split_up_to_round_20():
    task = _number()
    sim = simulate(cfl(task, e1=10.0, e2=0.01, recipe=HALF), _opposed(), task)
    play(sim, 20)
    assert sim.records()["cluster"].tolist() == [0] * 5
    play(sim)
    assert sim.records()["cluster"].tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_momentum_goes_on_over_rounds_by_hand(engine):
    # momentum 1/2, steps of 1/2, equal weights; gradients are w - 2 and w - 8
    # round 1, w = 0:    m = -2 and -8,                       updates 1 and 4,      w = 2.5
    # round 2, w = 2.5:  m = 0.5 - 1 and -5.5 - 4,            updates 0.25, 4.75,   w = 5
    #   anew:            m = 0.5 and -5.5,                    updates -0.25, 2.75,  w = 3.75
    # round 3, client 1 alone, w = 5:  m = -3 - 4.75 = -7.75, update 3.875,         w = 8.875
    # round 4, client 0 alone, w = 8.875:  m = 6.875 - 0.25 = 6.625,                w = 5.5625
    task, recipe = _number(), Recipe(batch=0, lr=0.5, momentum=0.5)
    found = {}
    for keep in (True, False):
        method = cfl(task, keep_momentum=keep, recipe=recipe)
        sim = simulate(method, two_clients(), task, engine=engine)
        found[keep] = []
        for cohort in ([0, 1], [0, 1], [1], [0]):
            play(sim, [cohort])
            found[keep].append(of_models(sim, "w")[0])
    assert found[True] == near(2.5, 5.0, 8.875, 5.5625)
    assert found[False][:2] == near(2.5, 3.75)


@pytest.mark.usefixtures("double")
def test_momentum_is_that_of_one_optimiser_per_client():
    """Three rounds against `torch.optim.SGD`, made once per client."""
    task, world = task_of(), ragged(SIZES[:2])
    recipe = Recipe(batch=0, lr=0.1, momentum=0.9, weight_decay=0.01)
    sim = simulate(cfl(task, e1=0.0, recipe=recipe), world, task)
    shared = {k: v.clone() for k, v in sim.initial.items()}
    nets = [module_of("mlp", shared) for _ in range(2)]
    kept = [torch.optim.SGD(n.parameters(), 0.1, momentum=0.9, weight_decay=0.01) for n in nets]
    for _ in range(3):
        play(sim)
        updates = []
        for i, (net, optimiser) in enumerate(zip(nets, kept, strict=True)):
            own = data_of(world, i)
            rows = own.rows[: int(own.n)]
            net.load_state_dict(shared)
            optimiser.zero_grad()
            F.cross_entropy(net(own.x[rows]), own.y[rows]).backward()
            optimiser.step()
            updates.append({k: v - shared[k] for k, v in net.state_dict().items()})
        shared = {k: v + (updates[0][k] + updates[1][k]) / 2 for k, v in shared.items()}
        assert gap(models(sim)["0"], shared) < 1e-12


def test_without_momentum_nothing_is_kept():
    task, world = task_of(), ragged()
    for recipe, kept in ((Recipe(), False), (Recipe(momentum=0.9), True)):
        sim = simulate(cfl(task, recipe=recipe), world, task)
        play(sim)
        assert bool(sim.states.rows) == kept


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_without_splits_it_is_fedavg_with_equal_weights(net, engine):
    """e1 = 0 (1e-6): the server adds mean updates."""
    task, world = task_of(net), ragged()
    methods = cfl(task, e1=0.0, first_split=1), fedavg(task, weighting="uniform")
    sims = [simulate(method, world, task, engine=engine) for method in methods]
    for sim in sims:
        play(sim, COHORTS)
    assert gap(models(sims[0]), models(sims[1])) < 1e-6
    assert sims[0].records()["cluster"].tolist() == [0] * 6


@pytest.mark.parametrize("engine", ENGINES)
def test_clusters_always_partition_the_clients(engine):
    """Everybody is in one cluster, and clusters are only ever refined."""
    task, world = task_of(), ragged([9] * 8)
    method = cfl(task, e1=10.0, e2=0.0, first_split=1, recipe=Recipe(lr=0.1))
    sim = simulate(method, world, task, engine=engine)
    before, counts = [0] * 8, []
    for _ in range(6):
        play(sim)
        now = sim.records()["cluster"].tolist()
        assert len(now) == 8
        assert all(0 <= c < 8 for c in now)
        for i in range(8):
            for j in range(8):
                assert before[i] == before[j] or now[i] != now[j]
        before = now
        counts.append(len(set(now)))
    assert counts == sorted(counts)
    assert counts[-1] >= 3


@pytest.mark.parametrize("engine", ENGINES)
def test_members_share_a_model_and_others_do_not(engine):
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task, engine=engine)
    play(sim, 4)
    found = of_models(sim, "w")
    assert found[0] == found[2]
    assert found[1] == found[3] == found[4]
    assert found[0] > 0 > found[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_only_fresh_updates_count(engine):
    """A cluster nobody of which is there keeps its model and members to the last bit."""
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task, engine=engine)
    play(sim, 2)
    before = models(sim)
    play(sim, [[1, 3, 4]])
    after = models(sim)
    assert [same(before[k], after[k]) for k in "01234"] == [True, False, True, False, False]
    kept = snapshot(sim)["server"]
    play(sim, [[2]])
    assert torch.equal(kept["cluster"], sim.server["cluster"])
    moved = (kept["models"]["w"] != sim.server["models"]["w"]).flatten()
    assert moved.nonzero().flatten().tolist() == [1]


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_go_with_the_larger_half(engine):
    """And a cluster of which only two are there is not split."""
    task = _number()
    sim = simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task, engine=engine)
    play(sim)
    play(sim, [[0, 1]])
    assert sim.records()["cluster"].tolist() == [0] * 5
    # 0 against 1 and 3: client 2, like 0 but absent, stays with the larger half
    play(sim, [[0, 1, 3]])
    assert sim.records()["cluster"].tolist() == [1, 0, 0, 0, 0]


def test_two_clusters_may_split_in_one_round():
    task = _number()._replace(init=lambda key: {"w": torch.zeros(2)})
    method = cfl(task, e1=10.0, e2=0.1, first_split=1)
    server = {
        "models": {"w": torch.zeros(8, 2)},
        "cluster": torch.tensor([0, 1, 0, 1, 0, 1, 1, 0]),
    }
    up = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    # 0 against 2, 4, 7 in cluster 0; 3 against 1, 5, 6 in cluster 1
    rows = torch.stack([up[0], up[1], -up[0], -up[1], -up[0], up[1], up[1], -up[0]])
    upload = Upload(each={"update": {"w": rows}})
    after = method.receive(server, torch.arange(8), upload, turn_of(5))
    cluster = after["cluster"].tolist()
    assert cluster == [2, 1, 0, 3, 0, 1, 1, 0]


def test_parameters_may_be_single_numbers():
    """A learnt temperature or scale is a 0-dim parameter."""
    task = one_number()
    play(simulate(cfl(task, recipe=HALF, **AT_ONCE), _opposed(), task), 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes(engine):
    """A model down, an update up; running statistics are part of both."""
    for net, sigma in (("mlp", 51), ("norm", 75)):
        task, world = task_of(net), ragged()
        sim = simulate(cfl(task), world, task, engine=engine)
        for report in play(sim, COHORTS[:2]):
            assert report.down.tolist() == report.up.tolist() == [4 * sigma] * len(report.ids)
    assert tree.leaves(sim.states.rows) == []


# -------------------------------------------------------------- mistakes that public codes make


def _updates(groups: dict[int, tuple[float, float]]) -> tuple[torch.Tensor, Upload]:
    ids = torch.tensor(sorted(groups))
    rows = torch.tensor([groups[i] for i in sorted(groups)])
    return ids, Upload(each={"update": {"w": rows}})


def test_clusters_are_ids_not_positions():
    """Guards against halves kept as positions inside the cluster: {1, 4, 5, 7} has positions 0..3.

    The first split makes {1, 4, 5, 7}, whose halves {1, 5} and {4, 7} are at the positions 0, 2
    and 1, 3: kept as positions they would be the clients 0, 2 and 1, 3.
    """
    plane: Task = one_number()._replace(init=lambda key: {"w": torch.zeros(2)})
    method = cfl(plane, e1=10.0, e2=0.5, first_split=1)
    server = method.init(8, {"w": torch.zeros(2)}, torch.tensor(0))
    right, left, up, down = (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)
    first = {i: right if i in (1, 4, 5, 7) else left for i in range(8)}
    server = method.receive(server, *_updates(first), turn_of(1))
    members = lambda c: set((server["cluster"] == c).nonzero().flatten().tolist())
    mine = int(server["cluster"][1])
    assert members(mine) == {1, 4, 5, 7}
    assert members(int(server["cluster"][0])) == {0, 2, 3, 6}
    # those of the other cluster agree and move too little to be split
    still = dict.fromkeys((0, 2, 3, 6), (0.01, 0.0))
    second = still | {1: up, 5: up, 4: down, 7: down}
    server = method.receive(server, *_updates(second), turn_of(2))
    assert members(int(server["cluster"][1])) == {1, 5}
    assert members(int(server["cluster"][4])) == {4, 7}
    assert members(int(server["cluster"][0])) == {0, 2, 3, 6}
    # and whose model moves is decided by ids as well, also when only some are there
    old = server["models"]["w"].clone()
    server = method.receive(server, *_updates({4: up, 6: right}), turn_of(3))
    moved = server["models"]["w"] - old
    assert moved[server["cluster"][4]].tolist() == [0.0, 1.0]
    assert moved[server["cluster"][6]].tolist() == [1.0, 0.0]
    assert moved[server["cluster"][1]].tolist() == [0.0, 0.0]


def test_its_defaults_are_the_papers_but_for_what_disagreement_is() -> None:
    """With the paper's 1.6 no cluster is split (docs/defaults.md)."""
    defaults = {k: p.default for k, p in inspect.signature(cfl).parameters.items()}
    assert (defaults["e1"], defaults["e2"], defaults["first_split"]) == (0.4, 0.2, 20)
