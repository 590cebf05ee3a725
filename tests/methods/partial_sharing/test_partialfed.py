"""PartialFed: each client selects, block by block, what to load from the global model."""

import pytest
import torch

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, local, partialfed
from fedtailor.methods.find import find as find_method
from tests.methods.worlds import (
    ENGINES,
    HALF,
    SIZES,
    gap,
    models,
    near,
    numbers,
    of_models,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    snapshot,
    task_of,
    two_clients,
    two_numbers,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


@pytest.mark.parametrize("engine", ENGINES)
def test_fixed_blocks_by_hand(engine):
    # a is loaded from the global model, b is the client's own; both are trained and averaged
    # round 0:  (1, 1) and (4, 4);  G = (3.25, 3.25)
    # tested now: (3.25, 1) and (3.25, 4)
    # round 1:  client 0: a 3.25 -> 2.625, b 1 -> 1.5;  client 1: a 3.25 -> 5.625, b 4 -> 6
    #   G = (4.875, (1.5 + 18)/4 = 4.875)
    # tested now: (4.875, 1.5) and (4.875, 6)
    task = two_numbers()
    method = partialfed(task, mode="fix", fixed_blocks=1, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "a") == near(3.25, 3.25)
    assert of_models(sim, "b") == near(1.0, 4.0)
    play(sim)
    assert [float(v) for v in sim.server["params"].values()] == near(4.875, 4.875)
    assert of_models(sim, "a") == near(4.875, 4.875)
    assert of_models(sim, "b") == near(1.5, 6.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_selection_by_hand(engine):
    # a loss that is linear, w x, so that its slope in the selection does not depend on the draw:
    #   dL/da = (G - L) x s (1 - s)/τ; with τ = 10^6, s (1 - s) = 1/4, and logit_lr = 4 10^8 it is
    #   a <- a - 100 (G - L) x
    # round 0: G = L = 0, nothing to learn about a = 100, with which every draw is the global model
    #   w = -x/2: -1 and -4
    #   G = (2 (-1) + 6 (-4))/8 = -3.25
    # round 1:
    #   client 0:  G - L = -2.25, a = 100 + 100 2.25 2 = 550: the global model; -3.25 - 1 = -4.25
    #   client 1:  G - L = 0.75, a = 100 - 100 0.75 8 = -500: its own; -4 - 4 = -8
    #   G = (2 (-4.25) + 6 (-8))/8 = -7.0625
    # tested now: client 0 with G, client 1 with its own
    task = numbers({"w": 0.0}, lambda p, x: p["w"] * x)
    method = partialfed(task, logit_lr=4e8, tau_start=1e6, tau_end=1e6, recipe=HALF)
    world = rows_of([[2.0] * 2, [8.0] * 6])
    sim = simulate(_sure(method, 100.0), world, task, engine=engine)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(-1.0, -4.0)
    assert float(sim.server["params"]["w"]) == near(-3.25)
    assert sim.states.rows["logits"].flatten().tolist() == [100.0, 100.0]
    (report,) = play(sim)
    assert sim.states.rows["logits"].flatten().tolist() == pytest.approx([550.0, -500.0], rel=1e-4)
    assert report.notes["selected"].flatten().tolist() == [1.0, 0.0]
    assert sim.states.rows["own"]["w"].tolist() == near(-4.25, -8.0)
    assert float(sim.server["params"]["w"]) == near(-7.0625)
    assert of_models(sim, "w") == near(-7.0625, -8.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
def test_with_all_blocks_loaded_it_is_fedavg(net, engine):
    """s = 1; with the default half of the blocks it is not.

    One after another it is exact. All at once the first step is taken from a mixture of the
    client's own where FedAvg's is everybody's, and products of other shapes round otherwise.
    """
    task, world = task_of(net), ragged()
    plain = simulate(fedavg(task), world, task, engine=engine)
    play(plain, COHORTS)
    for count in (2, 0):
        method = partialfed(task, mode="fix", fixed_blocks=count)
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        # not to the last bit: what is learnt is a change, added to what is selected
        assert (gap(models(sim), models(plain)) < 1e-6) == (count == 2)


def _sure(method, logit):
    """The method with logits so large that every draw selects the same."""

    def start(msg, initial, key):
        state = method.start(msg, initial, key)
        return state | {"logits": torch.full_like(state["logits"], logit)}

    return method._replace(start=start)


def _on_half_b(method):
    """A method that trains on the rows which PartialFed does not select with."""

    def client(msg, state, data, turn):
        mixed = data.shuffle(turn.aside().split()[0].key)
        done = method.client(msg, state, mixed.rest(0.5), turn)
        # it counts with all its rows
        weight = data.n.to(torch.get_default_dtype())
        return done._replace(upload=done.upload._replace(weight=weight))

    return method._replace(client=client)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", ["mlp", "norm"])
@pytest.mark.parametrize("s", [0, 1])
def test_with_a_sure_selection_it_is_fedavg_or_local(s, net, engine):
    """Drawn selections: s = 1 is FedAvg, s = 0 Local, both on half B."""
    task, world = task_of(net), ragged()
    method = partialfed(task, logit_lr=0.0)
    sim = simulate(_sure(method, 1e4 if s else -1e4), world, task, engine=engine)
    host = simulate(_on_half_b(fedavg(task) if s else local(task)), world, task, engine=engine)
    for one in (sim, host):
        play(one, COHORTS)
    assert gap(models(sim), models(host)) < 1e-6
    # what is drawn with even logits is neither
    even = simulate(method, world, task, engine=engine)
    play(even, COHORTS)
    assert gap(models(even), models(host)) > 1e-4  # far above the rounding of 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_trained_is_kept(engine):
    # in round 0 G = L = 0, so it does not matter what is drawn: trained, both are mean/2
    task = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2)
    world = rows_of([[float(x)] * 4 for x in range(2, 10)])
    sim = simulate(partialfed(task, recipe=HALF), world, task, engine=engine)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(*[x / 2 for x in range(2, 10)])


def test_logits_and_weights_learn_from_rows_of_their_own():
    """Halves A and B have no row in common and are all rows together."""
    task, world = task_of(), ragged()
    data = world.data(torch.tensor([1]))
    one = data._replace(rows=data.rows[0], n=data.n[0])
    mixed = one.shuffle(torch.tensor(5))
    a, b = (set(half.rows[: int(half.n)].tolist()) for half in (mixed.first(0.5), mixed.rest(0.5)))
    assert not a & b
    assert a | b == set(one.rows[: int(one.n)].tolist())
    assert len(a) == len(b) == SIZES[1] // 2
    # without a learning rate for the logits, they stay; with one, they move
    for lr in (0.0, 0.1):
        sim = simulate(partialfed(task, logit_lr=lr), world, task)
        play(sim, 3)
        assert bool(sim.states.rows["logits"].any()) == (lr > 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_keep_models_and_logits(engine):
    task, world = task_of("norm"), ragged()
    sim = simulate(partialfed(task), world, task, engine=engine)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_ala_without_blocks_is_the_host(engine):
    task, world = task_of("norm"), ragged()
    found = []
    for method in (partialfed(task), find_method("partialfed+ala")(task, p=0)):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        found.append({"server": sim.server, "models": models(sim)})
    assert same(*found)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_ala_by_hand(engine):
    # everything is loaded, after ALA. own 1 and 4, received 3.25; one step on W from 1, η = 0.1:
    #   client 0:  dL/dW = 1.25 2.25 = 2.8125, W = 0.71875, Θ^ = 2.6171875 -> 2.30859375
    #   client 1:  dL/dW = (-4.75) (-0.75) = 3.5625, W = 0.64375, Θ^ = 3.5171875 -> 5.75859375
    task = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2)
    method = find_method("partialfed+ala")(
        task, mode="fix", fixed_blocks=1, s=100, eta=0.1, max_ala_epochs=1, recipe=HALF
    )
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert of_models(sim, "w") == near(2.6171875, 3.5171875)
    play(sim)
    assert sim.states.rows["own"]["w"].tolist() == near(2.30859375, 5.75859375)


def test_half_a_row_is_not_enough(caplog: pytest.LogCaptureFixture):
    """A client with one row has it for the selection; its weights stay, and a line says so."""
    task, world = numbers({"w": 0.0}, lambda p, x: (p["w"] - x) ** 2 / 2), rows_of([[2.0], [8.0]])
    sim = simulate(partialfed(task, recipe=Recipe(batch=0, lr=0.5)), world, task)
    play(sim, 2)
    assert of_models(sim, "w") == [0.0, 0.0]
    assert "2 of the clients have a single training row" in caplog.text
    caplog.clear()
    simulate(partialfed(task, mode="fix"), world, task)  # nothing is chosen, so all rows train
    assert not caplog.text
