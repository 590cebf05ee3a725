"""FedCP: each row's features are divided between a head for all and one's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import fedcp
from fedtailor.methods.partial_sharing.fedcp import GATE, gate_of, gates, mmd
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

HERE = "fedtailor.methods.partial_sharing.fedcp"
COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1), ([8.0], 1)]]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise in training either."""
    monkeypatch.setattr(HERE + "._gumbel", lambda key, features: torch.zeros_like(features))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # one feature z = x; heads are 0, so that v = 0, probabilities are 1/2 and nothing but a head
    # has a slope.  o = ReLU(LN(a)): LayerNorm of the two biases is (1, -1) or (-1, 1), or with
    # nearly equal ones less: o = (u, 0) or (0, u); the personal share s = sigmoid(±u) is constant
    #   client 0: slope of W[0] = -(1/2) s mean(1, 3): W = ±s/8, b = ±1/16
    #   client 1: slope of W[0] = s (-5 + 8 + 8)/2/3: W = ∓11 s/48, b = ∓1/48
    # sent are halves; head_G = (2 (s/8, 1/16) + 3 (-11 s/48, -1/48))/5/2 = (-0.04375 s, 0.00625)
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedcp(task, recipe=EIGHTH)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    begun = tree.map(torch.clone, sim.server["shared"])
    o = F.relu(F.layer_norm(begun["fedcp.bias"], (2,)))
    s = float(torch.sigmoid(o[0] - o[1]))
    play(sim)
    own, found = sim.states.rows["own"], sim.server["shared"]
    assert own["head.weight"].flatten().tolist() == near(s / 8, -s / 8, -11 * s / 48, 11 * s / 48)
    assert own["head.bias"].flatten().tolist() == near(1 / 16, -1 / 16, -1 / 48, 1 / 48)
    assert found["head.weight"].flatten().tolist() == near(-0.04375 * s, 0.04375 * s)
    assert found["head.bias"].tolist() == near(0.00625, -0.00625)
    assert float(found["body.weight"]) == near(1.0)
    assert all(torch.allclose(found[name], begun[name]) for name in GATE)
    # x = 2 at client 0: columns of W sum to 0, so that v stays 0 and the gate as it was
    said = method.predict(models(sim)["0"], torch.tensor([[2.0]]))[0]
    first = s * 2 * s / 8 + 1 / 16 + (1 - s) * 2 * -0.04375 * s + 0.00625
    assert said.tolist() == near(first, -first)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm([12]), nn.ReLU())

    def forward(self, z: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        pairs = self.fc(z * v).view(len(z), 2, 6).softmax(1)
        return pairs[:, 0], pairs[:, 1]


def plain_mmd(x: Tensor, y: Tensor) -> Tensor:
    """Pair by pair."""
    kernel = lambda a, b: sum(torch.exp(-((a - b) ** 2).sum() / (2 * w)) for w in (10, 15, 20, 50))
    pairs = [kernel(x[i], x[j]) + kernel(y[i], y[j]) - 2 * kernel(x[i], y[j])
             for i in range(len(x)) for j in range(len(x))]  # fmt: skip
    return torch.stack(pairs).mean()


@pytest.mark.usefixtures("double", "quiet")
def test_a_turn_in_plain_pytorch():
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1)
    data, turn = data_of(ragged(), 2), turn_of(round=2)
    method, initial = fedcp(task, lam=3.0, recipe=recipe), task.init(rng.key(3))
    server = method.init(6, initial, rng.key(1))
    mine = tree.map(lambda p: p + 0.3 * torch.randn_like(p), tree.pick(initial, task.head))
    out = method.client(server, {"own": mine}, data, turn)
    net, old, gate, common = mlp(), mlp(), Gate(), nn.Linear(6, 3)
    net.load_state_dict(initial | mine)
    old.load_state_dict(initial)
    common.load_state_dict({"weight": initial["2.weight"], "bias": initial["2.bias"]})
    with torch.no_grad():
        for own, name in zip(gate.parameters(), GATE, strict=True):
            own.copy_(server["shared"][name])
    v = net[2].weight.detach().sum(0)
    v = v / v.norm()
    step = torch.optim.SGD([*net.parameters(), *gate.parameters()], lr=0.1)
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        x, y = batch.x[real], batch.y[real]
        step.zero_grad()
        z = net[:2](x)
        s, r = gate(z, v)
        loss = F.cross_entropy(net[2](s * z) + common(r * z), y)
        (loss + 3 * plain_mmd(z, old[:2](x).detach())).backward()
        step.step()
    sent = out.upload.mean["shared"]
    for k in ("0.weight", "0.bias"):
        torch.testing.assert_close(sent[k], net.state_dict()[k])
    for own, name in zip(gate.parameters(), GATE, strict=True):
        torch.testing.assert_close(sent[name], own.detach())
    for k in task.head:
        torch.testing.assert_close(out.state["own"][k], net.state_dict()[k])
        torch.testing.assert_close(sent[k], (net.state_dict()[k] + initial[k]) / 2)
    x = data.x[:9]
    z = net[:2](x)
    s, r = gate(z, v)
    torch.testing.assert_close(method.predict(out.model, x), net[2](s * z) + common(r * z))


def test_shares_sum_to_one_and_equal_heads_need_no_gate():
    """With head_k = head_G = (W, b) the logits are W z + 2 b, whatever the gate says."""
    task = task_of()
    method, params, x = fedcp(task), task.init(rng.key(3)), ragged().x[:9]
    gate, toward = gate_of(6, rng.key(8)), torch.randn(6)
    s, r = gates(gate, task.features(params, x), toward)
    torch.testing.assert_close(s + r, torch.ones(9, 6))
    assert float(s.std()) > 1e-3
    head = tree.pick(params, task.head)
    body = tree.drop(params, task.head)
    model = {"body": body, "head": head, "own": head, "gate": gate, "condition": toward}
    torch.testing.assert_close(method.predict(model, x), task.predict(params, x) + params["2.bias"])


def test_mmd():
    one, two = torch.randn(7, 6), torch.randn(7, 6)
    every = torch.ones(7)
    torch.testing.assert_close(mmd(one, two, every), plain_mmd(one, two))
    some = torch.tensor([1.0, 1, 1, 1, 0, 0, 0])
    torch.testing.assert_close(mmd(one, two, some), plain_mmd(one[:4], two[:4]))
    slope = torch.func.grad(mmd)(one, one, every)
    assert float(mmd(one, one, every)) == pytest.approx(0, abs=1e-6)
    assert float(slope.abs().max()) < 1e-6  # as in the first batch of a turn
    assert mmd(one, two, every * 0) == 0
    torch.testing.assert_close(mmd(one[:1], two[:1], every[:1]), plain_mmd(one[:1], two[:1]))


@pytest.mark.parametrize("engine", ENGINES)
def test_tests_are_without_noise_and_training_is_not(engine, monkeypatch):
    task, world = task_of(), ragged()
    sim = simulate(fedcp(task), world, task, engine=engine)
    play(sim)
    one, two = (sim.outputs().test for _ in range(2))
    assert torch.equal(one, two)
    monkeypatch.setattr(HERE + "._gumbel", lambda key, features: torch.zeros_like(features))
    other = simulate(fedcp(task), world, task, engine=engine)
    play(other)
    assert gap(sim.server, other.server) > 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_what_travels(engine):
    """Body, a head and the gate of 2 K² + 6 K numbers; personal heads stay."""
    task = task_of()
    sim = simulate(fedcp(task), ragged(), task, engine=engine)
    for report in play(sim, COHORTS):
        assert report.down.tolist() == report.up.tolist() == [4 * (51 + 108)] * len(report.ids)
    found = models(sim)
    assert same(found["0"]["head"], found["5"]["head"])
    assert not same(found["0"]["own"], found["5"]["own"])


def test_the_global_head_stays_during_a_turn():
    task, data = task_of(), Data.of(ragged().x[:12], ragged().y[:12])
    method, initial = fedcp(task), task.init(rng.key(3))
    server = method.init(1, initial, rng.key(1))
    out = method.client(server, {"own": tree.pick(initial, task.head)}, data, turn_of())
    assert same(out.model["head"], tree.pick(initial, task.head))
    assert not same(out.model["own"], out.model["head"])


@pytest.mark.parametrize("engine", ENGINES)
def test_who_comes_late_or_never_begins_with_the_global_head(engine):
    """Not with the initial one, which nobody uses any more."""
    task, world = task_of(), ragged()
    sim = simulate(fedcp(task), world, task, engine=engine, held_out=torch.tensor([5]))
    play(sim, [[0, 1]] * 2)
    server = tree.pick(sim.server["shared"], task.head)
    found = models(sim)
    for cid in ("3", "5"):
        assert same(found[cid]["own"], server)
        assert same(found[cid]["head"], server)
    v = server["2.weight"].sum(0)
    torch.testing.assert_close(found["5"]["condition"], v / v.norm())
    assert not same(found["0"]["own"], server)
    assert gap(server, tree.pick(sim.initial, task.head)) > 1e-3


def test_a_head_of_several_layers_is_summed_as_one():
    class Net(nn.Module):
        head_begins = "classifier"

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 5)
            self.classifier = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.body(x))

    task = classification(Net)
    method, initial = fedcp(task), task.init(rng.key(3))
    own = tree.pick(initial, task.head)
    data = Data.of(ragged().x[:12], ragged().y[:12])
    model = method.personal(method.init(1, initial, rng.key(1)), {"own": own}, data, turn_of())
    v = (own["classifier.2.weight"] @ own["classifier.0.weight"]).sum(0)
    torch.testing.assert_close(model["condition"], v / v.norm())


def test_fine_tuning_leaves_the_condition_and_the_global_head():
    """They are no parameters of the client's."""
    task, world = task_of("norm"), ragged()
    sim = simulate(fedcp(task), world, task, held_out=torch.tensor([5]))
    for before, tuned in fine_tuned(sim):
        for name in ("head", "condition"):
            assert gap({"it": tuned[name]}, {"it": before[name]}) < 1e-6
        for name in ("body", "own", "gate"):
            assert not same(tuned[name], before[name])
