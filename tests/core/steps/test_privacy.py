"""DP-SGD: clipping, noise, who is charged for what, and the ε of it."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import fedtailor
from fedtailor import BadInput
from fedtailor.api import resume
from fedtailor.core import rng, tree
from fedtailor.core.form import Form
from fedtailor.core.ledger import Entry, Ledger, charged
from fedtailor.core.objectives import exact_gradient
from fedtailor.core.steps.privacy import (
    OVERFLOW,
    Spent,
    epsilon,
    padded,
    private_gradient,
    require_accountant,
    strong_normal,
)
from fedtailor.core.task import Batch, Sample, Task
from fedtailor.core.training import Recipe, descend, fit
from fedtailor.methods import METHODS, ditto, fedavg, fedrep, local
from fedtailor.methods.find import find as find_method
from fedtailor.results.config import make_config
from tests.methods.worlds import (
    data_of,
    gap,
    models,
    numbers,
    play,
    ragged,
    rows_of,
    simulate,
    task_of,
    turn_of,
)

INF = math.inf
SMALL: dict[str, Any] = {"model": "linear", "clients": 4, "rounds": 4, "batch": 150, "lr": 0.1}
PRIVATE = SMALL | {"dp_clip": 1.0, "dp_noise": 1.0}


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def batch_of(x: Tensor, weight: Tensor | None = None, key: int = 0) -> Batch:
    y = torch.zeros(len(x), dtype=torch.int64)
    weight = torch.ones(len(x)) if weight is None else weight
    return Batch(x, y, weight, torch.tensor(True), rng.key(key))


def linear(theta: tree.Tree, batch: Batch, given: tree.Tree, carried: tree.Tree) -> tuple:
    """a x₀ + b x₁: an example's gradient is the example."""
    each = theta["a"] * batch.x[:, 0] + theta["b"] * batch.x[:, 1]
    return (each * batch.weight).sum() / batch.weight.sum().clamp(min=1), {}


HERE = {"a": torch.tensor(0.0), "b": torch.tensor(0.0)}


def silent(size: int = 200) -> Task:
    """Two blocks of numbers that have no gradient at all: whatever moves them is noise."""

    def loss(params: dict, batch: Batch) -> tuple[Tensor, dict]:
        return sum(0 * p.sum() for p in params.values()) + 0 * batch.x.sum(), {}

    def predict(params: dict, x: Tensor) -> Tensor:
        zero = 0 * x + 0 * params["a"].sum()
        return torch.stack([zero, zero], -1)

    init = lambda key: {"a": torch.zeros(size), "b": torch.zeros(size)}
    return Task(init, loss, predict, (("a",), ("b",)))


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


# --------------------------------------------------------------------------------- clipping by hand


def test_clipping_by_hand() -> None:
    """Gradients (3, 4), of length 5, and (0.6, 0.8), of length 1; C = 2.

    The first becomes (1.2, 1.6), the second stays: the sum is (1.8, 2.4), the mean (0.9, 1.2).
    """
    x = torch.tensor([[3.0, 4.0], [0.6, 0.8]])
    grads, loss, changed = private_gradient(linear, 2.0, 0.0)(HERE, batch_of(x), {}, {})
    assert [float(grads[k]) for k in "ab"] == pytest.approx([0.9, 1.2])
    assert float(loss) == 0
    assert changed == {}
    # padding does not count, neither in the sum nor in the divisor
    padded = torch.cat([x[:1], torch.tensor([[100.0, 7.0]])])
    one = private_gradient(linear, 2.0, 0.0)(
        HERE, batch_of(padded, torch.tensor([1.0, 0.0])), {}, {}
    )[0]
    assert [float(one[k]) for k in "ab"] == pytest.approx([1.2, 1.6])
    # no gradient, no division by zero
    none = private_gradient(linear, 2.0, 0.0)(HERE, batch_of(torch.zeros(2, 2)), {}, {})[0]
    assert not any(bool(g) for g in none.values())


def test_clipping_is_over_all_parameters_together() -> None:
    """C = 5 leaves (3, 4) as it is; clipped name by name with C = 3 it would be (3, 3)."""
    x = torch.tensor([[3.0, 4.0]])
    assert float(
        private_gradient(linear, 5.0, 0.0)(HERE, batch_of(x), {}, {})[0]["b"]
    ) == pytest.approx(4)
    three = private_gradient(linear, 3.0, 0.0)(HERE, batch_of(x), {}, {})[0]
    assert [float(three[k]) for k in "ab"] == pytest.approx([1.8, 2.4])


def test_no_example_moves_the_sum_by_more_than_the_clip() -> None:
    x = 10 * rng.normal(rng.key(1), 6, 2)
    whole = private_gradient(linear, 0.7, 0.0)(HERE, batch_of(x), {}, {})[0]
    for i in range(6):
        weight = torch.ones(6)
        weight[i] = 0
        rest = private_gradient(linear, 0.7, 0.0)(HERE, batch_of(x, weight), {}, {})[0]
        apart = tree.sub(tree.scale(whole, 6.0), tree.scale(rest, 5.0))
        assert float(tree.sq_norm(apart).sqrt()) == pytest.approx(0.7, rel=1e-4)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_example_without_a_finite_gradient_counts_nothing(value: float) -> None:
    """A sum that is nan would tell that it is there, whatever the noise."""
    x = torch.tensor([[3.0, 4.0], [value, 0.8]])
    slope = private_gradient(linear, 2.0, 1.0)
    found = slope(HERE, batch_of(x), {}, {})[0]
    zero = slope(HERE, batch_of(torch.tensor([[3.0, 4.0], [0.0, 0.0]])), {}, {})[0]
    assert tree.finite(found) and gap(found, zero) == 0


def test_examples_that_come_round_again_are_refused() -> None:
    """With `wrap` a row may stand in a batch several times and move its sum by several clips."""
    task = task_of()
    data = data_of(ragged([1]), 0)
    recipe = Recipe(batch=4, lr=1.0, last="wrap", dp_clip=0.5)
    with pytest.raises(BadInput, match="wrap"):
        fit(task, task.init(torch.tensor(0)), data, turn_of(), recipe)


# ------------------------------------------------------------------------ off, it is plain SGD


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("last", ["pad", "drop"])
def test_without_clip_and_noise_a_fit_is_plain(last: str) -> None:
    """DP-SGD that is off is plain SGD: C = ∞ and σ = 0."""
    task, world = task_of(), ragged()
    params = task.init(torch.tensor(0))
    for client in range(3):
        data = data_of(world, client)
        recipe = Recipe(epochs=2, batch=6, lr=0.1, last=last)
        one = fit(task, params, data, turn_of(), recipe)
        two = fit(task, params, data, turn_of(), replace(recipe, dp_clip=INF))
        assert gap(one, two) < 1e-12
        tight = fit(task, params, data, turn_of(), replace(recipe, dp_clip=0.01))
        assert last == "drop" or gap(one, tight) > 1e-4


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "fedfomo"])
def test_without_clip_and_noise_a_run_is_plain(name: str, engine: str) -> None:
    """DP-SGD that is off is plain SGD: whole runs, in float64."""
    task, world = task_of(), ragged()
    found = []
    for clip in (0.0, INF):
        recipe = Recipe(epochs=2, batch=8, lr=0.1, dp_clip=clip)
        sim = simulate(find_method(name)(task, recipe=recipe), world, task, engine=engine)
        reports = play(sim, [[0, 1, 2, 3], [1, 2, 5], [0, 3, 4]])
        found.append({"server": sim.server, "models": models(sim)})
        assert all(bool((r.noisy[:, 0] > 0).all()) == (clip > 0) for r in reports)
    assert gap(*found) < 1e-12


def test_without_noise_nothing_is_drawn_and_plain_agrees() -> None:
    x = rng.normal(rng.key(3), 5, 2)
    ours = private_gradient(linear, INF, 0.0)(HERE, batch_of(x), {}, {})
    theirs = exact_gradient(linear)(HERE, batch_of(x), {}, {})
    assert gap(ours[0], theirs[0]) < 1e-6
    assert float(ours[1]) == pytest.approx(float(theirs[1]))


# -------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize(("clip", "noise", "size"), [(1.0, 1.0, 4), (0.5, 2.0, 1), (3.0, 0.5, 10)])
def test_noise_has_mean_zero_and_the_right_spread(clip: float, noise: float, size: int) -> None:
    """σ C z on the sum, so σ C / B on the mean; over many keys."""
    slope = private_gradient(linear, clip, noise)
    keys = rng.split(rng.key(11), 5_000)
    x = torch.zeros(size, 2)
    draw = lambda key: slope(HERE, batch_of(x)._replace(key=key), {}, {})[0]
    grads = vmap(draw)(torch.stack(keys))
    for values in grads.values():
        std = noise * clip / size
        assert float(values.mean()) == pytest.approx(0, abs=5 * std / math.sqrt(5_000))
        assert float(values.std()) == pytest.approx(std, rel=0.03)
    assert abs(correlation(grads["a"], grads["b"])) < 0.04


def test_noise_is_added_to_the_sum_of_a_short_batch() -> None:
    """Two real rows of four: the divisor is 2, the noise σ C / 2."""
    slope = private_gradient(linear, 1.0, 1.0)
    batch = batch_of(torch.zeros(4, 2), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    keys = torch.stack(rng.split(rng.key(12), 10_000))
    grads = vmap(lambda key: slope(HERE, batch._replace(key=key), {}, {})[0])(keys)
    assert float(grads["a"].std()) == pytest.approx(0.5, rel=0.04)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_noise_is_independent_between_steps_clients_and_rounds(engine: str) -> None:
    task, world = silent(), rows_of([[1.0], [1.0, 2.0, 3.0]])
    recipe = Recipe(batch=1, lr=1.0, dp_clip=1.0, dp_noise=1.0)
    sim = simulate(local(task, recipe=recipe), world, task, engine=engine)
    moves, before = [], torch.zeros(2, 200)
    for _ in range(3):
        play(sim)
        now = torch.stack([m["a"] for m in models(sim).values()])
        moves += list(now - before)
        before = now
    # client 0 makes one step a round, client 1 three: variances add up
    for i, move in enumerate(moves):
        assert float(move.var()) == pytest.approx([1, 3][i % 2], rel=0.5)
        for other in moves[:i]:
            assert abs(correlation(move, other)) < 0.3
    both = models(sim)["1"]
    assert abs(correlation(both["a"], both["b"])) < 0.3


def test_a_secret_makes_the_noise_strong() -> None:
    """Normal by a test of Kolmogorov and Smirnov; the same key again, the same numbers."""
    from scipy.stats import kstest

    drawn = strong_normal(b"s" * 32, rng.key(1), 100, 200, dtype=torch.float64)
    assert drawn.shape == (100, 200)
    assert kstest(drawn.flatten().numpy(), "norm").pvalue > 0.001
    assert abs(correlation(drawn[:50].flatten(), drawn[50:].flatten())) < 0.05
    task, data = silent(), data_of(rows_of([[1.0] * 4]), 0)
    recipe = Recipe(batch=0, lr=1.0, dp_clip=1.0, dp_noise=1.0)
    train = lambda secret: fit(
        task,
        task.init(rng.key(0)),
        data,
        turn_of()._replace(ledger=Ledger(secret=secret)),
        recipe,
    )["a"]
    keyed, one, two = train(b""), train(b"1" * 32), train(b"2" * 32)
    assert torch.equal(one, train(b"1" * 32))
    assert float(one.std()) == pytest.approx(1 / 4, rel=0.3)
    for a, b in ((keyed, one), (one, two)):
        assert abs(correlation(a, b)) < 0.3


def test_noise_of_a_step_is_its_own() -> None:
    """Steps one by one: no two share their noise."""
    task, data = silent(), data_of(rows_of([[1.0] * 5]), 0)
    found = []
    for steps in (1, 2, 3):
        recipe = Recipe(steps=steps, batch=2, lr=1.0, dp_clip=1.0, dp_noise=1.0)
        found.append(fit(task, task.init(rng.key(0)), data, turn_of(), recipe)["a"])
    first, second, third = found[0], found[1] - found[0], found[2] - found[1]
    for one, two in ((first, second), (second, third), (first, third)):
        assert abs(correlation(one, two)) < 0.3


def test_noise_of_dittos_two_paths_is_independent() -> None:
    task, world = silent(), rows_of([[1.0]])
    recipe = Recipe(batch=0, lr=1.0, dp_clip=1.0, dp_noise=1.0)
    sim = simulate(ditto(task, lam=0.0, recipe=recipe), world, task)
    play(sim)
    own, general = sim.states.rows["own"]["a"][0], sim.server["params"]["a"]
    assert abs(correlation(own, general)) < 0.3


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_descents_of_a_turn_draw_batches_of_their_own(noise: float) -> None:
    """Ditto's two paths, FedRep's two phases: the accountant takes them for new samples, and on the
    same batches they would cost more. Without noise nothing is accounted for, and all is as it is
    without DP-SGD."""
    task, data, seen = task_of(), data_of(ragged([40]), 0), []

    def watched(at: Any) -> Any:
        def slope(theta: Any, batch: Batch, *rest: Any) -> Any:
            seen.append(batch.x.clone())
            return at(theta, batch, *rest)

        return slope

    recipe = Recipe(batch=10, lr=0.01, dp_clip=1.0, dp_noise=noise)
    turn = turn_of()._replace(ledger=Ledger())
    for _ in range(2):
        fit(task, task.init(rng.key(0)), data, turn, recipe, gradient=watched)
    assert entries(turn.ledger) == 2 * [(4, 1, 0.25)]
    first, second = torch.stack(seen[:4]), torch.stack(seen[4:])
    assert torch.equal(first, second) == (noise == 0)


def test_noise_of_the_gradients_on_one_batch_is_independent() -> None:
    """Per-FedAvg's Hessian part is the difference of two gradients on the same rows with the same
    key (for dropout); with the same noise in both there would be none in it."""
    task, data = silent(), data_of(rows_of([[1.0] * 6]), 0)
    drawn: list[Tensor] = []

    def both(at: Any) -> Any:
        def slope(theta: Any, batch: Batch, given: Any, carried: Any) -> Any:
            ahead, loss, changed = at(theta, batch, given, carried)
            behind = at(theta, batch, given, carried)[0]
            drawn.extend([ahead["a"], behind["a"]])
            return ahead, loss, changed

        return slope

    recipe = Recipe(steps=1, batch=2, lr=1.0, dp_clip=1.0, dp_noise=1.0)
    fit(task, task.init(rng.key(0)), data, turn_of(), recipe, gradient=both)
    assert abs(correlation(*drawn)) < 0.3


def test_per_fedavgs_adaptation_is_as_noisy_as_training() -> None:
    task, world = silent(), rows_of([[1.0] * 4])
    found = []
    for noise in (0.0, 2.0):
        recipe = Recipe(batch=2, lr=1.0, dp_clip=1.0, dp_noise=noise)
        sim = simulate(METHODS["perfedavg-fo"](task, alpha=0.5, recipe=recipe), world, task)
        found.append(models(sim)["0"]["a"])
    assert float(found[0].abs().max()) == 0
    assert float(found[1].std()) == pytest.approx(0.5 * 2.0 / 2, rel=0.3)  # α σ C / B


def test_noise_of_fedreps_two_phases_is_independent() -> None:
    task, world = silent(), rows_of([[1.0]])
    recipe = Recipe(batch=0, lr=1.0, dp_clip=1.0, dp_noise=1.0)
    sim = simulate(fedrep(task, head_epochs=1, recipe=recipe), world, task)
    play(sim)
    head, body = sim.states.rows["personal"]["b"][0], sim.server["shared"]["a"]
    assert abs(correlation(head, body)) < 0.3


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "plgu-lf", "fedfomo"])
def test_engines_and_chunks_agree_with_noise(name: str) -> None:
    task, world = task_of(), ragged()
    recipe = Recipe(epochs=2, batch=8, lr=0.1, dp_clip=0.5, dp_noise=1.0)
    results = []
    for options in ({"engine": "sequential"}, {}, {"chunk": 2}):
        sim = simulate(find_method(name)(task, recipe=recipe), world, task, **options)
        reports = play(sim, [[0, 1, 2, 3, 4, 5], [0, 2, 5]])
        results.append(({"models": models(sim)}, [r.noisy.tolist() for r in reports]))
    for other in results[1:]:
        assert gap(results[0][0], other[0]) < 1e-9
        assert results[0][1] == other[1]


# ----------------------------------------------------------------------------------------- samples


def samples(rows: int, batch: int, steps: int, key: int = 0) -> Tensor:
    """Which rows (steps x rows) are in which batch of a recipe with noise."""
    data = data_of(rows_of([[float(i) for i in range(rows)]]), 0)
    recipe = Recipe(steps=steps, batch=batch, dp_clip=1.0, dp_noise=1.0)
    plan = recipe.plan(data, rng.key(key))
    drawn = torch.zeros(steps, rows)
    return drawn.scatter_add(1, plan.rows, plan.weight)


def test_batches_with_noise_are_poisson_samples() -> None:
    """Each row by itself with probability q = 0.2: sizes scatter as binomial numbers do, where
    draws of a fixed size would have no variance and pairs of rows were anticorrelated."""
    drawn = samples(50, 10, 4000)
    assert drawn.unique().tolist() == [0, 1]
    assert drawn.mean(0).tolist() == pytest.approx([0.2] * 50, abs=5 * 0.4 / math.sqrt(4000))
    sizes = drawn.sum(1)
    assert float(sizes.mean()) == pytest.approx(10, abs=5 * math.sqrt(8 / 4000))
    assert float(sizes.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.15)
    apart = torch.corrcoef(drawn.T) - torch.eye(50)
    assert float(apart.abs().max()) < 0.1
    assert abs(float(apart.sum() / (50 * 49))) < 0.004  # of fixed sizes: -1/49


def test_all_rows_are_taken_where_there_are_no_more_than_a_batch() -> None:
    assert samples(6, 8, 20).tolist() == samples(6, 0, 20).tolist() == [[1.0] * 6] * 20


def test_samples_do_not_depend_on_who_shares_the_call() -> None:
    """Padded to a longer client's rows, a client draws the same of its own, in the same places."""
    world = ragged([9, 40])
    data = world.data(torch.tensor([0, 1]))
    long = data._replace(**{k: getattr(data, k)[0] for k in ("rows", "n", "val_rows", "val_n")})
    recipe = Recipe(epochs=3, batch=3, dp_clip=1.0, dp_noise=1.0)
    alone, shared = (recipe.plan(d, rng.key(1)) for d in (data_of(world, 0), long))
    on = shared.active
    assert int(on.sum()) == 9
    taken = lambda plan: [sorted(r[w > 0].tolist()) for r, w in zip(*plan.tensors[:2], strict=True)]
    have = [rows for rows, active in zip(taken(shared), on, strict=True) if active]
    assert have == taken(alone)
    assert len({tuple(rows) for rows in have}) > 5


def test_sums_are_divided_by_the_expected_size() -> None:
    """Three of four expected rows were drawn; gradients (1, 0): the sum 3 over 4, not over 3. And
    an empty sample has the noise alone."""
    x, weight = torch.tensor([[1.0, 0.0]] * 5), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    sample = Sample(torch.tensor(4.0), torch.zeros(5, dtype=torch.int64))
    batch = batch_of(x, weight)._replace(sample=sample)
    slope = private_gradient(linear, 2.0, 0.0)
    assert float(slope(HERE, batch, {}, {})[0]["a"]) == pytest.approx(0.75)
    assert float(slope(HERE, batch._replace(weight=0 * weight), {}, {})[0]["a"]) == 0


def test_a_run_divides_by_batch_or_rows() -> None:
    """(w - x)²/2 from w = 0 with lr 1 and rows of 1: after one step w is drawn rows / expected."""
    seen = []
    for rows, batch, expected in ((40, 10, 10), (4, 10, 4)):
        data = data_of(rows_of([[1.0] * rows]), 0)
        objective = lambda theta, b, given, carried: ((theta["w"] * b.x).mean(), {})
        recipe = Recipe(steps=1, batch=batch, lr=1.0, dp_clip=1e6, dp_noise=1e-12)
        turn = turn_of()._replace(ledger=Ledger())
        done = descend(objective, {"w": torch.tensor(0.0)}, data, turn, recipe)
        plan = recipe.plan(data, rng.fold(turn.key, 1000))
        seen.append(float(-done.theta["w"]))
        assert seen[-1] == pytest.approx(float(plan.weight.sum()) / expected, abs=1e-4)
    assert seen[1] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("batch", [1, 10, 50, 300])
@pytest.mark.parametrize("times", [1, 2, 100])
def test_samples_overflow_as_rarely_as_is_accounted(batch: int, times: int) -> None:
    """By the binomial distribution itself, also with one row less than there is room for."""
    from scipy.stats import binom

    rows = times * batch
    assert binom.sf(padded(batch) - 1, rows, batch / rows) <= OVERFLOW
    assert padded(batch) <= 12 * batch + 20


def test_overflow_is_part_of_delta() -> None:
    spent = Spent(1000, 1, 0.1)
    assert epsilon(spent, 1.0, 1000 * OVERFLOW) == INF
    barely = epsilon(spent, 1.0, 1000 * OVERFLOW + 1e-5)
    assert barely == pytest.approx(epsilon(spent, 1.0, 1e-5), rel=1e-6)


def test_a_sample_that_has_no_room_loses_rows() -> None:
    data = data_of(rows_of([[float(i) for i in range(30)]]), 0)
    steps = data.draws(25, torch.stack(rng.split(rng.key(0), 4)))
    small = data.sampled(steps, 25, most=8)
    assert small.rows.shape == (4, 8)
    assert small.weight.sum(1).tolist() == [8.0] * 4
    assert all(len(set(rows)) == 8 for rows in small.rows.tolist())


def test_parts_of_a_sample_are_by_lot() -> None:
    """Each example is in exactly one part, on its own: where it stands does not matter."""
    lot = rng.bits(rng.key(5), 6000)
    sample = Sample(torch.tensor(5000.0), lot)
    weight = (torch.arange(6000) < 5000).float()
    batch = batch_of(torch.zeros(6000, 2), weight)._replace(sample=sample)
    parts = [batch.part(i, 3) for i in range(3)]
    assert torch.equal(sum(part.weight for part in parts), weight)
    for part in parts:
        assert part.sample
        assert float(part.sample.expected) == pytest.approx(5000 / 3)
        assert float(part.weight.sum()) == pytest.approx(5000 / 3, rel=0.1)
        assert torch.equal(part.again().part(0, 2).weight, part.part(0, 2).weight)
    inner = batch.part(1, 2).part(1, 3)
    assert inner.position == (3, 6)
    assert torch.equal(inner.weight > 0, (lot % 6 == 3) & (weight > 0))


# ---------------------------------------------------------------------------------- who is charged


def entries(ledger: Ledger | None) -> list[tuple[int, int, float]]:
    assert ledger is not None
    return [(int(e.batches), e.gradients, float(e.rate)) for e in ledger.entries]


def test_charged_by_hand() -> None:
    """Batches add up; for gradients and rate the largest counts, of what the client had."""
    entry = lambda *e: Entry(torch.tensor(e[0]), e[1], torch.tensor(e[2]))
    spent = lambda *es: Spent.of(charged([entry(*e) for e in es], torch.tensor(0)).tolist())
    assert spent() == Spent(0, 0, 0)
    assert spent((4, 1, 0.25), (4, 1, 0.25)) == Spent(8, 1, 0.25)
    assert spent((4, 1, 0.25), (2, 3, 0.125)) == Spent(6, 3, 0.25)
    assert spent((4, 1, 0.25), (0, 3, 1.0)) == Spent(4, 1, 0.25)
    assert Spent(4, 1, 0.5).and_then(Spent(2, 3, 0.25)) == Spent(6, 3, 0.5)


def test_what_older_versions_spent_is_not_guessed() -> None:
    assert Spent.of([0, 0]) == Spent()
    with pytest.raises(BadInput, match="start it anew"):
        Spent.of([7, 1])


def test_a_ledger_is_kept_only_where_the_turn_carries_one_and_only_with_dp() -> None:
    task, data = task_of(), data_of(ragged(), 1)  # 20 rows
    params = task.init(torch.tensor(0))
    turn, inner = (turn_of()._replace(ledger=Ledger()) for _ in range(2))
    train = lambda turn, **how: fit(task, params, data, turn, Recipe(batch=5, **how))
    train(turn)
    assert turn.ledger.entries == []
    train(turn, dp_clip=1.0)
    assert entries(turn.ledger) == [(4, 1, 0.25)]
    train(inner, dp_clip=1.0, steps=2)
    assert entries(inner.ledger) == [(2, 1, 0.25)]
    train(turn_of(), dp_clip=1.0)
    assert len(turn.ledger.entries) == 1


def test_the_ledger_goes_with_every_turn_made_from_a_turn() -> None:
    turn = turn_of()._replace(ledger=Ledger())
    for other in (*turn.split(3), turn.of(torch.tensor(2)), turn.at_client(), turn.at_client(5)):
        assert other.ledger is turn.ledger
    assert turn.aside().ledger is turn.to(torch.device("cpu")).ledger is turn.ledger


@pytest.mark.parametrize(
    ("parts", "gradients"),
    [
        ([()], 1),
        ([(), ()], 2),
        ([(0, 3), (1, 3), (2, 3), (2, 3)], 2),
        ([(0, 2), ()], 2),  # a part and the whole share examples
        ([(0, 2), (1, 3)], 2),
    ],
)
def test_an_example_pays_for_the_part_that_it_is_in(
    parts: list[tuple[int, ...]], gradients: int
) -> None:
    def gradient(at: Any) -> Any:
        def slope(theta: Any, batch: Batch, *rest: Any) -> Any:
            take = lambda part: batch.part(*part) if part else batch
            return [at(theta, take(part), *rest) for part in parts][-1]

        return slope

    task, data = silent(), data_of(rows_of([[1.0] * 12]), 0)
    turn = turn_of()._replace(ledger=Ledger())
    recipe = Recipe(steps=1, batch=12, dp_clip=1.0, dp_noise=1.0)
    fit(task, task.init(rng.key(0)), data, turn, recipe, gradient=gradient)
    assert entries(turn.ledger) == [(1, gradients, 1.0)]


SIZES = (7, 20, 13, 16, 9, 11)


def batches(size: int, last: str) -> list[int]:
    return [n // size if last == "drop" else -(-n // size) for n in SIZES]


@pytest.mark.parametrize("options", [{"engine": "sequential"}, {}, {"chunk": 1}, {"chunk": 4}])
@pytest.mark.parametrize("last", ["pad", "drop"])
def test_a_round_is_charged_by_client(last: str, options: dict[str, Any]) -> None:
    """Whoever shares the call: a client pays for its own batches, in every epoch."""
    task = task_of()
    recipe = Recipe(epochs=3, batch=8, last=last, dp_clip=1.0)
    sim = simulate(fedavg(task, recipe=recipe), ragged(SIZES), task, **options)
    (report,) = play(sim)
    assert report.noisy[:, 0].tolist() == [3 * b for b in batches(8, last)]
    (report,) = play(sim, [[4, 1]])
    assert report.noisy[:, 0].tolist() == [3 * batches(8, last)[i] for i in (1, 4)]
    steps = replace(recipe, steps=5)
    sim = simulate(fedavg(task, recipe=steps), ragged(SIZES), task, **options)
    assert play(sim)[0].noisy.tolist() == [[5, 1, min(1, 8 / n)] for n in SIZES]
    free = replace(recipe, dp_clip=0.0)
    sim = simulate(fedavg(task, recipe=free), ragged(SIZES), task, **options)
    assert play(sim)[0].noisy.tolist() == [[0, 0, 0]] * 6


@pytest.mark.parametrize(
    ("engine", "last"),
    [
        ("sequential", "pad"),
        ("vectorised", "pad"),
        ("sequential", "drop"),
        ("vectorised", "drop"),
    ],
)
def test_all_rows_at_once_are_one_gradient_for_everybody(engine: str, last: str) -> None:
    task = task_of()
    recipe = Recipe(batch=0, last=last, dp_clip=1.0)
    sim = simulate(fedavg(task, recipe=recipe), ragged(SIZES), task, engine=engine)
    assert play(sim)[0].noisy.tolist() == [[1, 1, 1]] * 6


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize(
    ("name", "options", "passes", "gradients"),
    [
        ("local", {}, 1, 1),
        ("fedavg", {}, 1, 1),
        ("fedprox", {}, 1, 1),
        ("fedavg-c", {"F": 2}, 3, 1),
        ("ditto", {}, 2, 1),
        ("fedrep", {"head_epochs": 3}, 4, 1),
        ("fedalt", {"personal_epochs": 2}, 3, 1),
        ("fedsim", {}, 1, 1),
        ("fedfomo", {"M": 2}, 1, 1),
        ("fedfomo-ma", {}, 1, 1),
        ("pmixfed", {}, 1, 1),
        ("apple", {}, 1, 1),
        ("scaffold", {}, 1, 1),
        ("pfedhn", {"hidden": 4, "depth": 1}, 1, 1),
        ("pfedla", {"hidden": 4, "embed": 3, "depth": 1}, 1, 1),
        ("heurpfedla", {"hidden": 4, "embed": 3, "depth": 1}, 1, 1),
        # sharpness-aware: two gradients a step, or three
        ("fedsam", {}, 1, 2),
        ("plgu-lf", {}, 1, 2),
        ("plgu-lf", {"eval_point": "w"}, 1, 3),
        ("plgu-grep", {"head_epochs": 2}, 2 + 1, 3),
        ("plgu-grep", {"head_epochs": 0, "reuse_grad": True}, 1, 2),
        ("plgu-ghn", {"hidden": 4, "depth": 1}, 1, 2),
        # an inner loop on the batch, and two models on it
        ("pfedme", {"K": 4, "R": 0}, 1, 4),
        ("apfl", {"adaptive": False}, 1, 2),
    ],
)
def test_methods_are_charged_for_every_gradient(
    name: str, options: dict[str, Any], passes: int, gradients: int, engine: str
) -> None:
    task = task_of()
    recipe = Recipe(batch=8, dp_clip=1.0, dp_noise=1.0, lr=0.01)
    method = METHODS[name](task, recipe=recipe, **options)
    sim = simulate(method, ragged(SIZES), task, engine=engine)
    for report in play(sim, 2):
        found = report.noisy[:, :2].tolist()
        assert found == [[passes * b, gradients] for b in batches(8, "pad")]
        assert report.noisy[:, 2].tolist() == [min(1, 8 / n) for n in SIZES]


@pytest.mark.parametrize(("name", "parts", "gradients"), [("fo", 2, 1), ("hf", 3, 2)])
def test_per_fedavg_is_charged_by_parts_of_a_batch(name: str, parts: int, gradients: int) -> None:
    """No example is in two parts; the Hessian's takes the gradient twice on the last one. So a step
    is one sample of all parts' rows."""
    task = task_of()
    recipe = Recipe(batch=4, dp_clip=1.0, dp_noise=1.0, lr=0.01)
    sim = simulate(METHODS[f"perfedavg-{name}"](task, recipe=recipe), ragged(SIZES), task)
    (report,) = play(sim)
    whole = zip(batches(4 * parts, "pad"), SIZES, strict=True)
    for found, (b, n) in zip(report.noisy.tolist(), whole, strict=True):
        assert found == pytest.approx([b, gradients, min(1, 4 * parts / n)])
    # the model that a client uses is adapted by one noisy step more
    assert sim.outputs().noisy.tolist() == [[1, 1, 4 / n] for n in SIZES]


def test_halves_of_the_rows_are_sampled_at_twice_the_rate() -> None:
    """PartialFed learns logits on one half of the rows and the model on the other."""
    task, recipe = task_of(), Recipe(batch=4, dp_clip=1.0, dp_noise=1.0, lr=0.01)
    sim = simulate(METHODS["partialfed"](task, recipe=recipe), ragged([40]), task)
    assert play(sim)[0].noisy.tolist() == [[10, 1, 4 / 20]]


# --------------------------------------------------------------------------------------------- ε


def test_epsilon_of_the_reference() -> None:
    """A published value: q = 50/2667, σ = 1, δ = 1e-5, 88 epochs of 54 steps: about 9.2 (9.32 with
    whole orders only, which is a valid bound too)."""
    assert epsilon(Spent(88 * 54, 1, 50 / 2667), 1.0, 1e-5) == pytest.approx(9.2, abs=0.2)


@pytest.mark.parametrize(
    ("steps", "rate", "noise"),
    [(88 * 54, 50 / 2667, 1.0), (88 * 54, 50 / 2667, 2.0), (100, 0.1, 1.0), (20, 1.0, 4.0)],
)
def test_epsilon_against_an_accountant_of_its_own(steps: int, rate: float, noise: float) -> None:
    """dp_accounting with its default orders, which include fractions: never more than ours."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(event, steps)
    theirs = accountant.get_epsilon(1e-5)
    ours = epsilon(Spent(steps, 1, rate), noise, 1e-5)
    assert theirs * (1 - 1e-9) <= ours <= 1.05 * theirs


def test_epsilon_of_full_batches_by_hand() -> None:
    """q = 1: Rényi divergence T α/(2σ²); the conversion of Canonne et al. at the best order."""
    steps, noise, delta = 10, 5.0, 1e-5
    found = min(
        steps * a / (2 * noise**2) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a in range(2, 64)
    )
    assert epsilon(Spent(steps, 1, 1.0), noise, delta) == pytest.approx(found, rel=1e-6)


def test_gradients_on_one_batch_by_hand() -> None:
    """With all rows in every batch it does not matter whether K gradients are taken on one batch or
    on K: the divergence is K T α/(2σ²) either way."""
    together = epsilon(Spent(10, 4, 1.0), 8.0, 1e-5)
    assert together == pytest.approx(epsilon(Spent(40, 1, 1.0), 8.0, 1e-5), rel=1e-9)


@pytest.mark.parametrize(("gradients", "noise"), [(2, 1.0), (5, 2.0)])
def test_gradients_on_one_batch_are_not_cheaper_than_they_are(gradients: int, noise: float) -> None:
    """Against an accountant of another kind (privacy loss distributions), which is nearly tight;
    and as gradients on batches of their own they would be too cheap."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    alone = dp_accounting.GaussianDpEvent(noise / math.sqrt(gradients))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, alone), 100)
    tight = accountant.get_epsilon(1e-5)
    assert tight <= epsilon(Spent(100, gradients, 0.1), noise, 1e-5) <= 1.35 * tight
    assert epsilon(Spent(100 * gradients, 1, 0.1), noise, 1e-5) < tight


def test_epsilon_grows_with_steps_and_falls_with_noise() -> None:
    """ε falls with more noise and grows with more batches, strictly; it is infinite without noise,
    and 0 for nothing."""
    by_steps = [epsilon(Spent(t, 1, 0.05), 1.0, 1e-5) for t in (0, 1, 10, 100, 1000)]
    assert by_steps[0] == 0
    assert by_steps == sorted(set(by_steps))
    by_noise = [epsilon(Spent(100, 1, 0.05), s, 1e-5) for s in (0.0, 0.5, 1.0, 2.0, 8.0)]
    assert by_noise[0] == INF
    assert by_noise == sorted(set(by_noise), reverse=True)
    by_rate = [epsilon(Spent(100, 1, q), 1.0, 1e-5) for q in (0.01, 0.1, 0.5, 1.0)]
    assert by_rate == sorted(set(by_rate))
    by_delta = [epsilon(Spent(100, 1, 0.05), 1.0, d) for d in (1e-7, 1e-5, 1e-3)]
    assert by_delta == sorted(set(by_delta), reverse=True)
    by_gradients = [epsilon(Spent(100, k, 0.05), 2.0, 1e-5) for k in (1, 2, 5)]
    assert by_gradients == sorted(set(by_gradients))


# --------------------------------------------------------------------------------------------- runs


def history(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]


class Stopped(Exception):
    """As if the process had died."""


def stop_after(round: int, line: dict[str, Any], rounds: int) -> None:
    if line["round"] == round:
        raise Stopped


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private") / "run"
    fedtailor.run("fedavg", out=folder, participation=0.5, **PRIVATE)
    return folder


def test_a_run_says_its_epsilon(finished: Path) -> None:
    """Per client, over all its rounds; a client that was not drawn spends nothing."""
    lines = history(finished)
    result = json.loads((finished / "result.json").read_text())
    assert result["epsilon"] == lines[-1]["epsilon"]  # FedAvg trains no more before the test
    rows = [int(row.split(",")[1]) for row in (finished / "clients.csv").read_text().split()[1:]]
    taken = [0] * 4
    for line in lines:
        for i in line["cohort"]:
            taken[i] += -(-rows[i] // 150)
        spent = [Spent(n, 1, min(1, 150 / own)) for n, own in zip(taken, rows, strict=True)]
        expected = [epsilon(one, 1.0, 1e-5) for one in spent]
        assert line["epsilon"]["each"] == pytest.approx(expected, abs=1e-6)
        assert line["epsilon"]["max"] == pytest.approx(max(expected), abs=1e-6)
        assert line["epsilon"]["delta"] == 1e-5
    most = [line["epsilon"]["max"] for line in lines]
    assert most == sorted(most)
    assert most[-1] > most[0]


def test_two_kinds_of_accountants_agree_on_a_run(finished: Path) -> None:
    """Ours by Rényi divergences; privacy loss distributions are nearly tight, and never above."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    saved = json.loads((finished / "checkpoint" / "latest.json").read_text())
    for spent in filter(any, map(Spent.of, saved["noisy"])):
        accountant = PLDAccountant(value_discretization_interval=1e-3)
        event = dp_accounting.PoissonSampledDpEvent(spent.rate, dp_accounting.GaussianDpEvent(1.0))
        accountant.compose(event, spent.batches)
        tight = accountant.get_epsilon(1e-5)
        assert tight <= epsilon(spent, 1.0, 1e-5) <= 1.25 * tight


# ------------------------------------------------------------------------ what an attacker can tell


def told_apart(noise: float, delta: float) -> float:
    """ε that an attacker reaches at least (by chance once in 500 audits), who sees final models.

    4,000 clients train alone on eight rows, half of them with one row whose gradient is far above
    the clip, the others with a blank one in its place; everything else says nothing. The attacker
    takes high models for those with the row; where to cut is chosen on half of the clients.
    """
    from scipy.stats import binomtest

    task = numbers({"w": 0.0}, lambda p, x: p["w"] * x)
    world = rows_of([[0.0] * 7 + [-9.0 * (i % 2)] for i in range(4000)], [[0.0]] * 4000)
    recipe = Recipe(batch=4, lr=1.0, dp_clip=1.0, dp_noise=noise)
    sim = simulate(local(task, recipe=recipe), world, task, rounds=3)
    play(sim, 3)
    model = sim.states.rows["own"]["w"].reshape(2, -1, 2)  # halves x clients x (without, with)
    cuts = model[0].flatten().sort().values[20:-20:20]
    count = lambda half, cut: [int((model[half, :, with_it] > cut).sum()) for with_it in (0, 1)]
    cut = max(cuts, key=lambda c: (count(0, c)[1] + 1) / (count(0, c)[0] + 5))
    false, true = (binomtest(k, 1000).proportion_ci(0.998, method="exact") for k in count(1, cut))
    return math.log(max(true.low - delta, 1e-12) / false.high)


@pytest.mark.parametrize("noise", [0.8, 1.5])
def test_an_attacker_tells_no_more_than_epsilon_allows(noise: float) -> None:
    assert 0.2 < told_apart(noise, 1e-3) <= epsilon(Spent(6, 1, 0.5), noise, 1e-3)


def test_the_attacker_would_notice_a_noise_that_is_too_small() -> None:
    assert told_apart(0.2, 1e-3) > epsilon(Spent(6, 1, 0.5), 1.5, 1e-3)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped in its third round, and resumed from its second."""
    folder = tmp_path_factory.mktemp("private") / "run"
    with pytest.raises(Stopped):
        fedtailor.run(
            "fedavg",
            out=folder,
            participation=0.5,
            checkpoint_every=1,
            watch=partial(stop_after, 3),
            **PRIVATE,
        )
    assert len(history(folder)) == 3
    saved = json.loads((folder / "checkpoint" / "latest.json").read_text())
    assert saved["round"] == 2
    assert sum(batches for batches, *_ in saved["noisy"]) > 0
    resume(folder)
    return folder


def test_epsilon_survives_a_crash(finished: Path, resumed: Path) -> None:
    """What a run spent before it was resumed is neither forgotten nor counted twice."""
    ours, theirs = history(resumed), history(finished)
    assert [line["epsilon"] for line in ours] == [line["epsilon"] for line in theirs]


def test_a_resumed_run_draws_the_same_noise(finished: Path, resumed: Path) -> None:
    ours, theirs = history(resumed), history(finished)
    assert [line["pre"] for line in ours] == [line["pre"] for line in theirs]


def test_noise_does_not_depend_on_the_order_of_names() -> None:
    """What a checkpoint, a wire or another machine may change."""
    slope, batch = private_gradient(linear, 1.0, 1.0), batch_of(torch.zeros(3, 2))
    forth = slope(HERE, batch, {}, {})[0]
    back = slope({"b": HERE["b"], "a": HERE["a"]}, batch, {}, {})[0]
    assert float(forth["a"]) == float(back["a"])


def test_more_noise_costs_less_and_none_has_no_epsilon() -> None:
    short = PRIVATE | {"rounds": 1}
    loud = fedtailor.run("fedavg", **short | {"dp_noise": 2.0})["epsilon"]["max"]
    plain_ = fedtailor.run("fedavg", **short)["epsilon"]["max"]
    assert loud < plain_
    none = fedtailor.run("fedavg", **short | {"dp_noise": 0.0})["epsilon"]
    assert none["max"] is None
    assert none["each"] == [None] * 4
    assert fedtailor.run("fedavg", **SMALL | {"rounds": 1})["epsilon"] is None


def test_fine_tuning_is_charged() -> None:
    one, two, three = (
        fedtailor.run("local", **PRIVATE | {"rounds": rounds, "finetune": tune})["epsilon"]["max"]
        for rounds, tune in ((1, 0), (1, 2), (3, 0))
    )
    assert one < two
    assert two == pytest.approx(three, abs=1e-5)  # two epochs more, either way


def test_models_that_are_trained_to_be_judged_are_charged() -> None:
    """Per-FedAvg takes a step before each evaluation: its accuracies tell of that step."""
    often, once = (
        fedtailor.run("perfedavg-fo", **PRIVATE | {"rounds": 3, "eval_every": every})["epsilon"]
        for every in (1, 3)
    )
    assert often["max"] > once["max"]
    assert "seed" in often["noise"]


def narrow(form: Form) -> nn.Module:
    """A small network with a body and a head, for --model."""
    first = nn.Linear(math.prod(form.shape), 8)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(8, form.classes))


def test_what_a_method_trains_before_the_test_is_charged() -> None:
    """FedBABU's F epochs are those of fine-tuning; each is on the whole network."""
    short = PRIVATE | {"model": f"{__name__}:narrow", "rounds": 1}
    runs = [
        fedtailor.run("fedbabu", options={"F": own}, **short | {"finetune": tune})
        for own, tune in ((0, 0), (2, 0), (0, 2), (1, 1))
    ]
    none, *same = (run["epsilon"]["max"] for run in runs)
    assert none < same[0]
    assert same == pytest.approx([same[0]] * 3, abs=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_epsilon_does_not_depend_on_the_engine(engine: str) -> None:
    found = fedtailor.run("plgu-lf", engine=engine, chunk=3, **PRIVATE | {"rounds": 1})["epsilon"]
    less = PRIVATE | {"rounds": 1, "dp_noise": math.sqrt(0.5)}
    once = fedtailor.run("fedavg", **less)["epsilon"]
    # two gradients on a batch cost as much as one with 1/√2 of the noise
    assert found["each"] == pytest.approx(once["each"])
    twice = fedtailor.run("fedavg", epochs=2, **PRIVATE | {"rounds": 1})["epsilon"]
    assert found["max"] > twice["max"]


# ---------------------------------------------------------------------------------- what is refused


def normed(form: Form) -> nn.Module:
    """A small network with BatchNorm, for --model."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(form.shape), 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, form.classes),
    )


def refused(method: str, **settings: Any) -> str:
    with pytest.raises(BadInput) as error:
        fedtailor.run(method, **PRIVATE | settings)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_batch_norm_is_refused() -> None:
    message = refused("fedavg", model=f"{__name__}:normed")
    assert "BatchNorm" in message
    assert "GroupNorm" in message


@pytest.mark.parametrize("method", ["fedala", "fedavg+ala", "ditto+ala", "fedrep+ala"])
def test_ala_is_refused(method: str) -> None:
    message = refused(method, model="mlp")
    assert method in message
    assert "ALA" in message


@pytest.mark.parametrize("method", ["fedalt+ala+mix", "fedsim+ala+mix"])
def test_ala_is_refused_wherever_it_stands(method: str) -> None:
    refused(method, model="mlp", rounds=1)


def test_rows_that_are_given_away_are_refused() -> None:
    message = refused("fedavg-data")
    assert "fedavg-data" in message
    assert "give rows away" in message
    fedtailor.run("fedavg-data", options={"beta": 0.0}, **PRIVATE | {"rounds": 1})


def test_the_accountant_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in sys.modules makes the import fail, as if it were not installed."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(BadInput, match=r"fedtailor\[privacy\]"):
        require_accountant()
    assert "fedtailor[privacy]" in refused("fedavg")
    # without DP-SGD nobody needs it
    fedtailor.run("fedavg", **SMALL | {"rounds": 1})


def test_settings_that_make_no_sense() -> None:
    for given, word in (
        ({"dp_noise": 1.0}, "dp-clip"),
        ({"dp_noise": 1.0, "dp_clip": "inf"}, "finite"),
        ({"dp_clip": 1.0, "dp_delta": 0.0}, "dp-delta"),
        ({"dp_clip": 1.0, "dp_delta": 1.0}, "dp-delta"),
        ({"dp_clip": -1.0}, "dp_clip"),
        ({"dp_clip": 1.0, "dp_noise": "inf"}, "dp_noise"),
    ):
        with pytest.raises(BadInput, match=word):
            make_config("fedavg", given, {})
    assert make_config("fedavg", {"dp_clip": "inf"}, {}).dp_clip == INF


def test_descend_is_charged_wherever_it_is_called() -> None:
    """Not `fit` alone: PLGU-LF and ALA call `descend` themselves."""
    data = data_of(rows_of([[1.0, 2.0, 3.0]]), 0)
    objective = lambda theta, batch, given, carried: ((theta["w"] * batch.x).mean(), {})
    turn, recipe = turn_of()._replace(ledger=Ledger()), Recipe(batch=2, dp_clip=1.0)
    descend(objective, {"w": torch.tensor(0.0)}, data, turn, recipe)
    assert entries(turn.ledger) == [(2, 1, pytest.approx(2 / 3))]
