"""FedProto: features are pulled to prototypes, which are all that travels."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core import rng
from fedtailor.core.data import Data
from fedtailor.core.errors import BadInput
from fedtailor.core.form import Form
from fedtailor.core.method import Upload
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.core.tree import index
from fedtailor.engine import Simulation
from fedtailor.methods import fedproto, local
from fedtailor.methods.parts.representation import class_sums
from fedtailor.methods.parts.robust import CoordinateMedian, with_max_norm, with_robust_mean
from fedtailor.models import build
from tests.methods.worlds import (
    ENGINES,
    data_of,
    gap,
    labelled,
    mlp,
    models,
    near,
    play,
    ragged,
    same,
    simulate,
    task_of,
    turn_of,
    two_layers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1)]]


# ---------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("weighting", "first"), [("uniform", 3.5), ("data", 3.0)])
def test_two_clients_by_hand(engine, weighting, first):
    # z = a x with a = 1, and the head is 0: in round 0 nothing pulls, and the body has no slope
    # prototypes of the trained models: 2 (of two rows) and 5, 8
    #   P[0] = (2 + 5)/2 = 3.5, or (1 + 3 + 5)/3 = 3 by rows;  P[1] = 8
    # heads after one step, with probabilities 1/2:
    #   client 0: W = ±(1/2)(1 + 3)/2/8 = ±1/8, b = ±1/16
    #   client 1: slope of W[0] = (-1/2 5 + 1/2 8)/2 = 3/4: W = ∓3/32, b = 0
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedproto(task, weighting=weighting, recipe=EIGHTH)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    play(sim)
    assert sim.server["prototypes"].flatten().tolist() == near(first, 8.0)
    assert sim.server["seen"].tolist() == [1.0, 1.0]
    own = sim.states.rows["own"]
    assert own["head.weight"].flatten().tolist() == near(1 / 8, -1 / 8, -3 / 32, 3 / 32)
    assert own["head.bias"].flatten().tolist() == near(1 / 16, -1 / 16, 0.0, 0.0)
    assert own["body.weight"].flatten().tolist() == [1.0, 1.0]
    # round 1, client 0: the wrong class has q(x) = 1/(1 + exp(2 (x/8 + 1/16)))
    #   slope of a: CE -mean(q x)/4, pull mean(2 (x - P[0]) x)
    play(sim, [[0]])
    q = [1 / (1 + math.exp(2 * (x / 8 + 1 / 16))) for x in (1, 3)]
    slope = -(q[0] + 3 * q[1]) / 8 + ((1 - first) * 1 + (3 - first) * 3)
    a = 1 - slope / 8
    assert sim.states.rows["own"]["body.weight"].flatten().tolist() == near(a, 1.0)
    # class 1, which client 0 lacks, keeps its prototype
    assert sim.server["prototypes"].flatten().tolist() == near(2 * a, 8.0)


def test_prediction_by_hand():
    # z = 6 of client 1 lies at distances 2.5 and 2 from 3.5 and 8
    task = two_layers([[1.0]], [[0.0], [0.0]])
    methods = {p: fedproto(task, predict=p, recipe=EIGHTH) for p in ("nearest", "own_nearest")}
    sims = {p: simulate(m, labelled(ROWS), task) for p, m in methods.items()}
    for sim in sims.values():
        play(sim)
    said = {p: [sims[p].method.predict(m, torch.tensor([[6.0]])).flatten().tolist()
                for m in models(sims[p]).values()] for p in sims}  # fmt: skip
    assert said["nearest"] == [near(-6.25, -4.0)] * 2
    assert said["own_nearest"] == [near(-6.25, -1e9), near(-6.25, -4.0)]  # client 0 lacks class 1
    # far away, too, an absent class does not win
    assert int(sims["own_nearest"].method.predict(models(sims["own_nearest"])["0"],
               torch.tensor([[5000.0]])).argmax()) == 0  # fmt: skip


# ------------------------------------------------------------------------- against plain PyTorch


@pytest.mark.usefixtures("double")
def test_a_turn_in_plain_pytorch():
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1)
    data, turn = data_of(ragged(), 1), turn_of()
    method, initial = fedproto(task, lam=3.0, recipe=recipe), task.init(rng.key(3))
    targets, seen = torch.randn(3, 6), torch.tensor([1.0, 0.0, 1.0])
    out = method.client({"prototypes": targets, "seen": seen}, {"own": initial}, data, turn)
    net = mlp()
    net.load_state_dict(initial)
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        x, y = batch.x[real], batch.y[real]
        step.zero_grad()
        z = net[:2](x)
        # a row of a class without a prototype is its own target, as in the authors' code
        goal = torch.where(seen[y][:, None] > 0, targets[y], z.detach())
        (F.cross_entropy(net[2](z), y) + 3 * F.mse_loss(z, goal)).backward()
        step.step()
    assert gap(out.state["own"], dict(net.state_dict())) < 1e-12
    rows = data.rows[: int(data.n)]
    z, y = net[:2](data.x[rows]).detach(), data.y[rows]
    for c in range(3):
        torch.testing.assert_close(out.upload.mean["features"][c], z[y == c].mean(0))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("recipe", [Recipe(epochs=2, batch=8, lr=0.1), Recipe(steps=3, batch=8)])
def test_running_prototypes_in_plain_pytorch(recipe):
    """Features of the last epoch's batches (of all steps, without epochs), each before its step."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of()
    initial, targets = task.init(rng.key(3)), torch.randn(3, 6)
    given = {"prototypes": targets, "seen": torch.ones(3)}
    told = {
        (way, weighting): fedproto(
            task, lam=3.0, proto_from=way, weighting=weighting, recipe=recipe
        ).client(given, {"own": initial}, data, turn)
        for way, weighting in (("running", "uniform"), ("running", "data"), ("after", "uniform"))
    }
    running, by_rows, after = told.values()
    assert gap(running.state, after.state) < 1e-12  # training is the same
    net, met = mlp(), []
    net.load_state_dict(initial)
    step = torch.optim.SGD(net.parameters(), lr=recipe.lr)
    for batch in data.filled(recipe.plan(data, turn.key)):
        x, y = batch.x[batch.weight > 0], batch.y[batch.weight > 0]
        step.zero_grad()
        z = net[:2](x)
        met.append((z.detach(), y))
        (F.cross_entropy(net[2](z), y) + 3 * F.mse_loss(z, targets[y])).backward()
        step.step()
    last = met if recipe.steps else met[len(met) // 2 :]
    z, y = (torch.cat(part) for part in zip(*last, strict=True))
    for c in range(3):
        torch.testing.assert_close(running.upload.mean["features"][c], z[y == c].mean(0))
        torch.testing.assert_close(by_rows.upload.mean["features"][c], z[y == c].sum(0))
    assert by_rows.upload.mean["rows"].tolist() == y.bincount(minlength=3).tolist()
    assert gap(running.upload.mean, after.upload.mean) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_running_prototypes_by_hand(engine):
    # z = x at first, one batch: means of what the step began with, 2 and 5, 8; then with the a of
    # client 0 after round 1 (see above) it is still the means before that step: a = 1 gives 2
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedproto(task, proto_from="running", recipe=EIGHTH)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    play(sim)
    assert sim.server["prototypes"].flatten().tolist() == near(3.5, 8.0)
    play(sim, [[0]])
    a = float(sim.states.rows["own"]["body.weight"].flatten()[0])
    assert a != pytest.approx(1.0, abs=0.01)
    assert sim.server["prototypes"].flatten().tolist() == near(2.0, 8.0)
    play(sim, [[0]])
    assert sim.server["prototypes"].flatten().tolist() == near(2 * a, 8.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_running_without_the_pull_is_training_alone(engine):
    task, world = task_of("norm"), ragged()
    recipe = Recipe(epochs=2)
    ways = (
        fedproto(task, lam=0, predict="head", proto_from="running", recipe=recipe),
        local(task, recipe=recipe),
    )
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(*map(models, sims))


# ------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_pull_models_are_those_of_training_alone(engine):
    """Exact; and with the pull they are not."""
    task, world = task_of("norm"), ragged()
    ways = (fedproto(task, lam=0, predict="head"), local(task), fedproto(task, predict="head"))
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, COHORTS)
    assert same(models(sims[0]), models(sims[1]))
    assert gap(models(sims[2]), models(sims[1])) > 1e-3


def test_the_pull_does_not_touch_the_head():
    """After one step from the same point, heads are the same for every strength, bodies not."""
    task, data, recipe = task_of(), data_of(ragged(), 1), Recipe(batch=0, lr=0.1)
    initial = task.init(rng.key(3))
    given = {"prototypes": torch.ones(3, 6), "seen": torch.ones(3)}
    ends = [
        fedproto(task, lam=lam, recipe=recipe).client(given, {"own": initial}, data, turn_of())
        for lam in (0.5, 5.0)
    ]
    one, two = (end.state["own"] for end in ends)
    assert all(torch.equal(one[k], two[k]) for k in task.head)
    assert not torch.allclose(one["0.weight"], two["0.weight"], atol=1e-3)


@pytest.mark.parametrize("weighting", ["uniform", "data"])
def test_clients_without_a_class_leave_its_prototype_alone(weighting):
    task = task_of()
    method = fedproto(task, weighting=weighting)
    server = {"prototypes": torch.randn(3, 6), "seen": torch.tensor([1.0, 1, 0])}
    features, rows = (
        torch.randn(4, 3, 6),
        torch.tensor([[2.0, 0, 0], [1, 0, 0], [0, 0, 5], [0] * 3]),
    )
    features = features * (rows[..., None] > 0)

    def after(ids: list[int]) -> dict:
        mean = {"features": features[ids].mean(0), "rows": rows[ids].mean(0)}
        return method.receive(server, torch.tensor(ids), Upload(mean), turn_of())

    torch.testing.assert_close(after([0, 1])["prototypes"][0], after([0, 1, 2, 3])["prototypes"][0])
    assert torch.equal(after([0, 1, 2])["prototypes"][1], server["prototypes"][1])
    assert after([0, 1])["seen"].tolist() == [1, 1, 0]
    assert after([2, 3])["seen"].tolist() == [1, 1, 1]
    losing = fedproto(task, keep=False)
    lost = losing.receive(
        server, torch.tensor([2]), Upload(index({"features": features, "rows": rows}, 2)), turn_of()
    )
    assert lost["seen"].tolist() == [0, 0, 1]


@pytest.mark.usefixtures("double")
def test_by_rows_prototypes_are_the_pooled_class_means():
    """The rows of one client at three clients, with models that do not move."""
    task, still = task_of(), Recipe(lr=0.0)
    world = ragged([12, 12, 12])
    sims = simulate(fedproto(task, weighting="data", recipe=still), world, task)
    play(sims)
    rows = world.train.flat
    pooled = class_sums(task, sims.initial, Data.of(world.x[rows], world.y[rows]))
    torch.testing.assert_close(sims.server["prototypes"], pooled.means)
    alike = simulate(fedproto(task, weighting="uniform", recipe=still), world, task)
    play(alike)
    assert not torch.allclose(alike.server["prototypes"], pooled.means, atol=1e-3)


def test_class_means_are_traced_like_training(caplog):
    """Clients with convolutions are trained one at a time on a CPU, which maps nothing."""
    form = Form("image", (1, 4, 4), 3)
    task = classification(lambda: build("cnn", form))
    world = ragged()
    images = (world.x[:, :1, None, None].expand(-1, 1, 4, 4) > 0).to(torch.uint8)
    sim = simulate(fedproto(task), world._replace(x=images), task, loop_mode="traced")
    play(sim)
    assert "is run as it is" not in caplog.text


def test_equal_clients_have_equal_prototypes():
    task = task_of()
    rows = [(x.tolist(), int(y)) for x, y in zip(ragged().x[:9], ragged().y[:9], strict=True)]
    sim = simulate(fedproto(task, recipe=Recipe(batch=0)), labelled([rows] * 3), task)
    play(sim, 2)
    own = class_sums(task, index(sim.states.rows["own"], 1), data_of(labelled([rows]), 0))
    torch.testing.assert_close(sim.server["prototypes"] * own.seen[:, None], own.means)


# ----------------------------------------------------------------------------------------- at work


def test_no_other_rule_takes_the_place_of_sums_over_counts():
    task = task_of()
    for wrapped in (
        lambda: with_robust_mean(fedproto(task), task, CoordinateMedian()),
        lambda: with_max_norm(fedproto(task), task, 1.0),
    ):
        with pytest.raises(BadInput, match="prototypes are sums of features over numbers of rows"):
            wrapped()


@pytest.mark.parametrize("engine", ENGINES)
def test_only_prototypes_travel(engine):
    """3 classes x (6 features and a count), whatever the network."""
    for net in ("mlp", "norm"):
        task = task_of(net)
        sim = simulate(fedproto(task), ragged(), task, engine=engine)
        for report in play(sim, COHORTS[:2]):
            assert report.down.tolist() == report.up.tolist() == [4 * 21] * len(report.ids)


def test_until_there_is_a_prototype_the_head_predicts():
    task, world = task_of(), ragged()
    sim = simulate(fedproto(task), world, task)
    model = models(sim)["0"]
    torch.testing.assert_close(
        sim.method.predict(model, world.x[:5]), task.predict(sim.initial, world.x[:5])
    )


@pytest.mark.usefixtures("double")
def test_fine_tuning_is_pulled_to_prototypes_that_stay():
    """Also who was held out, from the initial model; with the head as its model, it is not."""
    task, world, recipe = task_of(), ragged(), Recipe(epochs=2, batch=0, lr=0.1)
    sim = simulate(fedproto(task, lam=3.0), world, task, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 3]])
    ((_, tuned),) = sim.models(recipe, ids=torch.tensor([5]))
    assert torch.equal(tuned["prototypes"], sim.server["prototypes"])
    net, data = mlp(), data_of(world, 5)
    net.load_state_dict(sim.initial)
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data.x[data.rows[: int(data.n)]], data.y[data.rows[: int(data.n)]]
    goal, seen = sim.server["prototypes"][y], sim.server["seen"][y]
    for _ in range(2):
        step.zero_grad()
        z = net[:2](x)
        pull = ((z - goal).square().mean(1) * seen).mean()
        (F.cross_entropy(net[2](z), y) + 3 * pull).backward()
        step.step()
    assert gap(tuned["params"], dict(net.state_dict())) < 1e-12
    assert fedproto(task, predict="head").finetune is None


def test_networks_of_unlike_bodies_share_prototypes():
    deep = classification(
        lambda: nn.Sequential(
            nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 6), nn.Tanh(), nn.Linear(6, 3)
        )
    )
    small, world = task_of(), ragged()
    one, two = (fedproto(task, networks=(deep, small)) for task in (deep, small))
    others = [(two, small, torch.tensor([1, 3]))]
    sim = Simulation(one, world, deep, others=others, rounds=5)
    for _ in range(2):
        sim.step(torch.arange(6))
    assert sim.server["seen"].tolist() == [1, 1, 1]
    assert sim.outputs().test.isfinite().all()
    with pytest.raises(BadInput, match="features of one width, but networks have 12 and 6"):
        wide = classification(lambda: nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 3)))
        fedproto(wide, networks=(deep, wide))
