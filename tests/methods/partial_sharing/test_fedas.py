"""FedAS: a body that is aligned before it is trained, and traces that weigh the mean."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import rng, tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedas, fedper
from fedtailor.methods.partial_sharing import fedas as module
from fedtailor.methods.partial_sharing.fedas import fisher_trace
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
ROWS = [[([1.0], 0), ([3.0], 0)], [([5.0], 0), ([8.0], 1), ([8.0], 1)]]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # z = a x with a = 1, the head is 0. Alignment to own means: client 0 has mean 2, and
    #   ((a - 2)² + (3a - 2)²)/2 has the slope 2: a = 1 - 2/8; client 1 is where its means are
    a = (0.75, 1.0)
    # training, one step of 1/8: with a head of 0 the body stays; client 0 W[0] = 3/32, b[0] = 1/16;
    #   client 1: slopes (-5 + 8 + 8)/2/3 and 1/6: W[0] = -11/48, b[0] = -1/48
    W, b = (3 / 32, -11 / 48), (1 / 16, -1 / 48)
    traces = []
    for k, rows in enumerate(ROWS):
        slopes = []  # of the first logit: its probability, less 1 where the class is the first
        for (x,), y in rows:
            p = 1 / (1 + math.exp(-2 * (W[k] * a[k] * x + b[k])))
            slopes.append((p - (y == 0), x))
        n = len(rows)
        of_w = sum(g * a[k] * x for g, x in slopes) / n
        of_b = sum(g for g, _ in slopes) / n
        of_a = sum(2 * W[k] * g * x for g, x in slopes) / n
        traces.append(2 * of_w**2 + 2 * of_b**2 + of_a**2)
    task = two_layers([[1.0]], [[0.0], [0.0]])
    method = fedas(task, align_lr=0.125, recipe=Recipe(batch=0, lr=0.125))
    sim = simulate(method, labelled(ROWS), task, engine=engine)
    play(sim)
    mean = (traces[0] * a[0] + traces[1] * a[1]) / sum(traces)
    assert float(sim.server["shared"]["body.weight"]) == near(mean)
    for k, own in models(sim).items():  # as training left them, not with the new body
        assert float(own["body.weight"]) == near(a[int(k)])
        assert float(own["head.weight"][0, 0]) == near(W[int(k)])


@pytest.mark.usefixtures("double")
def test_a_turn_in_plain_pytorch():
    """From another body than the client's own: means are the own body's."""
    task, recipe = task_of(), Recipe(epochs=2, batch=8, lr=0.1)
    data, turn = data_of(ragged(), 1), turn_of(round=4)
    method = fedas(task, align_lr=0.05, align_batch=4, recipe=recipe)
    own, received = (task.init(rng.key(i)) for i in (3, 4))
    msg = {"shared": tree.drop(received, task.head)}
    state = {"own": own, "trained": torch.tensor(1.0)}
    out = method.client(msg, state, data, turn)
    net = mlp()
    net.load_state_dict(own)
    rows = data.rows[: int(data.n)]
    x, y = data.x[rows], data.y[rows]
    means = [net[:2](x)[y == c].mean(0).detach() for c in range(3)]
    net.load_state_dict(own | msg["shared"])
    step = torch.optim.SGD(net[0].parameters(), lr=0.05)
    for batch in data.filled(Recipe(batch=4).plan(data, turn.key)):
        real = batch.weight > 0
        z, of = net[:2](batch.x[real]), batch.y[real]
        step.zero_grad()
        parts = [F.mse_loss(z[of == c], means[c].expand_as(z[of == c])) for c in of.unique()]
        torch.stack(parts).sum().backward()
        step.step()
    step = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in data.filled(recipe.plan(data, turn.key)):
        real = batch.weight > 0
        step.zero_grad()
        F.cross_entropy(net(batch.x[real]), batch.y[real]).backward()
        step.step()
    found = dict(net.state_dict())
    assert gap(out.state["own"], found) < 1e-12
    trace = 0.0
    for low in range(0, len(rows), 8):
        net.zero_grad()
        F.cross_entropy(net(x[low : low + 8]), y[low : low + 8]).backward()
        trace += sum(float(p.grad.square().sum()) for p in net.parameters())
    assert float(out.upload.mean["trace"]) == pytest.approx(trace)
    moved = tree.scale(tree.sub(tree.pick(found, msg["shared"]), msg["shared"]), trace)
    assert gap(out.upload.mean["shared"], moved) < 1e-9
    batches = -(-len(rows) // 8)
    mean = fisher_trace(task, found, data, 8, "mean")
    assert float(mean) == pytest.approx(trace / batches)


@pytest.mark.usefixtures("double")
def test_a_trace_grows_with_rows_unless_it_is_a_mean():
    """The same rows twice and four times, in whole batches: as in the authors' code."""
    task, data = task_of(), data_of(ragged(), 1)
    params, rows = task.init(rng.key(3)), data.rows[:16]
    found = {
        over: [
            float(
                fisher_trace(
                    task,
                    params,
                    data._replace(rows=rows.repeat(k), n=torch.tensor(16 * k)),
                    8,
                    over,
                )
            )
            for k in (1, 2, 4)
        ]
        for over in ("sum", "mean")
    }
    one = found["sum"][0]
    assert found["sum"] == pytest.approx([one, 2 * one, 4 * one])
    assert found["mean"] == pytest.approx([one / 2] * 3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_without_alignment_and_with_rows_for_traces_it_is_fedper(engine, monkeypatch):
    """And a factor on all traces changes nothing."""
    task, world, found = task_of("norm"), ragged(), []
    for factor in (1.0, 7.0):
        rows = lambda task, params, data, *how, by=factor: by * data.n
        monkeypatch.setattr(module, "fisher_trace", rows)
        sim = simulate(fedas(task, align_lr=0.0), world, task, engine=engine)
        play(sim, [range(6)] * 2)
        found.append(sim)
    other = simulate(fedper(task), world, task, engine=engine)
    play(other, [range(6)] * 2)
    assert task.buffers  # running statistics have the weights of parameters
    for sim in found:
        assert gap(sim.server["shared"], other.server["shared"]) < 1e-9


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_first_turn_may_go_without_alignment(engine):
    """It moves a body that is the client's own already; from the second turn on it is there."""
    task, world = task_of("norm"), ragged()
    ways = {
        "no": fedas(task, align_first=False),
        "yes": fedas(task),
        "off": fedas(task, align_lr=0.0),
    }
    sims = {k: simulate(method, world, task, engine=engine) for k, method in ways.items()}
    for sim in sims.values():
        play(sim, [[0, 1]])
    own = {k: tree.index(sim.states.rows["own"], 0) for k, sim in sims.items()}
    assert gap(own["no"], own["off"]) < 1e-12
    assert gap(own["yes"], own["off"]) > 1e-4
    for sim in sims.values():
        play(sim, [[0, 3]])
    rows = {k: sim.states.rows["own"] for k, sim in sims.items()}
    apart = lambda k: gap(*(tree.index(rows[name], k) for name in ("no", "off")))
    assert apart(0) > 1e-4  # its second turn
    assert apart(3) < 1e-12  # its first one


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_aligned_body_may_be_tested(engine):
    """Below the own head; who has not trained has the body as received."""
    task, world = task_of(), ragged()
    sims = {}
    for point in ("own", "aligned"):
        method = fedas(task, eval_point=point, align_lr=0.3, recipe=Recipe(lr=0.1))
        sims[point] = simulate(method, world, task, engine=engine)
        play(sims[point], COHORTS[:1])
    own, aligned = (models(sim) for sim in sims.values())
    assert same(*(sim.server for sim in sims.values()))
    body = sims["own"].server["shared"]
    assert same(tree.pick(aligned["0"], task.head), tree.pick(own["0"], task.head))
    assert gap(tree.pick(aligned["0"], body), body) > 1e-4
    assert gap(aligned["0"], own["0"]) > 1e-4
    assert same(tree.pick(aligned["2"], body), body)


@pytest.mark.usefixtures("double")
def test_what_is_tested_aligned_is_where_training_begins():
    """With a rate of 0 it also ends there."""
    task, data, turn = task_of(), data_of(ragged(), 1), turn_of()
    method = fedas(task, eval_point="aligned", align_lr=0.3, recipe=Recipe(lr=0.0))
    own, received = (task.init(rng.key(i)) for i in (3, 4))
    msg = {"shared": tree.drop(received, task.head)}
    state = {"own": own, "trained": torch.tensor(1.0)}
    ends = method.client(msg, state, data, turn).state["own"]
    assert same(method.personal(msg, state, data, turn), ends)
    assert gap(tree.pick(ends, msg["shared"]), msg["shared"]) > 1e-3


def test_traces_that_are_equal_or_all_0_give_the_plain_mean(monkeypatch):
    """Also where clients have unequal numbers of rows."""
    task, world = task_of(), ragged()
    ends = []
    for value in (0.0, 3.0):
        equal = lambda task, params, data, *how, v=value: (v * data.n / data.n).clamp(
            min=module.LEAST
        )
        monkeypatch.setattr(module, "fisher_trace", equal)
        sim = simulate(fedas(task), world, task)
        play(sim)
        bodies = tree.pick(sim.states.rows["own"], sim.server["shared"])
        assert gap(sim.server["shared"], tree.map(lambda p: p.mean(0), bodies)) < 1e-6
        ends.append(sim.server["shared"])
    assert gap(*ends) < 1e-6
    monkeypatch.undo()
    flat = task._replace(losses=lambda outputs, y, weight: 0 * outputs.sum(-1))
    none = fisher_trace(flat, flat.init(rng.key(0)), data_of(world, 1), 8, "sum")
    assert float(none) == pytest.approx(module.LEAST)


@pytest.mark.parametrize("engine", ENGINES)
def test_who_has_not_trained_has_the_received_body_and_the_first_head(engine):
    task, world = task_of(), ragged()
    sim = simulate(fedas(task), world, task, engine=engine)
    first = {k: v.clone() for k, v in models(sim)["2"].items()}
    play(sim, COHORTS[:1])
    before = {k: v.clone() for k, v in sim.server["shared"].items()}
    found = models(sim)
    assert same(tree.pick(found["2"], before), before)
    assert same(tree.pick(found["2"], task.head), tree.pick(first, task.head))
    assert not same(tree.pick(found["0"], before), before)
    assert same(sim.server["shared"], before)  # looking at models writes nothing
