"""APPLE: every client learns how much of everybody's core model to take."""

import pytest
import torch
from torch.func import grad

from fedtailor.core import rng, tree, wire
from fedtailor.core.errors import BadInput
from fedtailor.core.training import Recipe
from fedtailor.methods import apple, local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    SIZES,
    data_of,
    gap,
    models,
    near,
    of_models,
    one_number,
    play,
    ragged,
    random_like,
    same,
    simulate,
    snapshot,
    task_of,
    two_clients,
)

COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]
SIGMA = 51  # of the net `mlp`


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # p starts at (1/4, 3/4), cores at 0. η1 = 0.5, η2 = 0.1, μ = 1/2; four rounds, L = 1
    # round 0: w = 0, g = -2 and -8; all cores are 0, so p stays
    #   c_0 = 0.5 0.25 2 = 0.25        c_1 = 0.5 0.75 8 = 3
    # tested now: w = 0.25 0.25 + 0.75 3 = 2.3125 for both
    # round 1: p = p0, so there is no pull yet
    #   client 0:  g = 0.3125     c_0 = 0.25 - 0.5 0.25 0.3125 = 0.2109375
    #     p = 0.25 - 0.1 0.3125 0.25 = 0.2421875,  0.75 - 0.1 0.3125 3 = 0.65625
    #   client 1:  g = -5.6875    c_1 = 3 + 0.5 0.75 5.6875 = 5.1328125
    #     p = 0.25 + 0.1 5.6875 0.25 = 0.3921875,  0.75 + 0.1 5.6875 3 = 2.45625
    # round 2: λ = (cos(π 2/4) + 1)/2 = 1/2: the pull is 2 (1/2) (1/2) (p - p0) = (p - p0)/2
    #   client 0:  w = 0.2421875 0.2109375 + 0.65625 5.1328125 = 3.41949462890625
    #     g = 1.41949462890625,  c_0 = 0.2109375 - 0.5 0.2421875 g = 0.03904557228088379
    #     p_00 = 0.2421875 - 0.1 (0.2109375 g - 0.0078125/2) = 0.21263566017150878
    #     p_01 = 0.65625 - 0.1 (5.1328125 g - 0.09375/2) = -0.06766247749328613
    #   client 1:  w = 0.3921875 0.2109375 + 2.45625 5.1328125 = 12.69019775390625
    #     g = 4.69019775390625,  c_1 = 5.1328125 - 0.5 2.45625 g = -0.6273366165161116
    #     p_10 = 0.3921875 - 0.1 (0.2109375 g + 0.1421875/2) = 0.2861442661285401
    #     p_11 = 2.45625 - 0.1 (5.1328125 g + 1.70625/2) = -0.03645306587219199
    task = one_number()
    method = apple(task, eta2=0.1, mu=0.5, L=1.0, recipe=HALF)
    sim = simulate(method, two_clients(), task, engine=engine, rounds=4)
    play(sim)
    assert sim.server["cores"]["w"].tolist() == near(0.25, 3.0)
    assert sim.states.rows["weights"].flatten().tolist() == near(0.25, 0.75, 0.25, 0.75)
    assert of_models(sim, "w") == near(2.3125, 2.3125)
    play(sim)
    assert sim.server["cores"]["w"].tolist() == near(0.2109375, 5.1328125)
    assert sim.states.rows["weights"].flatten().tolist() == near(
        0.2421875, 0.65625, 0.3921875, 2.45625
    )
    play(sim)
    assert sim.server["cores"]["w"].tolist() == near(0.03904557228088379, -0.6273366165161116)
    assert sim.states.rows["weights"].flatten().tolist() == near(
        0.21263566017150878, -0.06766247749328613, 0.2861442661285401, -0.03645306587219199
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_one_hot_and_fixed_it_is_local(engine):
    """η2 = 0 and p_i one-hot: exact; from p0 it is not."""
    task, world = task_of("norm"), ragged()
    alone = simulate(local(task), world, task, engine=engine)
    play(alone, COHORTS)
    usual = apple(task, eta2=0.0)

    def one_hot(msg, initial, key):
        state = usual.start(msg, initial, key)
        return state | {"weights": state["own"]}

    for method in (usual._replace(start=one_hot), usual):
        sim = simulate(method, world, task, engine=engine)
        play(sim, COHORTS)
        equal = method is not usual
        assert same(models(sim), models(alone)) == equal
        cores = sim.states.rows["core"]
        assert same(cores, tree.pick(alone.states.rows["own"], cores)) == equal


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_gradients_are_those_of_the_combination(schedule, engine):
    """c_i <- c_i - η1 p_ii g; p_ij <- p_ij - η2 (<g, c_j> + 2 λ μ (p_ij - p0_j))."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=0, lr=0.3)
    method = apple(task, eta2=0.02, mu=0.7, L=0.4, schedule=schedule, recipe=recipe)
    sim = simulate(method, world, task, engine=engine, rounds=10)
    play(sim)
    # cores and weights that are apart, so that everything has a part in it
    cores = tree.stack([random_like(sim.initial, 20 + i) for i in range(6)])
    sim.server = sim.server | {"cores": cores}
    maker = torch.Generator().manual_seed(0)
    p = torch.rand(6, 6, generator=maker)
    sim.states.rows.update({"core": tree.map(torch.clone, cores), "weights": p.clone()})
    prior = world.train.n / world.train.n.sum()
    torch.testing.assert_close(sim.states.rows["prior"][0], prior)
    fade = (1 + 2**-0.5) / 2 if schedule == "cosine" else 0.001**0.25  # round 1 of the first 4
    play(sim)
    for i in range(6):
        own = data_of(world, i)
        rows = own.rows[: int(own.n)]
        batch = next(own._replace(rows=rows).batches(0, rng.key(0)))
        w = tree.map(lambda c, i=i: torch.tensordot(p[i], c, 1), cores)
        g = grad(lambda q, batch=batch: task.loss(q, batch)[0])(w)
        core = tree.sub(tree.index(cores, i), tree.scale(g, 0.3 * p[i, i]))
        dots = torch.stack([(g[k] * cores[k]).flatten(1).sum(1) for k in g]).sum(0)
        weights = p[i] - 0.02 * (dots + 2 * fade * 0.7 * (p[i] - prior))
        assert gap(tree.index(sim.states.rows["core"], i), core) < 1e-9
        torch.testing.assert_close(sim.states.rows["weights"][i], weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_the_pull_fades_over_the_first_rounds(schedule):
    """λ(t): 1 at first, 0 from L T on: there μ has no part any more."""
    task, world = task_of(), ragged()
    found = {}
    for mu in (0.0, 0.5):
        sim = simulate(apple(task, mu=mu, L=0.3, eta2=0.05, schedule=schedule), world, task)
        sim.round = 3
        play(sim, 2)
        found[mu] = snapshot(sim)
    assert same(found[0.0], found[0.5])
    for mu in (0.0, 0.5):
        sim = simulate(apple(task, mu=mu, L=0.3, eta2=0.05, schedule=schedule), world, task)
        play(sim, 2)
        found[mu] = snapshot(sim)
    assert gap(found[0.0], found[0.5]) > 1e-5


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("M", [0, 2, 5, 9])
def test_bytes(M, engine):
    """min(M, N - 1) cores down, at first all, and one up; prior and own place once: 2 N numbers."""
    task, world = task_of(), ragged()
    sim = simulate(apple(task, M=M), world, task, engine=engine)
    met: set[int] = set()
    for report in play(sim, COHORTS):
        ids = report.ids.tolist()
        usual, first = (min(M, 5) if M else 5) * SIGMA, 5 * SIGMA + 12
        assert report.down.tolist() == [4 * (usual if i in met else first) for i in ids]
        assert report.up.tolist() == [4 * SIGMA] * len(ids)
        met |= set(ids)


def test_who_is_downloaded_is_drawn_anew_and_never_oneself():
    task, world = task_of(), ragged()
    sim = simulate(apple(task, M=2), world, task)
    play(sim)
    drawn = []
    for number in range(40):
        turn = sim._turn(rng.TURN)._replace(key=rng.key(number))
        here = [
            wire.here(
                sim.method.send(sim.server, torch.tensor(c), turn.of(torch.tensor(c)))["cores"]
            )
            for c in range(6)
        ]
        assert all(int(h.sum()) == 2 and not bool(h[c]) for c, h in enumerate(here))
        drawn.append(torch.stack(here))
    often = torch.stack(drawn).sum(0)
    assert int(often[~torch.eye(6, dtype=torch.bool)].min()) > 4  # 16 are expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("M", [0, 2])
def test_absent_clients_are_left_alone(M, engine):
    """State, and core on the server; all weights of who is there move."""
    task, world = task_of("norm"), ragged()
    sim = simulate(apple(task, M=M, eta2=0.01), world, task, engine=engine)
    play(sim)
    for cohort in COHORTS:
        before = snapshot(sim)
        play(sim, [cohort])
        for client in range(6):
            kept = [
                same(tree.index(a, client), tree.index(b, client))
                for a, b in (
                    (before["states"], sim.states.rows),
                    (before["server"]["cores"], sim.server["cores"]),
                )
            ]
            assert kept == [client not in cohort] * 2
            moved = sim.states.rows["weights"][client] != before["states"]["weights"][client]
            assert moved.tolist() == [client in cohort] * 6


def _played_alone(task, world, drawn, rounds, lr, eta2):
    """APPLE in a few lines of plain torch: a client's copies of cores are as it got them last."""
    count, prior = world.clients, world.train.n / world.train.n.sum()
    first = task.init(rng.key(0, rng.INITIAL))
    cores = [dict(first) for _ in range(count)]
    weights = [prior.clone() for _ in range(count)]
    copies = [[first] * count for _ in range(count)]
    for t in range(rounds):
        for i in range(count):
            copies[i] = [cores[j] if drawn[t][i][j] else copies[i][j] for j in range(count)]
        new = list(cores)
        for i in range(count):
            held = [cores[i] if j == i else copies[i][j] for j in range(count)]
            own = data_of(world, i)
            batch = next(own._replace(rows=own.rows[: int(own.n)]).batches(0, rng.key(0)))
            p = weights[i]
            mixed = {k: sum(p[j] * held[j][k] for j in range(count)) for k in first}
            g = grad(lambda q, batch=batch: task.loss(q, batch)[0])(mixed)
            dots = torch.stack([sum((g[k] * c[k]).sum() for k in g) for c in held])
            new[i] = {k: cores[i][k] - lr * p[i] * g[k] for k in g}
            weights[i] = p - eta2 * dots
        cores = new
    return tree.stack(cores), torch.stack(weights)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_core_that_is_not_sent_counts_with_its_last_download(engine):
    """M = 1 of three others; all in the first round. Against a loop in plain torch."""
    task, world = task_of(), ragged(SIZES[:4])
    recipe = Recipe(batch=0, lr=0.3)
    sim = simulate(apple(task, M=1, eta2=0.02, mu=0.0, recipe=recipe), world, task, engine=engine)
    drawn = []
    for _ in range(4):
        turn = sim._turn(rng.TURN)
        sends = [sim.method.send(sim.server, c, turn.of(c))["cores"] for c in torch.arange(4)]
        drawn.append([wire.here(cores).tolist() for cores in sends])
        play(sim)
    assert [sum(flags) for flags in drawn[0]] == [3] * 4
    assert [sum(flags) for flags in drawn[3]] == [1] * 4
    sim_cores, sim_weights = sim.server["cores"], sim.states.rows["weights"]
    cores, weights = _played_alone(task, world, drawn, 4, 0.3, 0.02)
    assert gap(sim_cores, cores) < 1e-12
    assert gap({"p": sim_weights}, {"p": weights}) < 1e-12


def test_cores_are_kept_where_some_are_not_sent_and_only_there():
    task, world = task_of(), ragged()
    for M, kept in ((0, False), (2, True), (5, False)):
        sim = simulate(apple(task, M=M), world, task)
        play(sim)
        assert ("cores" in sim.states.rows) == kept


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_optimisers_that_are_blind_to_the_scale_of_a_gradient_are_refused(optimizer):
    """η2 is a factor on p's gradient: under Adam p would be learnt with η1 whatever η2 is."""
    with pytest.raises(BadInput, match=f"optimizer is {optimizer}"):
        apple(task_of(), recipe=Recipe(optimizer=optimizer))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_weight_decay_is_for_the_core_alone(clip: float):
    """η₂ = 0: the weights stay where they began, whatever the core does and gradients' limit is."""
    task, world = task_of(), ragged()
    recipe = Recipe(batch=8, lr=0.1, weight_decay=0.1, clip=clip)
    sim = simulate(apple(task, eta2=0.0, recipe=recipe), world, task)
    play(sim, 3)
    prior = world.train.n.double() / world.train.n.sum()
    assert gap({"p": sim.states.rows["weights"]}, {"p": prior.expand(6, 6)}) < 1e-12
    plain = simulate(apple(task, eta2=0.0, recipe=Recipe(batch=8, lr=0.1)), world, task)
    play(plain, 3)
    assert gap(sim.server["cores"], plain.server["cores"]) > 1e-3


def test_a_rate_of_the_weights_without_one_of_the_core_is_refused():
    with pytest.raises(BadInput, match="lr is 0"):
        apple(task_of(), eta2=0.01, recipe=Recipe(lr=0.0))
    apple(task_of(), eta2=0.0, recipe=Recipe(lr=0.0))


# -------------------------------------------------------------- mistakes that public codes make


@pytest.mark.parametrize("engine", ENGINES)
def test_apple_uploads_its_core(engine):
    """Guards against uploading the personalised model Σ p_ij c_j in the core's place."""
    task, world = task_of(), ragged((7, 40, 13, 24, 9, 31))  # models have to move
    sim = simulate(apple(task, eta2=0.001), world, task, engine=engine)
    play(sim, 2)
    before = snapshot(sim)
    (report,) = play(sim, 1)
    assert same(sim.server["cores"], sim.states.rows["core"])
    for client, model in models(sim).items():
        core = tree.index(sim.server["cores"], int(client))
        assert gap(core, model) > 1e-3
        # the core takes short steps, of p_ii: it stays near what it was, and the model does not
        old = tree.index(before["server"]["cores"], int(client))
        assert gap(core, old) < gap(model, old)
    assert report.up.tolist() == [4 * 51] * 6


@pytest.mark.usefixtures("double")
def test_the_sum_of_weights_moves_with_the_number_of_clients():
    """All cores are alike at first: a step of Σ_j p_ij is η2 N <g, c>, whatever η1 is."""
    task = task_of()

    def moved(sizes, lr):
        world = ragged(sizes)
        method = apple(task, eta2=0.001, recipe=Recipe(batch=0, lr=lr))
        sim = simulate(method, world, task)
        own = data_of(world, 0)
        batch = next(own._replace(rows=own.rows[: int(own.n)]).batches(0, rng.key(0)))
        slope = grad(lambda w: task.loss(w, batch)[0])(sim.initial)
        play(sim)
        along = sum((slope[k] * sim.initial[k]).sum() for k in slope)
        return float(sim.states.rows["weights"][0].sum() - 1), float(along)

    for clients in (2, 6):
        for lr in (0.1, 0.001):
            sum_moved, along = moved([20] * clients, lr)
            assert sum_moved == pytest.approx(-0.001 * clients * along, rel=1e-9)
