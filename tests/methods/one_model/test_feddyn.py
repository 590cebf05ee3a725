"""FedDyn: dynamic regularisation."""

from __future__ import annotations

import pytest
import torch

from fedtailor import BadInput
from fedtailor.core import rng, tree
from fedtailor.core.objectives import prox
from fedtailor.core.training import Recipe, fit
from fedtailor.methods import fedavg, feddyn
from fedtailor.methods.parts.robust import CoordinateMedian, with_robust_mean
from fedtailor.methods.parts.server_optimiser import ServerAdam, with_server_optimiser
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
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


def drifts(sim) -> list[float]:
    return sim.states.rows["drift"]["w"].tolist()


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine: str) -> None:
    # n = 1 and 3, so n̄ = 2, α_k = 1/2 2/n_k = 1 and 1/3
    # round 0, w = 0, H = 0:  θ = 1 and 4, mean 2.5;  H = 1 and 4, h = -2.5, w = 2.5 + 2.5
    # round 1, w = 5:
    #   client 0:  5 - 2 + 1 (1 + 0) = 4,    θ = 3;     H = 1 - 2 = -1
    #   client 1:  5 - 8 + 4/3 = -5/3,       θ = 35/6;  H = 4 + 5/6 = 29/6
    #   mean 53/12, h = -5/2 - (53/12 - 5) = -23/12, w = 76/12
    task = one_number()
    sim = simulate(feddyn(task, alpha=0.5, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(5.0)
    assert float(sim.server["drift"]["w"]) == near(-2.5)
    assert drifts(sim) == near(1.0, 4.0)
    play(sim)
    assert drifts(sim) == near(-1.0, 29 / 6)
    assert float(sim.server["drift"]["w"]) == near(-23 / 12)
    assert of_models(sim, "w") == near(76 / 12, 76 / 12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_one_of_two_clients_by_hand(engine: str) -> None:
    # client 1 alone: θ = 4, h = -1/2 4 = -2, w = 6;  tested is θ where that is asked for
    task = one_number()
    for point, tested in (("w", 6.0), ("average", 4.0)):
        method = feddyn(task, eval_point=point, recipe=HALF)
        sim = simulate(method, two_clients(), task, engine=engine)
        play(sim, [[1]])
        assert float(sim.server["params"]["w"]) == near(6.0)
        assert drifts(sim) == near(0.0, 4.0)
        assert of_models(sim, "w") == near(tested, tested)


@pytest.mark.usefixtures("double")
def test_the_second_step_of_a_round_is_pulled_back_by_hand() -> None:
    # α_k = 1 and 1/3;  client 0: 0 -> 1, then 1 - 2 + 1 1 = 0 -> 1
    # client 1: 0 -> 4, then 4 - 8 + 4/3 = -8/3 -> 16/3
    task = one_number()
    recipe = Recipe(batch=0, lr=0.5, epochs=2)
    sim = simulate(feddyn(task, alpha=0.5, recipe=recipe), two_clients(), task)
    play(sim)
    assert drifts(sim) == near(1.0, 16 / 3)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_is_fedprox_and_steps_twice_as_far(engine: str) -> None:
    """All drifts are 0, α_k = α n̄/n_k; with everybody w = 2 θ − w₀."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=2, momentum=0.5)
    method = feddyn(task, alpha=0.3, recipe=recipe)
    sim = simulate(method, world, task, engine=engine)
    first, turn = tree.map(torch.clone, sim.server), turn_of(0, 5)
    for client in (0, 3):
        data = data_of(world, client)
        message = method.send(first, torch.tensor(client), turn)
        state = method.start(message, sim.initial, turn.key)
        mine = method.client(message, state, data, turn).model
        mu = 0.3 * float(world.train.n.double().mean()) / float(data.n)
        given = {"anchor": first["params"]}
        theirs = fit(task, first["params"], data, turn, recipe, loss=prox(task, mu), given=given)
        assert gap(mine, theirs) < 1e-12
    play(sim)
    drift = tree.map(lambda h: h.mean(0), sim.states.rows["drift"])
    w0 = tree.pick(first["params"], drift)
    expected = tree.add(w0, tree.scale(drift, 2))
    assert gap(tree.pick(sim.server["params"], drift), expected) < 1e-12


@pytest.mark.usefixtures("double")
def test_hardly_any_strength_is_fedavgs_local_training() -> None:
    """While there is no drift; with drift, the strength times it is what is left."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=2)
    method, data, turn = feddyn(task, alpha=1e-12, recipe=recipe), data_of(world, 1), turn_of()
    w = task.init(rng.key(3))
    message = {"params": w, "size": torch.tensor(12.0)}
    state = method.start(message, w, turn.key)
    out = method.client(message, state, data, turn)
    assert gap(out.model, fit(task, w, data, turn, recipe)) < 1e-9


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_the_servers_drift_is_minus_the_mean_of_the_clients(engine: str) -> None:
    """Whoever takes part; absent clients keep theirs to the last bit."""
    task, world = task_of("norm"), ragged()
    sim = simulate(feddyn(task, alpha=0.1), world, task, engine=engine)
    for cohort in ([0, 1, 2, 3, 4, 5], [0, 3], [1, 3, 4]):
        before = snapshot(sim)["states"]
        play(sim, [cohort])
        mean = tree.map(lambda h: -h.mean(0), sim.states.rows["drift"])
        assert gap(sim.server["drift"], mean) < 1e-12
        for client in range(6):
            kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
            assert kept == (client not in cohort)


@pytest.mark.usefixtures("double")
def test_it_ends_at_the_optimum_of_all_rows() -> None:
    """Two of four clients a round, unequal sizes: Σ n_k ∇F_k(w) = 0, here the mean of all rows."""
    # FedAvg with cohorts of two wanders between their means
    task = one_number()
    world = rows_of([[1.0], [2.0] * 4, [5.0] * 2, [8.0] * 3])
    best = (1 + 8 + 10 + 24) / 10
    recipe = Recipe(batch=0, lr=0.5, epochs=3)
    ends = []
    for method in (feddyn(task, alpha=0.5, recipe=recipe), fedavg(task, recipe=recipe)):
        sim = simulate(method, world, task, rounds=40)
        play(sim, [[0, 1], [2, 3], [0, 2], [1, 3]] * 10)
        ends.append(float(sim.server["params"]["w"]))
    assert ends[0] == pytest.approx(best, abs=1e-3)
    assert abs(ends[1] - best) > 0.1


@pytest.mark.usefixtures("double")
def test_clients_that_are_held_out_do_not_count() -> None:
    # client 2 never trains: n̄ = 2 and N = 2, as if there were two
    task, world = one_number(), rows_of([[2.0], [7.0, 8.0, 9.0], [100.0] * 50])
    method = feddyn(task, alpha=0.5, recipe=HALF)
    sim = simulate(method, world, task, held_out=torch.tensor([2]))
    play(sim, [[0, 1]] * 2)
    assert float(sim.server["params"]["w"]) == near(76 / 12)


@pytest.mark.usefixtures("double")
def test_a_limit_on_gradients_leaves_the_pull_alone() -> None:
    # ∇F shortened to 1: θ = 1/2 and 1/2; then w = 1:
    #   client 0: -1 + 1 1/2 = -1/2 -> 5/4;  client 1: -1 + 1/6 -> 1 + 5/12
    task = one_number()
    recipe = Recipe(batch=0, lr=0.5, clip=1.0)
    sim = simulate(feddyn(task, alpha=0.5, recipe=recipe), two_clients(), task)
    play(sim, 2)
    assert drifts(sim) == pytest.approx([0.5 + 0.25, 0.5 + 5 / 12], abs=1e-5)


def test_bytes() -> None:
    """A model and the mean size down, a model up; the average costs a model more."""
    task = task_of("norm")
    for point, down in (("w", 76), ("average", 151)):
        (report,) = play(simulate(feddyn(task, eval_point=point), ragged(), task))
        assert report.down.tolist() == [4 * down] * 6
        assert report.up.tolist() == [4 * 75] * 6


def test_what_would_break_its_books_is_refused() -> None:
    task = task_of()
    with pytest.raises(BadInput, match=r"a robust mean does not go with .*: leave it out"):
        with_robust_mean(feddyn(task), task, CoordinateMedian())
    with pytest.raises(BadInput, match=r"takes no server optimiser"):
        with_server_optimiser(feddyn(task), task, ServerAdam())
