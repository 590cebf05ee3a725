"""Mistakes that public codes make, and a test for each that such a code would fail."""

import inspect

import pytest
import torch
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.method import Upload
from fedtailor.core.task import Task, classification
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData
from fedtailor.methods import (
    METHODS,
    apple,
    cfl,
    ditto,
    fedamp,
    fedbn,
    fedrep,
    heurfedamp,
    lg_fedavg,
    mocha,
    perfedavg_fo,
    perfedavg_hf,
    pfedme,
)
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    make,
    models,
    one_number,
    play,
    ragged,
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
    turn_of,
)

# ------------------------------------------------------------------- regularisers without gradients


@pytest.mark.parametrize("factory", [fedamp, heurfedamp], ids=["fedamp", "heurfedamp"])
def test_moving_the_mixture_moves_the_client(factory):
    """Guards against a pull made of detached tensors: that FedAMP is bitwise Local."""
    task, world = task_of(), ragged()
    sim = simulate(factory(task), world, task)
    play(sim)
    state, data = tree.index(sim.states.rows, 1), data_of(world, 1)
    near_by, far = (
        sim.method.client({"params": u}, state, data, turn_of(1)).state["own"]
        for u in (state["own"], random_like(state["own"], 3))
    )
    # 4 steps of 0.05 with the strength 1 go a fifth of the way
    assert gap(near_by, far) > 0.05
    # towards u, not away from it
    u = random_like(state["own"], 3)
    assert tree.sq_norm(tree.sub(far, u)) < tree.sq_norm(tree.sub(near_by, u))


def test_moving_the_others_moves_the_client():
    """Guards against MOCHA's penalty made of detached tensors: that is bitwise Local too."""
    task, world = task_of(), ragged()
    sim = simulate(mocha(task, strength=30.0), world, task)
    play(sim)
    ends = []
    for seed in (1, 2):
        others = tree.stack([random_like(sim.initial, 10 * seed + i) for i in range(6)])
        server = sim.server | {"models": others}
        message = sim.method.send(server, torch.tensor(1), turn_of(1))
        state, data = tree.index(sim.states.rows, 1), data_of(world, 1)
        ends.append(sim.method.client(message, state, data, turn_of(1)).state["own"])
    assert gap(*ends) > 1e-3


# ---------------------------------------------------------------------- pFedMe and its three models


@pytest.mark.parametrize("engine", ENGINES)
def test_pfedme_tests_theta_not_w_nor_the_next_global_model(engine):
    """Guards against θ sharing storage with the model: two public codes test w_k, or the next w."""
    task, world = task_of("norm"), ragged()
    method = pfedme(task, R=3, eta=0.02)
    sim = simulate(method, world, task, engine=engine)
    first = turn_of()._replace(key=rng.key(0, rng.TURN, 0)).of(torch.tensor(1)).at_client()
    message = {"params": sim.initial}
    state = method.start(message, sim.initial, first.key)
    alone = method.client(message, state, data_of(world, 1), first)
    (report,) = play(sim, 1, post=True)
    theta, w, after = models(sim)["1"], alone.upload.mean["params"], sim.server["params"]
    assert gap(theta, alone.model) < 1e-6
    # three models, and not by running statistics alone
    trained = lambda params: tree.drop(params, task.buffers)
    assert gap(trained(theta), trained(w)) > 1e-3
    assert gap(trained(theta), trained(after)) > 1e-3
    assert gap(trained(w), trained(after)) > 1e-3
    # right after training θ is scored, and it is still what is scored after the next download
    assert torch.equal(report.post.test.loss, sim.score().test.loss)
    play(sim, [[0, 2, 3]])
    assert same(models(sim)["1"], theta)
    assert not same(sim.server["params"], after)


# -------------------------------------------------------------------------------------------- APPLE


@pytest.mark.parametrize("engine", ENGINES)
def test_apple_uploads_its_core(engine):
    """Guards against uploading the personalised model Σ p_ij c_j in the core's place."""
    task, world = task_of(), ragged()
    sim = simulate(apple(task), world, task, engine=engine)
    play(sim, 2)
    before = snapshot(sim)
    (report,) = play(sim, 1)
    assert same(sim.server["cores"], sim.states.rows["core"])
    for client, model in models(sim).items():
        core = tree.index(sim.server["cores"], int(client))
        assert gap(core, model) > 1e-3
        # the core takes short steps, of p_ii: it stays near what it was, and the model does not
        old = tree.index(before["server"]["cores"], int(client))
        assert gap(core, old) < gap(model, old)
    assert report.up.tolist() == [4 * 51] * 6


# ---------------------------------------------------------------------------------------------- CFL


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
    method = cfl(plane, e1=10.0, e2=0.5, first_split=0)
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


# -------------------------------------------------------------------------- which part of a network


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


# --------------------------------------------------------------------------- what is really trained


@pytest.mark.parametrize("engine", ENGINES)
def test_dittos_own_model_trains_in_training_mode(engine):
    """Guards against v_k trained in evaluation mode: frozen statistics, no dropout."""
    task, world = task_of("norm"), ragged()
    sim = simulate(ditto(task), world, task, engine=engine)
    play(sim)
    own = sim.states.rows["own"]
    assert (own["1.running_mean"] != 0).all()
    assert (own["1.running_var"] != 1).all()
    # every v_k has statistics of its own rows
    assert len({tuple(row.tolist()) for row in own["1.running_mean"]}) == 6
    # dropout: without its masks the same steps end elsewhere
    build = lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.0), nn.Linear(6, 3)
    )
    dry = simulate(ditto(classification(build)), world, classification(build), engine=engine)
    play(dry)
    assert same(dry.initial, sim.initial)
    assert gap(dry.states.rows["own"], own) > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("head_epochs", [1, 3])
def test_fedreps_head_is_trained_with_one_local_epoch(head_epochs, engine):
    """Guards against taking the head's epochs out of the local epochs: with one, none are left."""
    task, world = task_of(), ragged()
    method = fedrep(task, head_epochs=head_epochs, recipe=Recipe(epochs=1))
    sim = simulate(method, world, task, engine=engine)
    play(sim)
    for client in range(6):
        head = tree.index(sim.states.rows["personal"], client)
        assert gap(head, tree.pick(sim.initial, task.head)) > 1e-4
    body = sim.server["shared"]
    assert gap(body, tree.pick(sim.initial, body)) > 1e-4


# ----------------------------------------------------------------------------- which rows are whose


@pytest.mark.parametrize("name", ["fedfomo", "fedala", "fedavg-data", "perfedavg-fo", "partialfed"])
def test_rows_are_the_same_in_every_round(name):
    """Guards against splits redrawn each round, in which validation rows are trained on."""
    task, world = task_of(), ragged()
    method = make(name, task)
    seen: dict[int, list] = {}

    def client(msg, state, data, turn):
        n, val_n = int(data.n), int(data.val_n)
        rows = data.rows[:n].tolist(), data.val_rows[:val_n].tolist()
        seen.setdefault(n, []).append(rows)
        return method.client(msg, state, data, turn)

    sim = simulate(method._replace(client=client), world, task, engine="sequential")
    before = [sim.client_data.data(torch.tensor([c])) for c in range(6)]
    play(sim, 3)
    sim.score()
    assert len(seen) == 6
    for rounds in seen.values():
        assert len(rounds) == 3
        assert rounds[0] == rounds[1] == rounds[2]
        assert not set(rounds[0][0]) & set(rounds[0][1])
    test = set(world.test.flat.tolist())
    for client_rows in seen.values():
        assert not (set(client_rows[0][0]) | set(client_rows[0][1])) & test
    for c in range(6):
        after = sim.client_data.data(torch.tensor([c]))
        assert torch.equal(before[c].rows, after.rows)
        assert torch.equal(before[c].val_rows, after.val_rows)


# ---------------------------------------------------------------- defaults that switch a method off

# What makes a method what it is, and the value that switches it off.
OFF = {
    "fedprox": {"mu": 0.0},
    "fedprox-c": {"mu": 0.0},
    "fedsam": {"rho": 0.0},
    "fedavg-c": {"F": 0},
    "fedavg-data": {"beta": 0.0},
    "ditto": {"lam": 0.0},
    "pfedme": {"lam": 0.0},
    "perfedavg-fo": {"alpha": 0.0},
    "perfedavg-hf": {"alpha": 0.0},
    "fedbabu": {"F": 0},
    "fedamp": {"lam": 0.0},
    "heurfedamp": {"lam": 0.0},
    "fedphp": {"lam": 0.0},
    "apple": {"eta2": 0.0},
    "partialfed": {"logit_lr": 0.0},
    "mocha": {"strength": 0.0},
    "scaffold": {"server_lr": 0.0},
    "apfl": {"adaptive": False},
}


@pytest.mark.parametrize("name", OFF)
def test_no_default_switches_a_method_off(name):
    """Guards against mu = 0, beta = 0 or lambda = 0 as a default, as in some public codes."""
    (option, off), *_ = OFF[name].items()
    default = inspect.signature(METHODS[name]).parameters[option].default
    assert default != off
    task, world = task_of(), ragged()
    found = []
    for options in ({}, OFF[name]):
        sim = simulate(make(name, task, **options), world, task)
        play(sim, [[0, 1, 2, 3, 4, 5], [0, 1, 3, 5], [1, 2, 4]])
        found.append({"server": sim.server, "models": models(sim)})
    assert gap(*(one["models"] for one in found)) > 1e-6
    assert not same(*found)


def test_lg_fedavg_and_cfl_are_not_fedavg_by_default_either():
    """LG-FedAvg on a network with more than two blocks; CFL once it may split."""
    task, world = classification(_three), ragged()
    sim = simulate(lg_fedavg(task), world, task)
    fed = simulate(make("fedavg", task, weighting="uniform"), world, task)
    for one in (sim, fed):
        play(one, 2)
    assert gap(models(sim), models(fed)) > 1e-3
    defaults = {k: p.default for k, p in inspect.signature(cfl).parameters.items()}
    assert (defaults["e1"], defaults["e2"], defaults["first_split"]) == (0.4, 1.6, 20)


# -------------------------------------------------------------------------- adaptation on test rows


def _other_test_rows(world: ClientData) -> ClientData:
    x, y = world.x.clone(), world.y.clone()
    x[world.test.flat] += 5.0
    y[world.test.flat] = (y[world.test.flat] + 1) % 3
    return world._replace(x=x, y=y)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factory", [perfedavg_fo, perfedavg_hf], ids=["fo", "hf"])
def test_per_fedavg_adapts_on_training_rows(factory, engine):
    """Guards against adapting on test rows: other test rows must not change any model."""
    task, world = task_of(), ragged()
    found = []
    for one in (world, _other_test_rows(world)):
        sim = simulate(factory(task, alpha=0.5), one, task, engine=engine)
        play(sim, 2)
        found.append(sim)
    assert same(models(found[0]), models(found[1]))
    assert same(*(sim.server for sim in found))
    # the scores see them, the models do not
    assert not torch.equal(found[0].score().test.loss, found[1].score().test.loss)
    assert torch.equal(found[0].score().val.loss, found[1].score().val.loss)
    # other training rows do change the adapted model of their client, at the same global model
    x = world.x.clone()
    rows, n = world.train.at(torch.tensor([1]))
    x[rows[0, : int(n)]] += 1.0
    moved = simulate(factory(task, alpha=0.5), world._replace(x=x), task, engine=engine)
    moved.server, moved.round = found[0].server, found[0].round
    after, before = models(moved), models(found[0])
    assert [gap(after[k], before[k]) > 1e-4 for k in "012345"] == [k == "1" for k in "012345"]
