"""FedFomo: models are weighed by what they do for the client's validation rows."""

import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import tree, wire
from fedtailor.core.training import Recipe
from fedtailor.methods import fedfomo, local
from tests.methods.worlds import (
    ENGINES,
    HALF,
    data_of,
    gap,
    module_of,
    near,
    numbers,
    of_models,
    one_number,
    play,
    ragged,
    random_like,
    rows_of,
    same,
    simulate,
    task_of,
    turn_of,
    two_clients,
)


def number(value: float) -> dict:
    return {"w": torch.tensor(value)}


def offer(*values: float, filled=None) -> dict:
    """A message with candidates that are single numbers."""
    here = torch.tensor([True] * len(values) if filled is None else filled, dtype=torch.bool)
    return {"models": wire.maybe(here, {"w": torch.tensor(values)})}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_by_hand(engine):
    # validation rows 3 and 6, L = (w - row)²/2
    # round 0: nothing to choose from, base = 0; trained: 1 and 4. P = identity
    # round 1, base = 0 for both; candidates own, other:
    #   client 0: L(0) = 4.5, L(1) = 2, L(4) = 0.5:   w = (4.5 - 2)/1 = 2.5,  (4.5 - 0.5)/4 = 1
    #             base = 0 + 2.5/3.5 * 1 + 1/3.5 * 4 = 13/7;     trained (13/7 + 2)/2 = 27/14
    #   client 1: L(0) = 18, L(4) = 2, L(1) = 12.5:   w = 16/4 = 4,  5.5/1 = 5.5
    #             base = 4/9.5 * 4 + 5.5/9.5 * 1 = 43/19;        trained (43/19 + 8)/2 = 195/38
    #   P = [[1 + 2.5, 1], [5.5, 1 + 4]]
    # then, before training in round 2 (base 13/7 and 43/19; own 27/14 and 195/38):
    #   client 0: the other, 195/38 = 5.13, is worse than its base on 3 (w = -0.4944), so only its
    #             own counts: 27/14.  Own w = 1.10714
    #   client 1: the other, 27/14 = 1.93, is worse than 43/19 on 6 (w = -3.9041): 195/38.
    #             Own w = 2.30263
    task = one_number()
    sim = simulate(fedfomo(task, M=2, recipe=HALF), two_clients(), task, engine=engine)
    play(sim)
    assert sim.states.rows["base"]["w"].tolist() == near(0.0, 0.0)
    assert sim.states.rows["cur"]["w"].tolist() == near(1.0, 4.0)
    assert sim.server["models"]["w"].tolist() == near(1.0, 4.0)
    assert sim.server["affinity"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    # tested with the model after the coming update
    assert of_models(sim, "w") == near(13 / 7, 43 / 19)
    play(sim)
    assert sim.states.rows["base"]["w"].tolist() == near(13 / 7, 43 / 19)
    assert sim.states.rows["cur"]["w"].tolist() == near(27 / 14, 195 / 38)
    assert sim.server["affinity"].flatten().tolist() == near(3.5, 1.0, 5.5, 5.0)
    assert of_models(sim, "w") == near(27 / 14, 195 / 38)
    play(sim)
    assert sim.states.rows["base"]["w"].tolist() == near(27 / 14, 195 / 38)
    assert sim.server["affinity"].flatten().tolist() == near(
        3.5 + 1.1071428571, 1.0 - 0.4943609023, 5.5 - 3.9041353383, 5.0 + 2.3026315789
    )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_follow_the_validation_rows(engine):
    """With each other's validation rows (3 and 6 exchanged), training rows as before."""
    # client 0, row 6: L(0) = 18;  own 1: 5.5/1;  other 4: 16/4
    # client 1, row 3: L(0) = 4.5; own 4: 4/4;    other 1: 2.5/1
    task = one_number()
    world = rows_of([[2.0], [7.0, 8.0, 9.0]], [[6.0], [3.0]])
    sim = simulate(fedfomo(task, M=2, recipe=HALF), world, task, engine=engine)
    play(sim)
    assert sim.states.rows["cur"]["w"].tolist() == near(1.0, 4.0)
    play(sim)
    expected = [1 + 5.5, 4.0, 2.5, 1 + 1.0]
    assert sim.server["affinity"].flatten().tolist() == pytest.approx(expected, abs=1e-9)


def test_permuted_validation_rows_of_a_real_net():
    """The weights of client i with the validation rows of client j are those that L_j gives."""
    task, world = task_of(), ragged()
    base, cur, other = (random_like(task.init(torch.tensor(1)), seed=s) for s in range(3))
    message = {"models": wire.maybe(torch.tensor([True]), tree.stack([other]))}
    method = fedfomo(task, M=2)
    state = {"base": base, "cur": cur}
    own, theirs = data_of(world, 0), data_of(world, 1)
    swapped = own._replace(val_rows=theirs.val_rows, val_n=theirs.val_n)

    def weights(data):
        with torch.no_grad():
            return method.client(message, state, data, turn_of(3)).upload.each["weights"]

    expected = []
    for model in (cur, other):
        losses = []
        for params in (base, model):
            rows = theirs.val_rows[: int(theirs.val_n)]
            out = module_of("mlp", params)(theirs.x[rows])
            losses.append(float(F.cross_entropy(out, theirs.y[rows]).detach()))
        apart = torch.cat([(model[k] - base[k]).flatten() for k in base]).norm()
        expected.append((losses[0] - losses[1]) / float(apart))
    assert weights(swapped).tolist() == pytest.approx(expected, abs=1e-6)
    assert weights(own).tolist() != pytest.approx(expected, abs=1e-3)


def test_losses_are_taken_in_evaluation_mode():
    """A5 step 2, on a net with BatchNorm and Dropout; buffers do not count in the distance."""
    task, world = task_of("norm"), ragged()
    first = task.init(torch.tensor(1))
    base, cur, other = (random_like(first, seed=s) for s in range(3))
    for model in (base, cur, other):
        model["1.running_var"] = model["1.running_var"].abs() + 0.1
    message = {"models": wire.maybe(torch.tensor([True]), tree.stack([other]))}
    data = data_of(world, 2)
    with torch.no_grad():
        done = fedfomo(task, M=2).client(message, {"base": base, "cur": cur}, data, turn_of(3))
    rows = data.val_rows[: int(data.val_n)]

    def loss(params):
        module = module_of("norm", params).eval()
        return float(F.cross_entropy(module(data.x[rows]), data.y[rows]).detach())

    trained = [k for k in base if "running" not in k]
    expected = [
        (loss(base) - loss(m))
        / float(torch.cat([(m[k] - base[k]).flatten() for k in trained]).norm())
        for m in (cur, other)
    ]
    assert done.upload.each["weights"].tolist() == pytest.approx(expected, abs=1e-6)
    assert all(w != 0 for w in expected)


# ------------------------------------------------------------------------------------ the update


def _update(method, message, state, data):
    """(weights, new base) of a client."""
    with torch.no_grad():
        done = method.client(message, state, data, turn_of(3))
        told = method.personal(message, state, data, turn_of(3))
    assert same(told, done.state["base"])
    return done.upload.each["weights"], done.state["base"]


def _axes(factor: float = 1.0):
    """Three numbers; candidates are the axes, so that the new base reads as the weights w*."""
    slope = {"a": 1.0, "b": 0.5, "c": -1.0}
    error = lambda p, x: sum((p[k] - slope[k] * x) ** 2 for k in slope) / 2
    task = numbers({"a": 0.0, "b": 0.0, "c": 0.0}, error, factor=factor)
    zero = task.init(torch.tensor(0))
    return task, {"base": zero, "cur": zero}


def _axes_offer(order=("a", "b", "c"), filled=(True, True, True)) -> dict:
    value = {k: torch.tensor([float(k == name) for name in order]) for k in ("a", "b", "c")}
    return {"models": wire.maybe(torch.tensor(filled), value)}


def test_normalised_weights_by_hand():
    """w* >= 0, sum 1: row 3; L(0) - L(axis) = 3 slope - 1/2 = 2.5, 1, -3.5 at distance 1."""
    task, state = _axes()
    data = data_of(rows_of([[3.0]]), 0)
    weights, new = _update(fedfomo(task, M=4), _axes_offer(), state, data)
    assert weights.tolist() == pytest.approx([0.0, 2.5, 1.0, -3.5], abs=1e-5)
    share = [float(new[k]) for k in ("a", "b", "c")]
    assert share == pytest.approx([2.5 / 3.5, 1 / 3.5, 0.0], abs=1e-6)
    assert min(share) >= 0
    assert sum(share) == pytest.approx(1.0, abs=1e-6)


def test_no_helpful_candidate_gives_weights_that_add_up_to_0():
    """Row 0: every axis is worse than the origin, w = -1/2 each."""
    task, state = _axes()
    data = data_of(rows_of([[0.0]]), 0)
    weights, new = _update(fedfomo(task, M=4), _axes_offer(), state, data)
    assert weights.tolist() == pytest.approx([0.0, -0.5, -0.5, -0.5], abs=1e-6)
    assert same(new, state["base"])


@pytest.mark.parametrize("factor", [0.01, 3.0])
def test_the_scale_of_the_losses_does_not_matter(factor):
    """All losses times c > 0: raw weights scale, w* does not."""
    data = data_of(rows_of([[3.0]]), 0)
    found = []
    for c in (1.0, factor):
        task, state = _axes(c)
        found.append(_update(fedfomo(task, M=4), _axes_offer(), state, data))
    (weights, new), (scaled, new_scaled) = found
    torch.testing.assert_close(scaled, factor * weights, rtol=1e-4, atol=1e-6)
    assert gap(new, new_scaled) < 1e-5
    assert not torch.allclose(scaled, weights)


def test_candidates_in_another_order_get_their_weights_in_that_order():
    """Permuting candidates permutes w*."""
    task, state = _axes()
    data = data_of(rows_of([[3.0]]), 0)
    method = fedfomo(task, M=4)
    weights, new = _update(method, _axes_offer(), state, data)
    other, again = _update(method, _axes_offer(("c", "a", "b")), state, data)
    assert torch.equal(other, weights[[0, 3, 1, 2]])
    assert gap(new, again) < 1e-6


def test_slots_that_were_not_filled_do_not_count():
    """Leftovers in such a slot (here: a perfect model) have no weight."""
    task, state = _axes()
    data = data_of(rows_of([[3.0]]), 0)
    weights, new = _update(
        fedfomo(task, M=4), _axes_offer(filled=(False, True, False)), state, data
    )
    assert weights.tolist() == pytest.approx([0.0, 0.0, 1.0, 0.0], abs=1e-5)
    assert [float(new[k]) for k in ("a", "b", "c")] == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("rollback", [True, False])
def test_the_own_model_as_the_only_candidate(rollback):
    """A better theta_cur is taken, a worse one is rolled back to theta_base (exact)."""
    task = one_number()
    data = data_of(rows_of([[3.0]]), 0)
    method = fedfomo(task, M=1, rollback=rollback)
    base = number(1.7)
    _, new = _update(method, offer(), {"base": base, "cur": number(2.9)}, data)
    assert float(new["w"]) == pytest.approx(2.9, abs=1e-6)
    _, new = _update(method, offer(), {"base": base, "cur": number(0.3)}, data)
    assert torch.equal(new["w"], torch.tensor(1.7 if rollback else 0.3))


@pytest.mark.parametrize("engine", ENGINES)
def test_alone_it_is_local_while_the_validation_loss_falls(engine):
    """M = 1 equals Local iff the validation loss falls in every round."""
    task = one_number()
    # validation rows beyond the training mean: every step helps; before it: the second does not
    helpful = rows_of([[2.0], [7.0, 8.0, 9.0]], [[3.0], [9.0]])
    harmful = rows_of([[2.0], [7.0, 8.0, 9.0]], [[1.0], [9.0]])
    for world, equal in ((helpful, True), (harmful, False)):
        sims = [
            simulate(method, world, task, engine=engine)
            for method in (fedfomo(task, M=1, recipe=HALF), local(task, recipe=HALF))
        ]
        for sim in sims:
            play(sim, 3)
        ours, theirs = sims[0].states.rows["cur"], sims[1].states.rows["own"]
        assert (gap(ours, theirs) < 1e-6) == equal


@pytest.mark.parametrize("engine", ENGINES)
def test_alone_without_rollback_it_is_local(engine):
    """rollback = False: always Local; with rollback it is not (training overfits here)."""
    task, world = task_of(), ragged(val=2)
    recipe = Recipe(epochs=5, lr=0.5)
    alone = simulate(local(task, recipe=recipe), world, task, engine=engine)
    play(alone, 4)
    for rollback in (False, True):
        method = fedfomo(task, M=1, rollback=rollback, recipe=recipe)
        sim = simulate(method, world, task, engine=engine)
        play(sim, 4)
        apart = gap(sim.states.rows["cur"], alone.states.rows["own"])
        assert apart > 1e-2 if rollback else apart < 1e-5


def test_a_worse_candidate_has_no_share_and_a_single_better_one_all():
    task = one_number()
    data = data_of(rows_of([[3.0]]), 0)
    state = {"base": number(1.0), "cur": number(0.5)}  # the own model is worse
    weights, new = _update(fedfomo(task, M=3), offer(7.0, 2.25), state, data)
    # L = 2, 3.125, 8, 0.28125:  -1.125/0.5,  -6/6,  1.71875/1.25
    assert weights.tolist() == pytest.approx([-2.25, -1.0, 1.375], abs=1e-5)
    assert float(new["w"]) == pytest.approx(2.25, abs=1e-6)


def test_distances_between_models():
    """At distance (3, 4) the l2 norm divides by 5, the l1 norm by 7."""
    task = numbers({"a": 0.0, "b": 0.0}, lambda p, x: (p["a"] + p["b"] - x) ** 2 / 2)
    zero = task.init(torch.tensor(0))
    value = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    message = {"models": wire.maybe(torch.tensor([True]), value)}
    data = data_of(rows_of([[7.0]]), 0)  # L(0) - L(3, 4) = 24.5
    for norm, length in (("l2", 5), ("l1", 7)):
        method = fedfomo(task, M=2, norm=norm)
        weights, _ = _update(method, message, {"base": zero, "cur": zero}, data)
        assert weights.tolist() == pytest.approx([0.0, 24.5 / length], rel=1e-5)


# --------------------------------------------------------------------------------- who is offered


def _server(clients: int, affinity, fresh=None) -> dict:
    """A server whose models are their owner's number."""
    fresh = range(clients) if fresh is None else fresh
    return {
        "models": {"w": torch.arange(clients, dtype=torch.get_default_dtype())},
        "affinity": torch.tensor(affinity, dtype=torch.get_default_dtype()),
        "fresh": torch.tensor([i in fresh for i in range(clients)]),
    }


def _offered(method, server, client: int, round: int, key: int = 0) -> list[int]:
    """Whose models a client is sent."""
    part = method.send(server, torch.tensor(client), turn_of(round, key))["models"]
    return wire.value(part)["w"][wire.here(part)].int().tolist()


AFFINITY = [[9.0, 1.0, 4.0, 3.0, 2.0]] * 5


def test_exploring_ends_after_six_rounds():
    """eps_t = max(0, 0.3 - 0.05 t): never from round 6 on, rarely before."""
    method = fedfomo(one_number(), M=2)
    server = _server(5, AFFINITY)
    other = {t: sum(_offered(method, server, 0, t, k) != [2] for k in range(400)) for t in (0, 5)}
    # a random one of four is another than the best in three cases of four
    assert 0.225 - 0.08 < other[0] / 400 < 0.225 + 0.08
    assert 0 < other[5] < 40
    for t in (6, 7, 30):
        assert all(_offered(method, server, 0, t, k) == [2] for k in range(100))


def test_the_best_unused_ones_are_offered_in_order():
    method = fedfomo(one_number(), M=4, eps0=0.0)
    server = _server(5, AFFINITY)
    assert _offered(method, server, 0, 0) == [2, 3, 4]
    assert _offered(method, server, 2, 0) == [0, 3, 4]  # never oneself
    assert _offered(fedfomo(one_number(), M=3, eps0=0.0, count_self=False), server, 0, 0) == [
        2,
        3,
        4,
    ]
    # more than there are: everybody, and the rest of the slots stays empty
    assert _offered(fedfomo(one_number(), M=9, eps0=0.0), server, 0, 0) == [2, 3, 4, 1]


def test_exploring_offers_everybody_and_nobody_twice():
    method = fedfomo(one_number(), M=3, eps0=1.0, decay=0.0)
    server = _server(5, AFFINITY)
    seen = [tuple(_offered(method, server, 0, 3, k)) for k in range(300)]
    assert {len(set(pair)) for pair in seen} == {2}
    for number_ in range(1, 5):
        share = sum(number_ in pair for pair in seen) / 300
        assert 0.5 - 0.13 < share < 0.5 + 0.13


def test_ties_are_broken_at_random():
    method = fedfomo(one_number(), M=2, eps0=0.0)
    server = _server(5, torch.eye(5).tolist())
    seen = [_offered(method, server, 0, 8, k)[0] for k in range(200)]
    assert set(seen) == {1, 2, 3, 4}
    assert max(map(seen.count, seen)) < 90


def test_only_fresh_models_are_offered():
    method = fedfomo(one_number(), M=4, eps0=0.5)
    server = _server(5, AFFINITY, fresh=[0, 1, 4])
    assert all(sorted(_offered(method, server, 0, 0, k)) == [1, 4] for k in range(20))
    assert all(_offered(method, _server(5, AFFINITY, []), 0, 0, k) == [] for k in range(20))


@pytest.mark.parametrize("engine", ENGINES)
def test_with_everybody_offered_affinity_does_not_matter(engine):
    """eps0 = 0, M = N, full participation: the result does not depend on P."""
    task, world = task_of(), ragged()
    maker = torch.Generator().manual_seed(5)
    for M, equal in ((6, True), (2, False)):
        sims = [
            simulate(fedfomo(task, M=M, eps0=0.0), world, task, engine=engine) for _ in range(2)
        ]
        sims[1].server["affinity"] = 1e3 * torch.randn(6, 6, generator=maker)
        for sim in sims:
            play(sim, 3)
        assert (gap(sims[0].states.rows, sims[1].states.rows) < 1e-6) == equal


@pytest.mark.parametrize("engine", ENGINES)
def test_affinity_changes_for_active_clients_and_evaluated_columns_only(engine):
    """With partial participation candidates are the uploads of the round before."""
    task, world = task_of(), ragged()
    sim = simulate(fedfomo(task, M=4), world, task, engine=engine)
    size = 4 * 51
    cohorts = [[0, 1, 5], [2, 3], [0, 2], [0, 1]]
    evaluated = [
        {},  # nothing to choose from, and one's own model still is the base
        {2: {0, 1, 5}, 3: {0, 1, 5}},  # first turns: again, the own model is the base
        {0: {0, 2, 3}, 2: {2, 3}},  # 1 and 5 uploaded something once, but not in the round before
        {0: {0, 2}, 1: {0, 1, 2}},
    ]
    offered = [[0, 0, 0], [3, 3], [2, 1], [1, 2]]
    for cohort, columns, count in zip(cohorts, evaluated, offered, strict=True):
        before = sim.server["affinity"].clone()
        (report,) = play(sim, [cohort])
        changed = (sim.server["affinity"] != before).nonzero().tolist()
        assert {tuple(pair) for pair in changed} == {(i, j) for i in columns for j in columns[i]}
        assert report.down.tolist() == [c * size for c in count]
        assert sim.server["fresh"].nonzero()[:, 0].tolist() == cohort


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("eps0", [0.0, 1.0])
def test_a_weight_is_booked_to_the_client_whose_model_it_is(engine, eps0):
    """The server knows whom it offered, also where luck chose (exploring, or ties)."""
    means = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
    rows = [3.3, 5.3, 1.3, 7.3, 2.3, 9.3, 4.3]  # r = m/4 would be worth nothing
    world = rows_of([[m] for m in means], [[r] for r in rows])
    task = one_number()
    method = fedfomo(task, M=3, eps0=eps0, decay=0.0, recipe=HALF)
    sim = simulate(method, world, task, engine=engine)
    play(sim, 2)
    # round 1: everybody's base is 0 and everybody's upload half its mean, so
    # w = (r²/2 - (m/2 - r)²/2) / (m/2) = r - m/4
    added = sim.server["affinity"] - torch.eye(7)
    assert (added != 0).sum(1).tolist() == [3] * 7
    for client, row in enumerate(rows):
        for other, mean in enumerate(means):
            found = float(added[client, other])
            assert found == 0 or found == near(row - mean / 4)
        assert added[client, client] != 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_keeps_the_last_upload_of_everyone(engine):
    task, world = task_of(), ragged()
    sim = simulate(fedfomo(task), world, task, engine=engine)
    play(sim, [[0, 1], [1, 2]])
    for client in range(6):
        model = tree.index(sim.server["models"], client)
        if client < 3:
            assert same(model, tree.index(sim.states.rows["cur"], client))
        else:
            assert same(model, sim.initial)


@pytest.mark.usefixtures("double")
def test_normalised_affinities_by_hand():
    """As in the first example, but P gets w / |sum w|: 2.5/3.5, 1/3.5; 5.5/9.5, 4/9.5."""
    task = one_number()
    method = fedfomo(task, M=2, p_update="normalised", recipe=HALF)
    sim = simulate(method, two_clients(), task)
    play(sim, 2)
    expected = [1 + 2.5 / 3.5, 1 / 3.5, 5.5 / 9.5, 1 + 4 / 9.5]
    assert sim.server["affinity"].flatten().tolist() == pytest.approx(expected, abs=1e-9)


def test_weights_of_a_run_are_not_all_zero():
    task, world = task_of(), ragged()
    sim = simulate(fedfomo(task), world, task)
    play(sim, 3)
    moved = sim.server["affinity"] - torch.eye(6)
    assert (moved != 0).sum() >= 6 * 5
    assert (moved.diagonal() != 0).all()
