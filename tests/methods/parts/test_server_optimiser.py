"""Server optimisers: FedAvgM, FedAdam, FedYogi and FedAdagrad, around any method with a mean."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedtailor import BadInput, Method
from fedtailor.core import rng, tree
from fedtailor.core.method import ClientCount
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS, ditto, fedala, fedavg, fedbn, fedrep, local, scaffold
from fedtailor.methods.find import find
from fedtailor.methods.parts.server_optimiser import (
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimiser,
    ServerYogi,
    with_server_optimiser,
)
from tests.methods.worlds import (
    ENGINES,
    HALF,
    gap,
    models,
    near,
    one_number,
    outcome,
    play,
    ragged,
    rows_of,
    same,
    simulate,
    task_of,
)

RULES: dict[str, ServerOptimiser] = {
    "avgm": ServerMomentum(),
    "nesterov": ServerMomentum(nesterov=True),
    "ema": ServerMomentum(ema=True),
    "adam": ServerAdam(),
    "adam-google": ServerAdam(variant="google"),
    "yogi": ServerYogi(),
    "yogi-google": ServerYogi(variant="google"),
    "adagrad": ServerAdagrad(),
    "adagrad-google": ServerAdagrad(variant="google"),
}
COHORTS = [[0, 1, 3], [1, 2, 4, 5], [0, 2, 5]]


def moves(rule: ServerOptimiser, deltas: list[Tensor]) -> list[Tensor]:
    """What an optimiser makes of the clients' moves, one after the other."""
    slots, found = rule.slots({"w": torch.zeros_like(deltas[0])}), []
    for number, delta in enumerate(deltas):
        slots, move = rule.move(slots, {"w": delta}, torch.tensor(number + 1))
        found.append(move["w"])
    return found


def random_deltas(steps: int = 5) -> list[Tensor]:
    maker = torch.Generator().manual_seed(3)
    return [torch.randn(7, generator=maker) for _ in range(steps)]


# ------------------------------------------------------------------------------------ by hand

# One row 2 against three rows 10: their weighted mean is 8, and a round takes w half way to it,
# so that Δ = (8 - w)/2: 4 from w = 0, then 3 wherever the first step ends at w = 2.


def path(rule: ServerOptimiser, engine: str, rounds: int) -> list[float]:
    task = one_number()
    method = with_server_optimiser(fedavg(task, recipe=HALF), task, rule)
    sim = simulate(method, rows_of([[2.0], [10.0, 10.0, 10.0]]), task, engine=engine)
    found = []
    for _ in range(rounds):
        play(sim)
        found.append(float(sim.server["params"]["w"]))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # v = 4, w = 0.5 4 = 2;  Δ = 3, v = 2 + 3 = 5, w = 2 + 2.5;  Δ = 1.75, v = 4.25
        (ServerMomentum(0.5, 0.5), [2.0, 4.5, 6.625]),
        # w = 0.5 (4 + 2) = 3;  Δ = 2.5, v = 2 + 2.5 = 4.5, w = 3 + 0.5 (2.5 + 2.25)
        (ServerMomentum(0.5, 0.5, nesterov=True), [3.0, 5.375]),
        # v = 2, w = 2;  Δ = 3, v = 1 + 1.5 = 2.5, w = 4.5;  Δ = 1.75, v = 1.25 + 0.875 = 2.125
        (ServerMomentum(1.0, 0.5, ema=True), [2.0, 4.5, 6.625]),
        # (1 - β) Δ = 2 in place of Δ: v = 2, w = 2 + 1 = 3;  2.5 -> 1.25, v = 2.25, 1.25 + 1.125
        (ServerMomentum(1.0, 0.5, nesterov=True, ema=True), [3.0, 5.375]),
        # m = 2, v = 0.8 + 0.2 16 = 4, w = 3 2/(2 + 1) = 2;  m = 1 + 1.5, v = 3.2 + 0.2 9 = 5
        (ServerAdam(3.0, 0.5, 0.8, 1.0), [2.0, 2 + 3 * 2.5 / (sqrt(5) + 1)]),
        # m = 2, v = 1 + 0.1875 16 = 4, w = 2;  m = 2.5, v = 4 + 0.1875 9 = 5.6875
        (ServerYogi(3.0, 0.5, 0.8125, 1.0), [2.0, 2 + 3 * 2.5 / (sqrt(5.6875) + 1)]),
        # v = 9 + 16 = 25, w = 4 4/(5 + 3) = 2;  v = 25 + 9, no momentum
        (ServerAdagrad(4.0, tau=3.0), [2.0, 2 + 4 * 3 / (sqrt(34) + 3)]),
        # v = 0 + 16, w = 3.5 4/(4 + 3) = 2;  v = 16 + 9, w = 2 + 3.5 3/(5 + 3)
        (ServerAdagrad(3.5, tau=3.0, variant="google"), [2.0, 3.3125]),
        # m = 2, then 1 + 1.5;  v = 25, 34
        (ServerAdagrad(8.0, 0.5, 3.0), [2.0, 2 + 8 * 2.5 / (sqrt(34) + 3)]),
    ],
    ids=str,
)
def test_two_clients_by_hand(
    rule: ServerOptimiser, expected: list[float], engine: str, double: None
) -> None:
    assert path(rule, engine, len(expected)) == near(*expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_corrected_rate_by_hand(engine: str, double: None) -> None:
    # Adam, β₁ = 0.5, β₂ = 0.8, τ = 1.  Step 1: m = 2, v = 0.2 16 = 3.2, c = √0.2/0.5
    # step 2: Δ = (8 - w)/2, m = 1 + Δ/2, v = 2.56 + 0.2 Δ², c = √0.36/0.75 = 0.8
    first = sqrt(0.2) / 0.5 * 2 / (sqrt(3.2) + 1)
    delta = (8 - first) / 2
    second = first + 0.8 * (1 + delta / 2) / (sqrt(2.56 + 0.2 * delta**2) + 1)
    found = path(ServerAdam(1.0, 0.5, 0.8, 1.0, "google"), engine, 2)
    assert found == near(first, second)
    # Yogi's first step is Adam's; then v = 3.2 + 0.2 Δ², since Δ² is above 3.2
    second = first + 0.8 * (1 + delta / 2) / (sqrt(3.2 + 0.2 * delta**2) + 1)
    assert delta**2 > 3.2
    assert path(ServerYogi(1.0, 0.5, 0.8, 1.0, "google"), engine, 2) == near(first, second)


def test_yogi_lets_v_fall_by_a_share_of_the_square() -> None:
    rule = ServerYogi(beta2=0.75)
    slots = {"mean": {"w": torch.zeros(3)}, "square": {"w": torch.tensor([9.0, 4.0, 1.0])}}
    slots, _ = rule.move(slots, {"w": torch.full((3,), 2.0)}, torch.tensor(1))
    assert slots["square"]["w"].tolist() == [8.0, 4.0, 2.0]  # down, still, up by 0.25 4


# ----------------------------------------------------------------------- yardsticks from outside


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_torch(nesterov: bool, double: None) -> None:
    w = torch.zeros(7, requires_grad=True)
    there = torch.optim.SGD([w], lr=0.3, momentum=0.8, nesterov=nesterov)
    for delta, move in zip(
        random_deltas(),
        moves(ServerMomentum(0.3, 0.8, nesterov=nesterov), random_deltas()),
        strict=True,
    ):
        before = w.detach().clone()
        w.grad = -delta
        there.step()
        assert (w.detach() - before).tolist() == pytest.approx(move.tolist(), rel=1e-12)


def test_google_adam_is_that_of_torch(double: None) -> None:
    """Torch adds eps to the corrected root, so that it takes τ/√(1 − β₂ˢ) there."""
    w = torch.zeros(7, requires_grad=True)
    there = torch.optim.Adam([w], lr=0.3, betas=(0.9, 0.999))
    found = moves(ServerAdam(0.3, 0.9, 0.999, 0.01, "google"), random_deltas())
    for number, (delta, move) in enumerate(zip(random_deltas(), found, strict=True)):
        before = w.detach().clone()
        w.grad = -delta
        there.param_groups[0]["eps"] = 0.01 / sqrt(1 - 0.999 ** (number + 1))
        there.step()
        assert (w.detach() - before).tolist() == pytest.approx(move.tolist(), rel=1e-9)


def test_the_correction_keeps_its_digits_in_single_precision() -> None:
    """1 − 0.999 in single precision would be off by 5e-5; moves are single precision."""
    (move,) = moves(ServerAdam(1.0, 0.9, 0.999, 1e-12, "google"), [torch.full((2,), 3.0)])
    assert move.dtype == torch.float32
    assert move.tolist() == pytest.approx([1.0, 1.0], rel=1e-6)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_the_reading_of_hospital_benchmarks_is_a_matter_of_options(kind: str, double: None) -> None:
    """v begins at 0, nothing is corrected, τ is 1e-8, and Adagrad keeps its momentum."""
    adaptive = {"server_lr": 0.01, "beta1": 0.9, "tau": 1e-8}
    rule: ServerOptimiser = {
        "adam": ServerAdam(**adaptive, beta2=0.999),
        "yogi": ServerYogi(**adaptive, beta2=0.999),
        "adagrad": ServerAdagrad(**adaptive),
    }[kind]
    m, v = np.zeros(7), np.zeros(7)
    for delta, move in zip(random_deltas(), moves(rule, random_deltas()), strict=True):
        d = delta.numpy()
        m = 0.9 * m + 0.1 * d
        if kind == "adam":
            v = 0.999 * v + 0.001 * d * d
        elif kind == "yogi":
            v = v - 0.001 * d * d * np.sign(v - d * d)
        else:
            v = v + d * d
        assert move.numpy() == pytest.approx(0.01 * m / (np.sqrt(v) + 1e-8), rel=1e-9)


# ------------------------------------------------------------------------------------ what holds


@pytest.mark.parametrize("net", ["mlp", "norm"])
@pytest.mark.parametrize("ema", [False, True])
def test_without_momentum_it_is_the_host(net: str, ema: bool, double: None) -> None:
    task, world = task_of(net), ragged()
    recipe = Recipe(batch=8, lr=0.1)
    plain = fedavg(task, recipe=recipe)
    moved = with_server_optimiser(plain, task, ServerMomentum(1.0, 0.0, ema=ema))
    sims = [simulate(method, world, task) for method in (plain, moved)]
    for sim in sims:
        play(sim, COHORTS)
    assert gap(*map(models, sims)) < 1e-12


def test_with_full_momentum_the_velocity_is_the_sum_of_moves(double: None) -> None:
    deltas = random_deltas()
    found = moves(ServerMomentum(1.0, 1.0), deltas)
    for number, move in enumerate(found):
        assert move.tolist() == pytest.approx(sum(deltas[: number + 1]).tolist(), rel=1e-12)


@pytest.mark.parametrize("tau", [10.0, 1e3, 1e6])
def test_adam_is_straight_where_tau_is_large(tau: float, double: None) -> None:
    """η = τ and no memory: τ Δ/(|Δ| + τ) is Δ up to Δ²/τ."""
    (delta, *_) = random_deltas()
    (move,) = moves(ServerAdam(tau, 0.0, 0.0, tau), [delta])
    assert ((move - delta).abs() <= delta.square() / tau + 1e-12).all()
    assert not torch.equal(move, delta)


@pytest.mark.parametrize("rule", [ServerAdam, ServerYogi])
def test_without_tau_the_first_step_is_a_sign(rule: Any, double: None) -> None:
    (delta, *_) = random_deltas()
    delta[2] = 0.0
    (move,) = moves(rule(0.3, tau=1e-12, variant="google"), [delta])
    assert move.tolist() == pytest.approx((0.3 * delta.sign()).tolist(), rel=1e-9)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_it_goes_where_the_clients_go(rule: ServerOptimiser, double: None) -> None:
    """One small step lowers a quadratic of which Δ is a descent step; no move, no step."""
    target, w = torch.tensor([3.0, -2.0, 0.5]), torch.zeros(3)
    (move,) = moves(rule._replace(server_lr=1e-3), [0.1 * (target - w)])  # type: ignore[attr-defined]
    assert (w + move - target).square().sum() < (w - target).square().sum()
    (still,) = moves(rule, [torch.zeros(3)])
    assert still.tolist() == [0.0, 0.0, 0.0]


def test_adagrads_steps_only_shrink_and_yogis_change_little() -> None:
    adagrad, yogi = ServerAdagrad(), ServerYogi()
    sums, slow = (rule.slots({"w": torch.zeros(7)}) for rule in (adagrad, yogi))
    for delta in random_deltas():
        was, before = sums["square"]["w"], slow["square"]["w"]
        sums, _ = adagrad.move(sums, {"w": delta}, torch.tensor(1))
        slow, _ = yogi.move(slow, {"w": delta}, torch.tensor(1))
        assert (sums["square"]["w"] >= was).all()
        change = (slow["square"]["w"] - before).abs()
        assert (change <= 0.01 * delta.square() * (1 + 1e-5) + 1e-7).all()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_buffers_never_pass_through(rule: ServerOptimiser) -> None:
    """In the first round, and in any in which the weights do not move."""
    task, world = task_of("norm"), ragged()
    plain = fedavg(task, recipe=Recipe(batch=8, lr=0.1))
    moved = with_server_optimiser(plain, task, rule)
    sims = [simulate(method, world, task) for method in (plain, moved)]
    for sim in sims:
        play(sim, COHORTS[:1])
    buffers = [tree.pick(sim.server["params"], task.buffers) for sim in sims]
    assert task.buffers and same(*buffers)
    assert not same(sims[0].server["params"], sims[1].server["params"])
    assert not set(tree.flatten(sims[1].server["optimiser"])) & {
        f"slots/{slot}/{name}" for slot in ("velocity", "mean", "square") for name in task.buffers
    }
    for _ in range(6):
        play(sims[1])
    assert all((v > 0).all() for k, v in sims[1].server["params"].items() if "running_var" in k)


def test_bn_of_ones_own_is_not_touched() -> None:
    task = task_of("norm")
    method = with_server_optimiser(fedbn(task), task, ServerAdam())
    sim = simulate(method, ragged(), task)
    assert not set(sim.server["shared"]) & set(task.batch_norm)
    play(sim)
    assert set(sim.server["optimiser"]["slots"]["mean"]) == set(sim.server["shared"])


@pytest.mark.parametrize("rule", [ServerMomentum(), ServerAdam(), ServerYogi(), ServerAdagrad()])
def test_ditto_sees_it_only_through_the_received_model(rule: ServerOptimiser) -> None:
    task, world = task_of(), ragged()
    fedavg_moved = with_server_optimiser(fedavg(task), task, rule)
    w_path = simulate(fedavg_moved, world, task)
    play(w_path, COHORTS)
    for lam, first_rounds in ((0.0, 3), (1.0, 1)):
        plain = ditto(task, lam=lam)
        sims = [simulate(m, world, task) for m in (plain, with_server_optimiser(plain, task, rule))]
        for sim in sims:
            play(sim, COHORTS[:first_rounds])
        assert same(*(sim.states.rows for sim in sims))
        play(sims[1], COHORTS[first_rounds:])
        assert same(sims[1].server["params"], w_path.server["params"])  # for every λ


def test_fedreps_heads_are_untouched_in_the_first_round() -> None:
    task, world = task_of(), ragged()
    plain = fedrep(task, head_epochs=2)
    moved = with_server_optimiser(plain, task, ServerYogi())
    sims = [simulate(method, world, task) for method in (plain, moved)]
    for sim in sims:
        play(sim)
    assert same(*(sim.states.rows for sim in sims))
    assert not same(*(sim.server["shared"] for sim in sims))
    assert set(sims[1].server["optimiser"]["slots"]["square"]).isdisjoint(task.head)


def test_fedala_begins_from_the_optimised_model() -> None:
    """What ALA mixes with is what the server has after its own step."""
    task, world = task_of(), ragged()
    inside = find("fedavg+adam+ala")(task, max_ala_epochs=3)
    outside = find("fedala+adam")(task, max_ala_epochs=3)
    sims = [simulate(method, world, task) for method in (inside, outside)]
    for sim in sims:
        play(sim, COHORTS)
    assert same(*map(outcome, sims))
    plain = simulate(fedala(task, max_ala_epochs=3), world, task)  # type: ignore[call-arg]
    play(plain, COHORTS)
    assert not same(models(plain), models(sims[0]))


def test_scaffolds_control_is_left_alone() -> None:
    task, world = task_of(), ragged()
    plain = scaffold(task)
    sims = [
        simulate(m, world, task)
        for m in (plain, with_server_optimiser(plain, task, ServerMomentum(0.5)))
    ]
    for sim in sims:
        play(sim, COHORTS[:1])
    assert same(*(sim.server["control"] for sim in sims))
    assert set(sims[1].server["optimiser"]["slots"]["velocity"]) == set(sims[1].server["control"])


def test_steps_are_its_own_and_slots_move_whoever_comes() -> None:
    task, world = task_of(), ragged()
    sim = simulate(with_server_optimiser(fedavg(task), task, ServerAdam()), world, task)
    for number, cohort in enumerate(COHORTS):
        before = tree.map(torch.clone, sim.server["optimiser"]["slots"])
        play(sim, [cohort])
        assert int(sim.server["optimiser"]["steps"]) == number + 1
        assert not same(before, sim.server["optimiser"]["slots"])


@pytest.mark.parametrize(
    "name", ["fedavg+adam", "fedrep+avgm", "pmixfed+yogi", "fedsim+mix+adagrad"]
)
def test_engines_agree(name: str, double: None) -> None:
    task, world = task_of("norm"), ragged()
    found = []
    for options in ({"engine": "sequential"}, {"engine": "vectorised"}, {"chunk": 2}):
        sim = simulate(find(name)(task, recipe=Recipe(batch=8, lr=0.1)), world, task, **options)
        play(sim, COHORTS)
        found.append(outcome(sim))
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[0], found[2]) < 1e-9


# ---------------------------------------------------------------------------------- with whom


def test_the_memory_is_not_sent() -> None:
    """Not even by a host that sends all its server has."""
    task = task_of()
    host = fedavg(task)._replace(send=lambda server, cid, turn: server)
    sims = [
        simulate(m, ragged(), task) for m in (host, with_server_optimiser(host, task, ServerAdam()))
    ]
    reports = [play(sim)[0] for sim in sims]
    assert reports[0].down.tolist() == reports[1].down.tolist()
    assert reports[0].up.tolist() == reports[1].up.tolist()


@pytest.mark.parametrize("name", ["local", "cfl", "fedamp", "pfedhn", "apple", "mocha", "fedfomo"])
def test_without_a_common_point_it_is_refused(name: str) -> None:
    task = task_of()
    with pytest.raises(BadInput, match="keeps no point that all clients move") as error:
        with_server_optimiser(METHODS[name](task), task, ServerAdam())
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=f"'{name}' cannot take '\\+adam'"):
        find(f"{name}+adam")


def test_one_optimiser_is_enough() -> None:
    task = task_of()
    once = with_server_optimiser(fedavg(task), task, ServerAdam())
    with pytest.raises(BadInput, match="or has an optimiser"):
        with_server_optimiser(once, task, ServerYogi())
    with pytest.raises(BadInput, match=r"'fedavg\+adam' cannot take '\+yogi'"):
        find("fedavg+adam+yogi")


def test_a_point_that_is_not_there_is_named() -> None:
    task = task_of()
    wrong: Method = local(task)._replace(common="params")
    method = with_server_optimiser(wrong, task, ServerAdam())
    with pytest.raises(BadInput, match="'params', but its server's state has nothing"):
        method.init(ClientCount.of(torch.ones(3)), task.init(rng.key(0)), rng.key(0))


def test_an_optimiser_of_ones_own() -> None:
    """Anything with slots and move: here, half of every step."""

    class Half:
        def slots(self, point: tree.Params) -> tree.Tree:
            return {}

        def move(self, slots: tree.Tree, delta: tree.Params, step: Tensor) -> Any:
            return {}, tree.scale(delta, 0.5)

    assert path(Half(), "vectorised", 2) == near(2.0, 3.5)
