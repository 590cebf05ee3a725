"""FedAvg: one model for all."""

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import tree
from fedtailor.core.training import Recipe
from fedtailor.engine import ClientData
from fedtailor.methods import fedavg, local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    module_of,
    near,
    of_models,
    one_number,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
    two_clients,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # round 0 from 0:     clients end at 1 and 4;          1/4 * 1 + 3/4 * 4 = 3.25
    # round 1 from 3.25:  clients end at 2.625 and 5.625;  (2.625 + 3 * 5.625) / 4 = 4.875
    task = one_number()
    sim = simulate(fedavg(task, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.25)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.875)
    assert of_models(sim, "w") == near(4.875, 4.875)
    # tested on the validation rows 3 and 6: 1.875²/2 and 1.125²/2
    assert sim.score().val.loss.tolist() == near(1.7578125, 0.6328125)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand_with_uniform_weights(engine):
    # round 0: (1 + 4) / 2 = 2.5;  round 1: ((2.5 + 2)/2 + (2.5 + 8)/2) / 2 = (2.25 + 5.25)/2 = 3.75
    task = one_number()
    method = fedavg(task, weighting="uniform", recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim, 2)
    assert float(sim.server["params"]["w"]) == near(3.75)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_shares_of_the_cohort(engine):
    # means 2 (one row), 8 (three rows), 100 (four rows); only the first two take part
    task = one_number()
    world = rows_of([[2.0], [7.0, 8.0, 9.0], [100.0] * 4])
    sim = simulate(fedavg(task, recipe=HALF), world, task, engine=engine)
    play(sim, [[0, 1]])
    assert float(sim.server["params"]["w"]) == near(3.25)
    play(sim, [[0]])
    assert float(sim.server["params"]["w"]) == near(2.625)


@pytest.mark.parametrize("chunk", [1, 2, 6])
@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_identical_models_average_to_themselves(chunk, weighting):
    """With lr 0 everybody returns what was sent; weights that add up to 1 give it back."""
    task = task_of()
    method = fedavg(task, weighting=weighting, recipe=Recipe(lr=0.0))
    sim = simulate(method, ragged(), task, chunk=chunk)
    play(sim)
    assert gap(sim.server["params"], sim.initial) < 1e-7


@pytest.mark.parametrize("engine", ENGINES)
def test_the_order_of_clients_does_not_matter(engine):
    """On full batches nothing is random, so clients may change their numbers."""
    task, world = task_of(), ragged()
    order = [3, 0, 5, 1, 4, 2]
    lists = [
        [r.numpy() for r in part.flat.split(part.n.tolist())]
        for part in (world.train, world.val, world.test)
    ]
    other = ClientData.of(world.x, world.y, *([part[i] for i in order] for part in lists))
    method = fedavg(task, recipe=Recipe(batch=0))
    one, two = (simulate(method, w, task, engine=engine) for w in (world, other))
    play(one, 3)
    play(two, 3)
    assert gap(one.server, two.server) < 1e-6
    assert gap(one.server["params"], one.initial) > 1e-2


@pytest.mark.parametrize("engine", ENGINES)
def test_one_full_batch_step_is_a_step_on_the_pooled_rows(engine):
    """Against an ordinary module on everybody's rows at once."""
    task, world = task_of(), ragged()
    step = Recipe(batch=0, lr=0.3)
    sim = simulate(fedavg(task, recipe=step), world, task, engine=engine)
    uniform = simulate(fedavg(task, weighting="uniform", recipe=step), world, task, engine=engine)
    play(sim)
    play(uniform)

    module = module_of("mlp", sim.initial)
    rows = world.train.flat
    F.cross_entropy(module(world.x[rows]), world.y[rows]).backward()
    torch.optim.SGD(module.parameters(), lr=0.3).step()
    pooled = {k: v.detach() for k, v in module.state_dict().items()}
    assert gap(sim.server["params"], pooled) < 1e-6
    assert gap(uniform.server["params"], pooled) > 1e-4  # clients are ragged: this must not agree


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_client_is_local(engine):
    """N = 1: exact, one client at a time.

    Mapped over clients, a shared model is multiplied in one piece and states one by one, which may
    round otherwise.
    """
    task, world = task_of(), ragged([23])
    one, two = (simulate(m(task), world, task, engine=engine) for m in (fedavg, local))
    play(one, 3)
    play(two, 3)
    own = tree.index(two.states.rows["own"], 0)
    if engine == "sequential":
        assert same(one.server["params"], own)
    assert gap(one.server["params"], own) < 1e-6
    assert not same(one.server["params"], one.initial)


@pytest.mark.parametrize("engine", ENGINES)
def test_several_batches_and_epochs_as_an_ordinary_optimiser_takes_them(engine):
    """The training itself, momentum and decay included, against `torch.optim` on the same rows."""
    task = one_number()
    # gradient w - x + 0.5 w; two epochs of one batch with the single row 2, momentum 0.5, lr 0.5:
    #   step 1: g = -2                     m = -2      w = 1
    #   step 2: g = -1 + 0.5 = -0.5        m = -1.5    w = 1.75
    # and anew in the next round: g = -0.25 + 0.875 = 0.625; w = 1.4375;
    #   g = -0.5625 + 0.71875 = 0.15625;   m = 0.3125 + 0.15625 = 0.46875;  w = 1.203125
    recipe = Recipe(epochs=2, batch=1, lr=0.5, momentum=0.5, weight_decay=0.5)
    sim = simulate(fedavg(task, recipe=recipe), rows_of([[2.0]]), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(1.75)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(1.203125)
