"""SCAFFOLD: control variates against client drift."""

import pytest

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.training import Recipe
from fedtailor.methods import fedavg, scaffold
from tests.methods.worlds import (
    ENGINES,
    HALF,
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
    two_clients,
    with_epochs,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


def _controls(sim) -> list[float]:
    return sim.states.rows["control"]["w"].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_by_hand(engine):
    # round 0, all controls 0:  y = 1 and 4, w = 2.5 with equal weights
    #   c_k = (0 - y)/0.5 = -2 and -8, the gradients at w;  c = -5
    # round 1, w = 2.5:
    #   client 0:  g - c_0 + c = 0.5 + 2 - 5 = -2.5,   y = 3.75;  c_0 = -2 + 5 - 2.5 = 0.5
    #   client 1:  g - c_1 + c = -5.5 + 8 - 5 = -2.5,  y = 3.75;  c_1 = -8 + 5 - 2.5 = -5.5
    #   w = 3.75, c = -5 + (2.5 + 2.5)/2 = -2.5
    task = one_number()
    sim = simulate(scaffold(task, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(2.5)
    assert _controls(sim) == near(-2.0, -8.0)
    assert float(sim.server["control"]["w"]) == near(-5.0)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.75)
    assert _controls(sim) == near(0.5, -5.5)
    assert float(sim.server["control"]["w"]) == near(-2.5)
    assert of_models(sim, "w") == near(3.75, 3.75)


@pytest.mark.parametrize("engine", ENGINES)
def test_means_by_size_by_hand(engine):
    # y = 1 and 4 with weights 1/4 and 3/4: w = 3.25;  c_k = -2 and -8: c = -0.5 - 6 = -6.5
    # round 1:  client 0:  3.25 - 2 + 2 - 6.5 = -3.25, y = 4.875;  client 1:  -4.75 + 8 - 6.5, too
    task = one_number()
    method = scaffold(task, weighting="data", recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(3.25)
    assert float(sim.server["control"]["w"]) == near(-6.5)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.875)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_steps_by_hand(engine):
    # round 0:  y: 0 -> 1 -> 1.5 and 0 -> 4 -> 6;  c_k = -y/(2 0.5) = -1.5 and -6;  c = -3.75
    # round 1, w = 3.75, shifts c - c_k = -2.25 and 2.25:
    #   client 0:  1.75 - 2.25 = -0.5 -> 4;      2 - 2.25 = -0.25 -> 4.125
    #     c_0 = -1.5 + 3.75 + (3.75 - 4.125) = 1.875
    #   client 1:  -4.25 + 2.25 = -2 -> 4.75;    -3.25 + 2.25 = -1 -> 5.25
    #     c_1 = -6 + 3.75 + (3.75 - 5.25) = -3.75
    #   w = 4.6875, c = -3.75 + (3.375 + 2.25)/2 = -0.9375
    task = one_number()
    sim = simulate(scaffold(task, recipe=with_epochs(2, HALF)), two_clients(), task, engine=engine)
    play(sim)
    assert _controls(sim) == near(-1.5, -6.0)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(4.6875)
    assert _controls(sim) == near(1.875, -3.75)
    assert float(sim.server["control"]["w"]) == near(-0.9375)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_part_of_the_clients_by_hand(engine):
    # client 0 alone: c moves by |S|/N = 1/2 of its change -2;  η_s = 1/2: w moves half way to 1
    task = one_number()
    method = scaffold(task, server_lr=0.5, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine)
    play(sim, [[0]])
    assert float(sim.server["params"]["w"]) == near(0.5)
    assert float(sim.server["control"]["w"]) == near(-1.0)
    assert _controls(sim) == near(-2.0, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_round_is_fedavg_and_the_second_is_not(engine):
    """All controls are 0 then: exact, with equal weights."""
    task, world = task_of("norm"), ragged()
    sims = [
        simulate(method, world, task, engine=engine)
        for method in (scaffold(task), fedavg(task, weighting="uniform"))
    ]
    for sim in sims:
        play(sim)
    assert same(sims[0].server["params"], sims[1].server["params"])
    for sim in sims:
        play(sim)
    assert gap(sims[0].server["params"], sims[1].server["params"]) > 1e-4


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(batch=8, epochs=2),
        Recipe(batch=8, last="drop"),
        Recipe(batch=8, last="wrap", epochs=2),
        Recipe(steps=3, batch=4),
        Recipe(batch=0, epochs=3),
        Recipe(batch=8, lr_decay=0.5),
    ],
    ids=str,
)
def test_the_server_control_is_the_mean_of_the_clients(recipe, engine):
    """c = Σ c_k/N as long as it began so, and c_k⁺ is the mean gradient of the steps taken."""
    task, world = task_of(), ragged([9, 40, 13, 24])
    sim = simulate(scaffold(task, recipe=recipe), world, task, engine=engine)
    for cohort in ([0, 1, 2, 3], [0, 2], [1, 2, 3]):
        old = snapshot(sim)
        rate = recipe.lr * recipe.lr_decay**sim.round
        play(sim, [cohort])
        mean = tree.map(lambda p: p.mean(0), sim.states.rows["control"])
        assert gap(sim.server["control"], mean) < 1e-9
        if cohort == [0, 2]:
            # Σ_k (w - y_k)/(K_k η) = Σ_k (c_k⁺ - c_k + c): two clients of known K
            counts = {"steps": [3, 3], "drop": [1, 1], "wrap": [4, 4], "pad": [2, 2]}
            kind = "steps" if recipe.steps else recipe.last
            K = [recipe.epochs] * 2 if recipe.batch == 0 else counts[kind]
            K = [4, 4] if (kind, recipe.epochs, recipe.batch) == ("pad", 2, 8) else K
            drift = tree.map(lambda p: p * 0, old["server"]["control"])
            for client, k in zip(cohort, K, strict=True):
                change = tree.sub(
                    tree.index(sim.states.rows["control"], client),
                    tree.index(old["states"]["control"], client),
                )
                step = tree.scale(tree.add(change, old["server"]["control"]), k * rate)
                drift = tree.add(drift, step)
            moved = tree.sub(old["server"]["params"], sim.server["params"])
            assert gap(tree.scale(drift, 0.5), moved) < 1e-9


def test_full_batches_are_never_short_ones():
    """All rows at once: K = epochs for everybody, in both engines."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, epochs=2, last="drop")
    found = []
    for engine in ENGINES:
        sim = simulate(scaffold(task, recipe=recipe), world, task, engine=engine)
        play(sim)
        found.append(snapshot(sim))
    assert gap(*found) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_without_a_step_keeps_its_control(engine):
    """It has fewer rows than a batch, and short ones are dropped."""
    task, recipe = task_of(), Recipe(batch=8, last="drop")
    sim = simulate(scaffold(task, recipe=recipe), ragged((5, 20, 16)), task, engine=engine)
    play(sim, 3)
    controls = sim.states.rows["control"]
    assert not any(values[0].any() for values in controls.values())
    assert all(values[1].any() for values in controls.values())
    mean = tree.map(lambda values: values.mean(0), controls)
    assert gap(sim.server["control"], mean) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_absent_clients_keep_their_controls(engine):
    task, world = task_of("norm"), ragged()
    sim = simulate(scaffold(task), world, task, engine=engine)
    play(sim)
    before = snapshot(sim)["states"]
    play(sim, [[0, 3]])
    for client in range(6):
        kept = same(tree.index(before, client), tree.index(sim.states.rows, client))
        assert kept == (client not in (0, 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_bytes_are_twice_fedavgs(engine):
    """Model and control; running statistics, 12 of 75 numbers, have no control."""
    for net, sent in (("mlp", 2 * 51), ("norm", 75 + 63)):
        task, world = task_of(net), ragged()
        sim = simulate(scaffold(task), world, task, engine=engine)
        for report in play(sim, COHORTS[:2]):
            assert report.down.tolist() == report.up.tolist() == [4 * sent] * len(report.ids)


def test_it_undoes_client_drift():
    """One number, many local steps: FedAvg stops short of the mean of means, SCAFFOLD does not."""
    # losses of unlike curvature: k (w - x)²/2 with k = x: the optimum of the mean loss is
    # (2 2 + 8 8)/10 = 6.8; FedAvg's fixed point with many steps tends to (2 + 8)/2 = 5
    task = one_number()._replace(
        loss=lambda p, b: ((b.x * (p["w"] - b.x) ** 2 / 2 * b.weight).sum() / b.weight.sum(), {})
    )
    recipe = Recipe(batch=0, lr=0.05, epochs=10)
    ends = []
    for method in (fedavg(task, weighting="uniform", recipe=recipe), scaffold(task, recipe=recipe)):
        sim = simulate(method, rows_of([[2.0], [8.0]]), task)
        play(sim, 20)
        ends.append(float(sim.server["params"]["w"]))
    assert abs(ends[1] - 6.8) < 0.01
    assert abs(ends[0] - 6.8) > 0.5


def test_statistics_are_means_whatever_the_servers_rate():
    """Twice the way from a variance of 1 to one of 0.1 would lead below 0, and to NaN in tests."""
    task, world, recipe = task_of("norm"), ragged(), Recipe(epochs=10, batch=4)
    found = []
    for rate in (1.0, 2.0):
        sim = simulate(scaffold(task, server_lr=rate, recipe=recipe), world, task)
        play(sim)
        found.append(tree.pick(sim.server["params"], task.buffers))
        assert sim.score().test.loss.isfinite().all()
    assert same(*found)


def test_a_rate_of_nothing_is_refused():
    """It is divided by; before, all clients were said to have diverged: "lower --lr"."""
    with pytest.raises(BadInput, match="lr is 0"):
        scaffold(task_of(), recipe=Recipe(lr=0.0))
