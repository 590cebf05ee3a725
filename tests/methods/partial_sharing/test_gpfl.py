"""GPFL: features for all and for oneself, bent by class embeddings that all learn."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtailor.core import rng, tree
from fedtailor.core.training import Recipe
from fedtailor.methods import gpfl
from fedtailor.methods.partial_sharing.gpfl import PARTS, TABLE, VALVES, bent, valves
from tests.methods.worlds import (
    ENGINES,
    data_of,
    fine_tuned,
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
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1), ([8.0], 1)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # one feature z = a x > 0, a = 1: LayerNorm of one number is its shift, so γ = β = 0 at first,
    # and a cosine is ±1 with no slope.  The head is 0: no slope of the loss reaches features.
    # What moves: λ |z - T[y]| with r_b = z_b - T[y_b] and R = √Σ r²: slopes λ Σ r x/R of a and of
    # γ's shift (z = x), λ Σ r/R of β's shift; the table and all else of the valve decay by μ/8
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = gpfl(task, lam=0.5, mu=0.1, recipe=EIGHTH)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    begun = tree.map(torch.clone, sim.server["shared"])
    T = begun[TABLE].flatten().tolist()
    play(sim)
    ends, n = [], (2, 3)
    for rows in ROWS:
        r = [x[0] - T[y] for x, y in rows]
        R = math.sqrt(sum(one**2 for one in r))
        along = sum(one * x[0] for one, (x, _) in zip(r, rows, strict=True)) / R
        ends.append((1 - 0.5 * along / 8, -0.5 * along / 8, -0.5 * sum(r) / R / 8))
    a, gamma, beta = ((n[0] * p + n[1] * q) / 5 for p, q in zip(*ends, strict=True))
    found = sim.server["shared"]
    assert float(found["body.weight"]) == near(a)
    assert float(found["gpfl.gamma.shift"]) == near(gamma)
    assert float(found["gpfl.beta.shift"]) == near(beta)
    for name in (TABLE, "gpfl.gamma.weight", "gpfl.beta.scale"):
        assert found[name].flatten().tolist() == pytest.approx(
            (begun[name] * (1 - 0.0125)).flatten().tolist(), rel=1e-4
        )
    # heads learn from probabilities 1/2, as alone: client 0 W = ±1/8, client 1 W = ∓11/48
    own = sim.states.rows["own"]["head.weight"].flatten().tolist()
    assert own == near(1 / 8, -1 / 8, -11 / 48, 11 / 48)
    # x = 2 at client 0: f = ReLU((1 + γ) 2 a + β), logits ±(f/8 + 1/16)
    f = (1 + gamma) * 2 * a + beta
    logits = method.predict(models(sim)["0"], torch.tensor([[2.0]]))[0].tolist()
    assert logits == near(f / 8 + 1 / 16, -f / 8 - 1 / 16)


class Valve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm([6]))
        self.beta = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm([6]))

    def forward(self, z: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return F.relu((1 + self.gamma(condition)) * z + self.beta(condition))


@pytest.mark.usefixtures("double")
def test_a_turn_in_plain_pytorch():
    """With an optimiser for each part, of which two decay weights."""
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.05)
    data, turn = data_of(ragged(), 1), turn_of(round=2)
    method, initial = gpfl(task, lam=0.3, mu=0.2, recipe=recipe), task.init(rng.key(3))
    server = method.init(6, initial, rng.key(1))
    out = method.client(server, {"own": tree.pick(initial, task.head)}, data, turn)
    net, valve, table = mlp(), Valve(), nn.Embedding(3, 6)
    net.load_state_dict(initial)
    with torch.no_grad():
        table.weight.copy_(server["shared"][TABLE])
        names = [f"{v}.{part}" for v in VALVES for part in PARTS]
        for own, name in zip(valve.parameters(), names, strict=True):
            own.copy_(server["shared"][name])
    frozen = table.weight.detach().clone()
    counts = torch.bincount(data.y[data.rows[: int(data.n)]], minlength=3).double()
    common, personal = frozen.mean(0), (counts / counts.sum()) @ frozen
    steps = [
        torch.optim.SGD(net.parameters(), lr=0.05),
        torch.optim.SGD([*table.parameters(), *valve.parameters()], lr=0.05, weight_decay=0.2),
    ]
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        x, y = batch.x[real], batch.y[real]
        for step in steps:
            step.zero_grad()
        z = net[:2](x)
        for_all, for_one = valve(z, common), valve(z, personal)
        angles = F.normalize(for_all) @ F.normalize(table.weight).T
        loss = F.cross_entropy(net[2](for_one), y) + F.cross_entropy(angles, y)
        (loss + 0.3 * torch.norm(for_all - frozen[y])).backward()
        for step in steps:
            step.step()
    sent = out.upload.mean["shared"]
    assert (
        gap(
            tree.pick(sent, ["0.weight", "0.bias"]),
            {k: net.state_dict()[k] for k in ("0.weight", "0.bias")},
        )
        < 1e-9
    )
    torch.testing.assert_close(sent[TABLE], table.weight.detach(), rtol=1e-9, atol=1e-9)
    for own, name in zip(valve.parameters(), names, strict=True):
        torch.testing.assert_close(sent[name], own.detach(), rtol=1e-9, atol=1e-9)
    assert gap(out.state["own"], {k: net.state_dict()[k] for k in task.head}) < 1e-9
    x = data.x[:9]
    torch.testing.assert_close(method.predict(out.model, x), net[2](valve(net[:2](x), personal)))


def test_with_equal_classes_both_features_are_the_same():
    task = task_of()
    method, initial = gpfl(task), task.init(rng.key(3))
    server = method.init(2, initial, rng.key(1))
    x = ragged().x
    even = labelled([[(x[i].tolist(), i % 3) for i in range(6)]])
    state = {"own": tree.pick(initial, task.head)}
    model = method.personal(server, state, data_of(even, 0), turn_of())
    gamma, beta = valves(server["shared"], server["shared"][TABLE].mean(0))
    torch.testing.assert_close(model["gamma"], gamma)
    torch.testing.assert_close(model["beta"], beta)
    odd = method.personal(server, state, data_of(ragged(), 1), turn_of())
    assert float((odd["gamma"] - gamma).abs().max()) > 1e-3


def test_a_valve_that_does_nothing_leaves_the_network():
    task = task_of()
    method, params, x = gpfl(task), task.init(rng.key(3)), ragged().x[:9]
    zero = torch.zeros(6)
    plain = method.predict({"params": params, "gamma": zero, "beta": zero}, x)
    z = task.features(params, x).clamp(min=0)
    torch.testing.assert_close(plain, task.split.classify(params, z))
    assert torch.equal(bent(z, zero, zero), z)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_received_table_conditions(engine):
    """What a client uses for its own features comes from the server's table, not from its last."""
    task, world = task_of(), ragged()
    sim = simulate(gpfl(task), world, task, engine=engine)
    play(sim, COHORTS)
    shared = sim.server["shared"]
    data = data_of(world, 0)
    counts = torch.bincount(data.y[data.rows[: int(data.n)]], minlength=3).float()
    gamma, _ = valves(shared, (counts / counts.sum()) @ shared[TABLE])
    torch.testing.assert_close(models(sim)["0"]["gamma"], gamma)
    extra = 3 * 6 + 2 * 36 + 6 * 6
    for report in play(sim, COHORTS[:2]):
        assert report.down.tolist() == report.up.tolist() == [4 * (30 + extra)] * len(report.ids)


@pytest.mark.usefixtures("double")
def test_names_of_classes_do_not_matter():
    """Labels, rows of the table and rows of the head in another order: so is all that is learnt."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of(round=2)
    method, initial = gpfl(task, lam=0.3, recipe=Recipe(epochs=2, batch=8)), task.init(rng.key(3))
    server = method.init(6, initial, rng.key(1))
    own = tree.pick(initial, task.head)
    out = method.client(server, {"own": own}, data, turn)
    order = torch.tensor([2, 0, 1])  # class c is now called order[c]
    back = order.argsort()
    shared = server["shared"] | {TABLE: server["shared"][TABLE][back]}
    turned = method.client(
        {"shared": shared},
        {"own": {k: p[back] for k, p in own.items()}},
        data._replace(y=order[data.y]),
        turn,
    )
    found = turned.upload.mean["shared"]
    assert gap(found | {TABLE: found[TABLE][order]}, out.upload.mean["shared"]) < 1e-9
    assert gap({k: p[order] for k, p in turned.state["own"].items()}, out.state["own"]) < 1e-9


def test_features_at_their_embeddings_have_a_finite_slope():
    # one feature: the valve does nothing at first, so f_G = x; T is where the rows are
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = gpfl(task, lam=1.0, recipe=EIGHTH)
    world = labelled([[([1.0], 0), ([3.0], 1)]])
    server = method.init(1, task.init(rng.key(0)), rng.key(1))
    server["shared"][TABLE] = torch.tensor([[1.0], [3.0]])
    own = {"own": tree.pick(task.init(rng.key(0)), task.head)}
    out = method.client(server, own, data_of(world, 0), turn_of())
    assert all(leaf.isfinite().all() for leaf in tree.leaves(out.upload.mean))


def test_strength_and_decay_matter():
    task, world = task_of(), ragged()
    ends = []
    for options in ({}, {"lam": 0.0}, {"mu": 0.0}):
        sim = simulate(gpfl(task, **options), world, task)
        play(sim, COHORTS)
        ends.append(sim.server)
    assert gap(ends[0], ends[1]) > 1e-5
    assert gap(ends[0], ends[2]) > 1e-3


def test_fine_tuning_leaves_what_the_valve_says():
    """They are no parameters of the client's."""
    task, world = task_of("norm"), ragged()
    sim = simulate(gpfl(task), world, task, held_out=torch.tensor([5]))
    for before, tuned in fine_tuned(sim):
        for name in ("gamma", "beta"):
            assert gap({"it": tuned[name]}, {"it": before[name]}) < 1e-6
        assert not same(tuned["params"], before["params"])
