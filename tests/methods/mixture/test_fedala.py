"""FedALA, and the part it is made of: adaptive local aggregation (ALA)."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedtailor.core import tree
from fedtailor.core.data import Data
from fedtailor.core.task import Task
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Params, Tree
from fedtailor.methods import fedala, fedavg, local
from fedtailor.methods.parts.start import Start
from tests.methods.worlds import (
    ENGINES,
    HALF,
    Probe,
    ala_alone,
    data_of,
    find,
    gap,
    mlp,
    models,
    near,
    numbers,
    of_models,
    outcome,
    play,
    ragged,
    random_like,
    rows_of,
    same,
    simulate,
    task_of,
    turn_of,
    two_clients,
    two_numbers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5], [0, 1, 2]]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # body a and head b apart, each with gradient (value - mean); p = 1: only b is weighted.
    # round 0: received and own model are the same, nothing to adapt: a = b = 1 and 4; mean 3.25
    # round 1, not started: no convergence within 2 epochs, so 2 steps with eta 0.1 on W, from 1:
    #   b^ = own + (3.25 - own) W,  dW = (b^ - mean) (3.25 - own)
    #   client 0, own 1:  b^ = 3.25,      dW = 1.25 * 2.25 = 2.8125,            W = 0.71875
    #                     b^ = 2.6171875, dW = 0.6171875 * 2.25 = 1.388671875,  W = 0.5798828125
    #                     b^ = 2.304736328125  -> trained (b^ + 2)/2 = 2.1523681640625
    #   client 1, own 4:  b^ = 3.25,      dW = -4.75 * -0.75 = 3.5625,          W = 0.64375
    #                     b^ = 3.5171875, dW = -4.4828125 * -0.75 = 3.362109375, W = 0.3075390625
    #                     b^ = 3.769345703125  -> trained (b^ + 8)/2 = 5.8846728515625
    #   b = (2.1523681640625 + 3 * 5.8846728515625) / 4 = 4.9515966796875;  a as FedAvg: 4.875
    # round 2, started: one step only, W goes on from where it was:
    #   client 0:  b^ = 2.1523681640625 + 2.799228515625 * 0.5798828125 = 3.77559266853
    #              dW = 1.77559266853 * 2.799228515625 = 4.97028962989,     W = 0.08285384951
    #              b^ = 2.38429502224  -> 2.19214751112
    #   client 1:  b^ = 5.8846728515625 - 0.933076171875 * 0.3075390625 = 5.59771548042
    #              dW = -2.40228451958 * -0.933076171875 = 2.24151444328,   W = 0.08338761817
    #              b^ = 5.80686585202  -> 6.90343292601
    #   b = (2.19214751112 + 3 * 6.90343292601) / 4 = 5.72561157229;  a = 5.6875
    task = two_numbers()
    method = fedala(task, s=100, eta=0.1, max_ala_epochs=2, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert [float(v) for v in sim.server["params"].values()] == near(3.25, 3.25)
    assert find(sim.states.rows, "own")["b"].tolist() == near(1.0, 4.0)
    assert find(sim.states.rows, "weight")["b"].tolist() == near(1.0, 1.0)
    assert find(sim.states.rows, "started").tolist() == [False, False]
    # tested with b^ before training, and a as received
    assert of_models(sim, "b") == near(2.304736328125, 3.769345703125)
    assert of_models(sim, "a") == near(3.25, 3.25)
    play(sim)
    assert find(sim.states.rows, "weight")["b"].tolist() == near(0.5798828125, 0.3075390625)
    assert find(sim.states.rows, "started").tolist() == [True, True]
    assert find(sim.states.rows, "own")["b"].tolist() == near(2.1523681640625, 5.8846728515625)
    assert float(sim.server["params"]["a"]) == near(4.875)
    assert float(sim.server["params"]["b"]) == near(4.9515966796875)
    play(sim)
    assert find(sim.states.rows, "weight")["b"].tolist() == near(0.08285384951, 0.08338761817)
    assert find(sim.states.rows, "own")["b"].tolist() == near(2.19214751112, 6.90343292601)
    assert float(sim.server["params"]["a"]) == near(5.6875)
    assert float(sim.server["params"]["b"]) == near(5.72561157229)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_clipped_by_hand(engine):
    # eta = 1 as by default: W = 1 - 2.8125 and 1 - 3.5625, both cut to 0: everybody keeps its own b
    # (1 and 4). At client 0 the next step pushes W up again (b^ = 1 < 2): dW = -1 * 2.25, W = 1 at
    # most; then b^ = 3.25 and W is cut to 0 again: after 2 epochs 1, after 3 epochs 0.
    task = two_numbers()
    for epochs, weight in ((1, [0.0, 0.0]), (2, [1.0, 0.0]), (3, [0.0, 0.0])):
        method = fedala(task, s=100, max_ala_epochs=epochs, recipe=HALF)
        sim = simulate(method, two_clients(), task, engine=engine)
        play(sim, 2)
        assert find(sim.states.rows, "weight")["b"].tolist() == weight


# -------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_switched_off_it_is_fedavg(engine, net):
    """eta = 0 (W stays 1) or p = 0: FedAvg; with the defaults it is not."""
    task, world = task_of(net), ragged()
    average = simulate(fedavg(task), world, task, engine=engine)
    play(average, COHORTS)
    for options in ({"eta": 0.0}, {"eta": 0.0, "p": 2}, {"p": 0}, {}):
        few = {"max_ala_epochs": 5} if options else {}  # W stands still in each of them
        sim = simulate(fedala(task, **options, **few), world, task, engine=engine)
        play(sim, COHORTS)
        if options:
            assert gap(sim.server, average.server) < 1e-6
            assert gap(models(sim), models(average)) < 1e-6
        else:
            assert gap(sim.server, average.server) > 1e-3


def _frozen_at_zero(task: Task) -> object:
    """FedALA over all blocks with W = 0 for ever."""
    method = fedala(task, p=9, eta=0.0)

    def start(msg, initial, key):
        state = method.start(msg, initial, key)
        weight = find(state, "weight")
        weight.update(tree.map(torch.zeros_like, weight))
        return state

    return method._replace(start=start)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_weights_0_it_is_local(engine):
    """W = 0 and p = n: every client goes on from its own model, exact."""
    task, world = task_of(), ragged()
    sims = [simulate(m, world, task, engine=engine) for m in (_frozen_at_zero(task), local(task))]
    for sim in sims:
        play(sim, [list(range(6)), *COHORTS])
    # the received model of round 0 is shared, a state is not: see FedAvg with one client
    if engine == "sequential":
        assert same(*(find(sim.states.rows, "own") for sim in sims))
        assert same(models(sims[0]), models(sims[1]))
    assert gap(models(sims[0]), models(sims[1])) < 1e-6
    plain = simulate(fedala(task), world, task, engine=engine)
    play(plain, [list(range(6)), *COHORTS])
    assert gap(models(plain), models(sims[1])) > 1e-3


def test_with_weights_0_late_clients_are_local_too():
    """From Theta_i = Theta^0: the same where some clients join after round 0."""
    task, world = task_of(), ragged()
    method = _frozen_at_zero(task)
    sims = [simulate(m, world, task, engine="sequential") for m in (method, local(task))]
    for sim in sims:
        play(sim, COHORTS)
    assert same(*(find(sim.states.rows, "own") for sim in sims))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_client_is_local(engine):
    """N = 1: the global model is the own one."""
    task, world = task_of(), ragged([23])
    sims = [simulate(m(task), world, task, engine=engine) for m in (fedala, local)]
    for sim in sims:
        play(sim, 3)
    ours, theirs = (find(sim.states.rows, "own") for sim in sims)
    if engine == "sequential":
        assert same(ours, theirs)
    assert gap(ours, theirs) < 1e-6
    assert not bool(find(sims[0].states.rows, "started"))


# --------------------------------------------------------------------------------- the part itself


def _part(task: Task, batch: int = 10, **options) -> Probe:
    return ala_alone(task, Recipe(batch=batch), **options)


def _memory(part: Probe, received: Params, own: Params, **changes) -> Tree:
    """What a client with this model of its own remembers."""
    return part.start(received, own) | changes


def _adapt(part: Probe, received: Params, memory: Tree, data: Data, key: int = 0) -> Start:
    with torch.no_grad():
        return part.adapt(received, memory, {}, data, turn_of(3, key))


@pytest.mark.parametrize("p", [1, 2])
def test_every_entry_lies_between_own_and_received(p):
    """W in [0, 1], Theta^ between the two models, lower blocks as received; W did move."""
    task, world = task_of(), ragged()
    received = task.init(torch.tensor(1))
    own = random_like(received, seed=1)
    for client in range(4):
        part = _part(task, p=p)
        done = _adapt(part, received, _memory(part, received, own), data_of(world, client))
        weight = done.memory["weight"]
        assert set(weight) == set(task.top(p))
        flat = torch.cat([w.flatten() for w in weight.values()])
        assert flat.min() >= 0
        assert flat.max() <= 1
        assert (flat < 0.9).float().mean() > 0.1
        for name, value in done.params.items():
            low, high = (
                torch.minimum(own[name], received[name]),
                torch.maximum(own[name], received[name]),
            )
            if name in weight:
                assert (value >= low - 1e-7).all()
                assert (value <= high + 1e-7).all()
            else:
                assert torch.equal(value, received[name])
        assert bool(done.memory["started"])


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_of_a_run_stay_in_the_unit_interval_and_move(engine):
    """In a run with default options."""
    task, world = task_of(), ragged()
    sim = simulate(fedala(task), world, task, engine=engine)
    play(sim, 4)
    for weight in find(sim.states.rows, "weight").values():
        assert weight.min() >= 0
        assert weight.max() <= 1
        assert (weight != 1).any(dim=tuple(range(1, weight.ndim))).all()


def test_the_same_model_is_left_alone():
    """Theta_i = Theta: Theta, W and the flag come back as they were."""
    task, world = task_of("norm"), ragged()
    received = task.init(torch.tensor(1))
    # running statistics are nobody's own, they do not count as a difference
    own = received | {"1.running_mean": received["1.running_mean"] + 1}
    part = _part(task, p=2)
    memory = _memory(part, received, own)
    memory["weight"] = tree.map(lambda w: w * 0.25, memory["weight"])
    done = _adapt(part, received, memory, data_of(world, 1))
    assert same(done.params, received)
    left = lambda kept: tree.drop(kept, ["own"])  # which is what the host made of it
    assert same(left(done.memory), left(memory))
    assert not bool(done.memory["started"])


def test_differences_that_cancel_count():
    """The first tensor's differences add up to 0: the models differ all the same."""
    task, world = task_of(), ragged()
    received = task.init(torch.tensor(1))
    own = {k: v.clone() for k, v in received.items()}
    own["0.weight"][0, 0] += 0.5
    own["0.weight"][0, 1] -= 0.5
    part = _part(task, p=2)
    done = _adapt(part, received, _memory(part, received, own), data_of(world, 1))
    assert bool(done.memory["started"])
    assert not same(done.params, received)


@pytest.mark.parametrize("eta", [0.05, 1.0])
def test_one_batch_is_autograd_through_the_weights(eta):
    """W <- clip(W - eta dLoss/dW) with autograd through a + (b - a) W."""
    task, world = task_of(), ragged()
    received = task.init(torch.tensor(1))
    own = random_like(received, seed=2, spread=1.0)
    data = data_of(world, 3)
    part = _part(task, s=100, eta=eta, batch=0, max_ala_epochs=1)
    done = _adapt(part, received, _memory(part, received, own), data)

    weight = {k: torch.ones_like(received[k], requires_grad=True) for k in task.head}
    mixed = received | {k: own[k] + (received[k] - own[k]) * w for k, w in weight.items()}
    rows = data.rows[: int(data.n)]
    F.cross_entropy(functional_call(mlp(), mixed, (data.x[rows],)), data.y[rows]).backward()
    for name, w in weight.items():
        expected = (w - eta * w.grad).clamp(0, 1).detach()
        torch.testing.assert_close(done.memory["weight"][name], expected, rtol=0, atol=1e-6)
        assert (expected != 1).any()
        blend = own[name] + (received[name] - own[name]) * expected
        torch.testing.assert_close(done.params[name], blend, rtol=0, atol=1e-6)


@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_nothing_but_the_result_changes(net):
    """Received and own model, the memory and the data are as before; so are statistics."""
    task, world = task_of(net), ragged()
    received = task.init(torch.tensor(1))
    own = random_like(received, seed=3)
    own |= {k: own[k].abs() for k in task.buffers}
    part = _part(task, p=2)
    given = {"received": received, "memory": _memory(part, received, own)}
    before = tree.map(torch.clone, given)
    done = _adapt(part, received, given["memory"], data_of(world, 1))
    assert same(given, before)
    assert not same(done.memory, before["memory"])
    # the batches pass in training mode, but Theta's running statistics stay Theta's
    assert all(torch.equal(done.params[k], received[k]) for k in task.buffers)


# ------------------------------------------------------- how long W is learnt, counted in its steps


def _ramp() -> Task:
    """Loss b x: every step on a batch of ones moves W by eta (received - own), whatever W is."""
    return numbers({"a": 0.0, "b": 0.0}, lambda p, x: p["b"] * x)


def _steps(done, eta: float) -> int:
    """Steps that W made, with received - own = 1."""
    return round((1 - float(done.memory["weight"]["b"])) / eta)


def _count(rows: int = 10, *, started: bool = False, eta: float = 1e-3, **options) -> int:
    task = _ramp()
    data = data_of(rows_of([[1.0] * rows]), 0)
    own, received = ({k: torch.tensor(v) for k in ("a", "b")} for v in (0.0, 1.0))
    part = _part(task, eta=eta, **options)
    memory = _memory(part, received, own, started=torch.tensor(started))
    return _steps(_adapt(part, received, memory, data), eta)


@pytest.mark.usefixtures("double")
def test_first_until_converged_then_one_epoch():
    """A3 steps 4 and 5: more than `window` epochs and a small spread of losses; after that one."""
    # losses fall by 0.001 an epoch, so they have converged as soon as there are enough of them
    assert _count(s=100, batch=0) == 11
    assert _count(s=100, batch=0, window=4) == 5
    assert _count(s=100, batch=0, started=True) == 1
    # no convergence: the limit ends it
    assert _count(s=100, batch=0, threshold=0.0) == 100
    assert _count(s=100, batch=0, threshold=0.0, max_ala_epochs=7) == 7


@pytest.mark.usefixtures("double")
def test_the_spread_is_the_population_standard_deviation_of_the_window():
    """As numpy's `std`, which the authors' code takes."""
    # losses fall by 0.001 an epoch: ten in a row have 0.00287228 (a sample would have 0.00302765)
    assert _count(s=100, batch=0, threshold=0.0029) == 11
    assert _count(s=100, batch=0, threshold=0.0028, max_ala_epochs=30) == 30


@pytest.mark.usefixtures("double")
def test_learnt_on_s_per_cent_of_the_rows():
    """s per cent of the training rows, in batches."""
    for s, batches in ((100, 10), (80, 8), (50, 5), (1, 1)):
        assert _count(s=s, batch=1, started=True) == batches
    assert _count(s=80, batch=3, started=True) == 3  # 3 + 3 + 2 rows
    assert _count(rows=25, batch=10, started=True) == 2  # 80 % of 25 are 20, in batches of 10


@pytest.mark.parametrize("contiguous", [False, True])
def test_the_rows_are_redrawn(contiguous):
    """With rows of different weight, different turns learn different W; the own rows only."""
    task = _ramp()
    world = rows_of([[1e6] * 5, [float(2**i) for i in range(10)], [1e6] * 5])
    own, received = ({k: torch.tensor(v) for k in ("a", "b")} for v in (0.0, 1.0))
    part = _part(task, s=50, eta=1e-4, batch=1, max_ala_epochs=1, contiguous=contiguous)
    memory = _memory(part, received, own)
    found = set()
    for key in range(20):
        done = _adapt(part, received, memory, data_of(world, 1), key)
        total = round((1 - float(done.memory["weight"]["b"])) / 1e-4)
        assert total.bit_count() == 5  # five different rows
        assert total < 2**10  # none of a neighbour's
        if contiguous:
            assert bin(total)[2:].rstrip("0") == "1" * 5
        found.add(total)
    assert len(found) > 3


def test_blocks_are_counted_from_the_output():
    """P counts blocks; there are two, and more than there are is all of them."""
    task, world = task_of(), ragged()
    for p, names in ((1, task.head), (2, task.top(2)), (7, task.top(2))):
        sim = simulate(fedala(task, p=p), world, task)
        assert set(find(sim.states.rows, "weight")) == set(names)


def test_each_client_starts_when_it_first_has_something_to_adapt():
    """The flag is the client's own, not the round's."""
    task, world = task_of(), ragged()
    sim = simulate(fedala(task), world, task)
    flags = []
    for cohort in ([0, 1], [0, 2], [0, 2]):
        play(sim, [cohort])
        flags.append(find(sim.states.rows, "started").tolist())
    # round 0: same models; round 1: client 0 adapts, and client 2, which comes late with the
    # common initial model for its own
    assert [f[0] for f in flags] == [False, True, True]
    assert [f[2] for f in flags] == [False, True, True]
    assert [f[1] for f in flags] == [False, False, False]


def test_evaluation_adapts_without_leaving_a_trace():
    """W and the flag are those of training only."""
    task, world = task_of(), ragged()
    sim = simulate(fedala(task), world, task)
    play(sim)
    before = outcome(sim)
    sim.score()
    assert same(outcome(sim), before)
    assert not find(sim.states.rows, "started").any()
    # yet the tested models are adapted ones
    assert not any(same(m, sim.server["params"]) for m in models(sim).values())


def test_ala_learns_in_batches_of_the_recipe():
    task, world = task_of(), ragged()
    sims = [simulate(fedala(task, recipe=Recipe(batch=b)), world, task) for b in (10, 5)]
    for sim in sims:
        play(sim)
        # from the same point: only ALA's own batches are left to differ
        sim.server = sims[0].server
        find(sim.states.rows, "own").update(find(sims[0].states.rows, "own"))
    assert not same(*map(models, sims))
