"""FedPAC: a shared body aligned to prototypes, and heads combined for each client."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import rng, tree
from fedtailor.core.method import Upload
from fedtailor.core.training import Recipe
from fedtailor.methods import fedpac, fedrep
from fedtailor.methods.parts.representation import class_sums
from fedtailor.methods.prototypes.fedpac import head_statistics
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
    snapshot,
    task_of,
    turn_of,
    two_layers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
EIGHTH = Recipe(batch=0, lr=0.125)
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1), ([8.0], 1)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = a x with a = 1, the head is 0.  Statistics at the received body:
    #   client 0: h = (2, 0),      V = ((1 + 9)/2 - 4)/2 = 1/2
    #   client 1: h = (5, 16)/3,   V = ((25 + 64 + 64)/3 - 281/9)/3 = 178/27;   |h_0 - h_1|² = 257/9
    # weights of the other: V_own / (V_0 + V_1 + 257/9)
    total = 1 / 2 + 178 / 27 + 257 / 9
    other = (0.5 / total, 178 / 27 / total)
    # heads after one step of 1/8 from probabilities 1/2: client 0 W[0] = 1/8, b[0] = 1/16
    #   client 1: slopes (-5 + 8 + 8)/2/3 and 1/6: W[0] = -11/48, b[0] = -1/48
    W, b = (1 / 8, -11 / 48), (1 / 16, -1 / 48)
    # then the body, with q the probability of the wrong class: slope of a is ∓2 W mean(q x)
    wrong = lambda k, x, sign: 1 / (1 + math.exp(2 * sign * (W[k] * x + b[k])))
    a0 = 1 + 2 * W[0] * (wrong(0, 1, 1) + 3 * wrong(0, 3, 1)) / 2 / 8
    a1 = 1 + 2 * W[1] * (5 * wrong(1, 5, 1) - 2 * 8 * wrong(1, 8, -1)) / 3 / 8
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedpac(task, head_lr=0.125, recipe=EIGHTH)
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    play(sim)
    server = sim.server
    assert float(server["shared"]["body.weight"]) == near((2 * a0 + 3 * a1) / 5)
    assert server["prototypes"].flatten().tolist() == near((4 * a0 + 5 * a1) / 3, 8 * a1)
    assert server["weights"][0].tolist() == near(1 - other[0], other[0])
    assert server["weights"][1].tolist() == near(other[1], 1 - other[1])
    for k in range(2):
        mixed = (1 - other[k]) * W[k] + other[k] * W[1 - k]
        assert server["heads"]["head.weight"][k].flatten().tolist() == near(mixed, -mixed)
    # round 1, client 0 alone: its pull is 2 mean((a x - P[0]) x), beside the loss
    a, P, mixed = (
        float(server["shared"]["body.weight"]),
        float(server["prototypes"][0, 0]),
        models(sim)["0"],
    )
    w, v = float(mixed["head.weight"][0, 0]), float(mixed["head.bias"][0])
    q = [1 / (1 + math.exp(2 * (w * a * x + v))) for x in (1, 3)]
    w, v = w + (q[0] * a + q[1] * 3 * a) / 2 / 8, v + sum(q) / 2 / 8  # the head's step comes first
    q = [1 / (1 + math.exp(2 * (w * a * x + v))) for x in (1, 3)]
    slope = -2 * w * (q[0] + 3 * q[1]) / 2 + ((a - P) + 3 * (3 * a - P))
    play(sim, [[0]])
    assert float(sim.server["shared"]["body.weight"]) == near(a - slope / 8)
    assert float(sim.server["prototypes"][1, 0]) == near(8 * a1)


@pytest.mark.usefixtures("double")
def test_a_turn_in_plain_pytorch():
    """A class that nobody had is pulled to the client's own mean at the received body."""
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1, momentum=0.5)
    data, turn = data_of(ragged(), 1), turn_of(round=4)
    method, initial = fedpac(task, lam=2.0, head_lr=0.3, recipe=recipe), task.init(rng.key(3))
    known, seen = torch.randn(3, 6), torch.tensor([1.0, 0.0, 1.0])
    msg = {
        "shared": tree.drop(initial, task.head),
        "head": tree.pick(initial, task.head),
        "prototypes": known,
        "seen": seen,
    }
    out = method.client(msg, {}, data, turn)
    net = mlp()
    net.load_state_dict(initial)
    rows = data.rows[: int(data.n)]
    x, y = data.x[rows], data.y[rows]
    means = torch.stack([net[:2](x)[y == c].mean(0) for c in range(3)]).detach()
    targets = torch.where(seen[:, None] > 0, known, means)
    one = Recipe(epochs=1, batch=8)
    for part, lr, how, lam in ((net[2], 0.3, one, 0.0), (net[0], 0.1, recipe, 2.0)):
        step = torch.optim.SGD(part.parameters(), lr=lr, momentum=0.5)
        for batch in data.filled(how.plan(data, turn.key)):
            real = batch.weight > 0
            step.zero_grad()
            z = net[:2](batch.x[real])
            pull = F.mse_loss(z, targets[batch.y[real]])
            (F.cross_entropy(net[2](z), batch.y[real]) + lam * pull).backward()
            step.step()
    assert gap(out.model, dict(net.state_dict())) < 1e-12
    z = net[:2](x).detach()
    for c in range(3):
        torch.testing.assert_close(out.upload.each["prototypes"][c], z[y == c].mean(0))


@pytest.mark.usefixtures("double")
def test_statistics_are_those_of_rows():
    """V is the mean squared distance of rows e_y ⊗ z from their mean h, over n."""
    task, data = task_of(), data_of(ragged(), 3)
    params = task.init(rng.key(3))
    h, V = head_statistics(class_sums(task, params, data))
    rows = data.rows[: int(data.n)]
    outer = F.one_hot(data.y[rows], 3)[:, :, None] * task.features(params, data.x[rows])[:, None]
    torch.testing.assert_close(h, outer.mean(0))
    apart = (outer - outer.mean(0)).square().sum((1, 2)).mean()
    torch.testing.assert_close(V, apart / len(rows) + 1e-8)
    # rows of one kind have no variance, and still nobody divides by 0
    once = data._replace(rows=rows[:1].repeat(4), n=torch.tensor(4))
    assert float(head_statistics(class_sums(task, params, once))[1]) == pytest.approx(
        1e-8, rel=1e-3
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_alone_and_without_the_pull_it_is_fedrep(engine):
    """A cohort of one mixes nothing: exact, if its head learns at the body's rate."""
    task, world = task_of("norm"), ragged()
    recipe = Recipe(epochs=2, lr=0.1)
    ways = (
        fedpac(task, lam=0, head_lr=0.1, recipe=recipe),
        fedrep(task, head_epochs=1, recipe=recipe),
        fedpac(task, lam=1, head_lr=0.1, recipe=recipe),
    )
    sims = [simulate(method, world, task, engine=engine) for method in ways]
    for sim in sims:
        play(sim, [[2], [2], [2]])
    ours, theirs, pulled = (models(sim)["2"] for sim in sims)
    assert same(ours, theirs)
    assert gap(pulled, theirs) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_has_no_pull(engine):
    task, world = task_of("norm"), ragged()
    sims = [simulate(fedpac(task, lam=lam), world, task, engine=engine) for lam in (0.0, 9.0)]
    for sim in sims:
        play(sim)
    assert gap(sims[0].server["shared"], sims[1].server["shared"]) < 1e-6
    for sim in sims:
        play(sim)
    assert gap(sims[0].server["shared"], sims[1].server["shared"]) > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_heads_of_absent_clients_stay_and_strangers_get_the_mean(engine):
    task, world = task_of(), ragged()
    sim = simulate(fedpac(task), world, task, engine=engine)
    play(sim, [[0, 1, 3]])
    before = snapshot(sim)["server"]
    mean = before["mean_head"]
    assert same(tree.pick(models(sim)["5"], task.head), mean)
    play(sim, [[1, 2]])
    for k in task.head:
        assert torch.equal(sim.server["heads"][k][0], before["heads"][k][0])
        assert not torch.equal(sim.server["heads"][k][1], before["heads"][k][1])
    weights = sim.records()["head_weights"]
    torch.testing.assert_close(torch.as_tensor(weights).sum(1), torch.ones(6))
    assert float(weights[1, 0]) == 0  # client 0 was not there
    assert float(weights[1, 1]) > 0


def test_fine_tuning_trains_the_head_alone():
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=2, lr=0.1)
    sim = simulate(fedpac(task), world, task, held_out=torch.tensor([5]))
    play(sim, [[0, 1, 3]])
    for cid, tuned in sim.models(recipe, ids=torch.tensor([0, 5])):
        plain = models(sim)[str(cid)]
        learnt = [k for k in tuned if k not in (*task.head, *task.buffers)]
        assert same(tree.pick(tuned, learnt), tree.pick(plain, learnt))
        assert gap(tree.pick(tuned, task.head), tree.pick(plain, task.head)) > 1e-3


@pytest.mark.usefixtures("double")
def test_weights_go_with_their_clients():
    """Another order of uploads gives everyone the same head; small weights are left out."""
    task = task_of()
    method, initial = fedpac(task), task.init(rng.key(0))
    server = method.init(5, initial, rng.key(0))
    ids = torch.tensor([0, 2, 3, 4])
    each = {
        "head": tree.map(lambda p: torch.randn(4, *p.shape), tree.pick(initial, task.head)),
        "shares": torch.cat([torch.randn(3, 3, 6) / 10, 50 + torch.randn(1, 3, 6)]),
        "variance": torch.rand(4) + 0.1,
        "prototypes": torch.randn(4, 3, 6),
        "rows": torch.tensor([[2.0, 0, 1], [1, 0, 0], [4, 0, 4], [0, 0, 9]]),
    }
    mean = {"shared": tree.drop(initial, task.head)}
    order = torch.tensor([2, 0, 3, 1])
    one = method.receive(server, ids, Upload(mean, 1.0, each), turn_of())
    two = method.receive(server, ids[order], Upload(mean, 1.0, tree.index(each, order)), turn_of())
    assert gap(one, two) < 1e-9
    weights = one["weights"][ids][:, ids]
    assert (weights[:3, 3] == 0).all()  # the last is unlike all others
    assert weights[3].tolist() == near(0.0, 0.0, 0.0, 1.0)
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    torch.testing.assert_close(
        one["heads"]["2.bias"][2], torch.tensordot(weights[1], each["head"]["2.bias"], 1)
    )
    # prototypes by rows, and class 1 has none yet
    expected = (
        2 * each["prototypes"][0, 0] + each["prototypes"][1, 0] + 4 * each["prototypes"][2, 0]
    ) / 7
    torch.testing.assert_close(one["prototypes"][0], expected)
    assert one["seen"].tolist() == [1, 0, 1]
