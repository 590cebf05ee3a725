"""Robust means in place of the weighted one, around any method with a mean."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch import Tensor

from fedtailor import BadInput, Method
from fedtailor.core import rng, tree
from fedtailor.core.data import Data
from fedtailor.core.method import Outcome, Upload
from fedtailor.core.rng import Turn
from fedtailor.core.training import Recipe
from fedtailor.core.tree import Tree
from fedtailor.engine.simulation import Diverged
from fedtailor.methods import METHODS, ditto, fedavg, fedrep, scaffold
from fedtailor.methods.find import find
from fedtailor.methods.footprint import footprint
from fedtailor.methods.parts.robust import (
    CohortUploads,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    NormClip,
    RobustRule,
    TrimmedMean,
    with_max_norm,
    with_robust_mean,
)
from fedtailor.results.config import make_config
from fedtailor.runs.build import make_method
from tests.methods.worlds import (
    ENGINES,
    HALF,
    QUICK,
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

RULES: dict[str, RobustRule] = {
    "median": CoordinateMedian(),
    "trimmed": TrimmedMean(),
    "krum": Krum(),
    "multikrum": Krum(take=0),
    "geometric": GeometricMedian(),
    "clip": NormClip(),
}
COHORTS = [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [0, 1, 2, 4, 5]]


def uploads(values: Any, buffers: tuple[str, ...] = (), **more: Any) -> CohortUploads:
    """A cohort's uploads of one entry `w`, one row each; nothing had been sent."""
    stacked = torch.as_tensor(values, dtype=torch.get_default_dtype())
    m = len(stacked)
    weight = torch.full((m,), 1 / m, dtype=torch.float64)
    return CohortUploads({"w": stacked} | more, lambda: [{}] * m, weight, buffers)


def combined(rule: RobustRule, values: Any) -> Tensor:
    found: Tensor = rule.combine(uploads(values))["w"]
    return found


def random_uploads(m: int = 9, d: int = 7) -> Tensor:
    return torch.randn(m, d, generator=torch.Generator().manual_seed(3))


# ------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (CoordinateMedian(), [[1.0], [9.0], [2.0], [4.0]], [3.0]),  # torch's own would be 2
        (CoordinateMedian(), [[1.0, 8.0], [5.0, 7.0], [3.0, 0.0]], [3.0, 7.0]),
        (TrimmedMean(0.2), [[1.0], [100.0], [2.0], [3.0], [7.0]], [4.0]),  # of 2, 3, 7
        (TrimmedMean(0.4), [[1.0], [100.0], [2.0], [3.0], [7.0]], [3.0]),
        # f = 1: two nearest. 0: 1 + 4; 1: 1 + 1; 2: 1 + 4; 4: 4 + 9; 50 is far from all
        (Krum(1), [[0.0], [1.0], [2.0], [4.0], [50.0]], [1.0]),
        # the four lowest: 1 (2), then 0 and 2 (5), then 4 (13)
        (Krum(1, take=0), [[0.0], [1.0], [2.0], [4.0], [50.0]], [1.75]),
        (Krum(1, take=3), [[0.0], [1.0], [2.0], [4.0], [50.0]], [1.0]),
        # norms 1, 2, 6: none goes further than 2
        (NormClip(), [[1.0], [-2.0], [6.0]], [1 / 3]),
        (NormClip(3.0), [[1.0], [-2.0], [6.0]], [2 / 3]),
    ],
    ids=str,
)
def test_by_hand(rule: RobustRule, values: Any, expected: list[float], double: None) -> None:
    assert combined(rule, values).tolist() == pytest.approx(expected, rel=1e-12)


def test_the_geometric_median_by_hand(double: None) -> None:
    """From the median 1 of 0, 1, 5: distances 1, ν and 4 weigh 1, 1e5 and 1/4."""
    beta = np.array([1.0, 1e5, 0.25])
    expected = (beta @ [0.0, 1.0, 5.0]) / beta.sum()
    assert combined(GeometricMedian(1), [[0.0], [1.0], [5.0]]).item() == near(expected)
    # an equilateral triangle's is its centre
    corners = [[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]]
    found = combined(GeometricMedian(100), corners)
    assert found.tolist() == pytest.approx([0.5, 0.75**0.5 / 3], abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # rows' means 2, 8, 3, 6, 100, and a round takes w half way there: 1, 4, 1.5, 3, 50
        ("median", 3.0),
        ("trimmed:0.2", (1.5 + 3.0 + 4.0) / 3),
        ("krum:1", 1.5),  # 1: 0.25 + 4; 1.5: 0.25 + 2.25; 3: 1 + 2.25; 4: 1 + 6.25
        ("multikrum:1", (1 + 1.5 + 3 + 4) / 4),
        ("clip", (1 + 1.5 + 3 + 3 + 3) / 5),
        ("clip:2", (1 + 1.5 + 2 + 2 + 2) / 5),
    ],
)
def test_five_clients_by_hand(name: str, expected: float, engine: str, double: None) -> None:
    """The second has three rows, and counts no more than the others."""
    task = one_number()
    world = rows_of([[2.0], [7.0, 8.0, 9.0], [3.0], [6.0], [100.0]])
    sim = simulate(find(f"fedavg+{name}")(task, recipe=HALF), world, task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_max_norm_by_hand(engine: str, double: None) -> None:
    """From 0, clients go to 1 and 4, one and three rows; 4 is shortened to 2: (1 + 3 2)/4."""
    task = one_number()
    method = with_max_norm(fedavg(task, recipe=HALF), task, 2.0)
    sim = simulate(method, rows_of([[2.0], [7.0, 8.0, 9.0]]), task, engine=engine)
    play(sim)
    assert float(sim.server["params"]["w"]) == near(1.75)
    play(sim)  # from 1.75: to 1.875 and 4.875, of which 1.75 + 2 is admitted
    assert float(sim.server["params"]["w"]) == near((1.875 + 3 * 3.75) / 4)


@pytest.mark.parametrize("rule", [GeometricMedian(weighted=True), NormClip(1e9, weighted=True)])
def test_weights_are_rows_that_the_server_was_told_of(rule: RobustRule, double: None) -> None:
    """Weighted and unbounded, clipping is FedAvg; what an upload says of its weight is nothing."""
    task, world = task_of(), ragged()
    host = fedavg(task, recipe=Recipe(batch=8, lr=0.1))

    def boasting(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        out = host.client(msg, state, data, turn)
        return out._replace(upload=out.upload._replace(weight=1e12 * out.upload.weight**3))

    found = []
    for method in (host, host._replace(client=boasting)):
        sim = simulate(with_robust_mean(method, task, rule), world, task)
        play(sim, COHORTS)
        found.append(sim.server)
    assert same(*found)
    if isinstance(rule, NormClip):
        plain = simulate(host, world, task)
        play(plain, COHORTS)
        assert gap(found[0]["params"], plain.server["params"]) < 1e-12


# ----------------------------------------------------------------------- yardsticks from outside


def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(double: None) -> None:
    for m in range(1, 12):
        values = random_uploads(m)
        assert combined(CoordinateMedian(), values).numpy() == pytest.approx(
            np.median(values.numpy(), axis=0), rel=1e-12
        )
        for share in (0.1, 0.2, 0.29, 0.45):
            assert combined(TrimmedMean(share), values).numpy() == pytest.approx(
                trim_mean(values.numpy(), share, axis=0), rel=1e-12
            )


def test_krum_is_that_of_its_definition(double: None) -> None:
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((9, 4))
        scores = []
        for i in range(9):
            far = sorted(((x[i] - x[j]) ** 2).sum() for j in range(9) if j != i)
            scores.append(sum(far[: 9 - 2 - 2]))
        expected = np.argsort(scores)[:7]
        found = Krum(2, take=0).chosen(uploads(x))
        assert found.tolist() == expected.tolist()


def test_the_geometric_median_has_the_least_sum_of_distances(double: None) -> None:
    values = random_uploads()
    found = combined(GeometricMedian(200), values)
    total = lambda at: float((values - at).norm(dim=1).sum())
    for step in torch.eye(7):
        assert total(found) <= min(total(found + 0.01 * step), total(found - 0.01 * step))


# ------------------------------------------------------------------------------------ what holds


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_equal_models_and_a_single_one_are_what_comes_out(rule: RobustRule, double: None) -> None:
    one = random_uploads(1)
    assert combined(rule, one).tolist() == pytest.approx(one[0].tolist(), rel=1e-12)
    assert combined(rule, one.expand(6, -1)).tolist() == pytest.approx(one[0].tolist(), rel=1e-6)
    exact = combined(CoordinateMedian(), one.expand(6, -1))
    assert torch.equal(exact, one[0])


@pytest.mark.parametrize(
    "rule", [TrimmedMean(0.0), Krum(0, take=9), NormClip(1e30)], ids=["trimmed", "krum", "clip"]
)
def test_without_any_limit_it_is_the_mean(rule: RobustRule, double: None) -> None:
    values = random_uploads()
    assert combined(rule, values).tolist() == pytest.approx(values.mean(0).tolist(), rel=1e-12)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_order_of_clients_makes_no_difference(rule: RobustRule, double: None) -> None:
    values = random_uploads()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    first, second = combined(rule, values), combined(rule, values[order])
    assert first.tolist() == pytest.approx(second.tolist(), rel=1e-9)


@pytest.mark.parametrize("name", [name for name in RULES if name != "clip"])
def test_what_is_common_to_all_moves_the_result(name: str, double: None) -> None:
    """So that it does not matter whether models or their differences are combined."""
    values, shift = random_uploads(), torch.linspace(-5, 5, 7)
    there = combined(RULES[name], values + shift) - shift
    assert there.tolist() == pytest.approx(combined(RULES[name], values).tolist(), abs=1e-6)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e30])
@pytest.mark.parametrize("name", [name for name in RULES if name != "clip"])
def test_one_far_upload_does_not_lead_away(name: str, size: float) -> None:
    """In single precision: squares of 1e30 are infinite there."""
    values = random_uploads(10)
    values[4] = size
    found, others = combined(RULES[name], values), values[torch.arange(10) != 4]
    assert ((found >= others.min(0).values - 0.1) & (found <= others.max(0).values + 0.1)).all()
    assert not (values.mean(0) <= others.max(0).values).all()


def test_clipping_bounds_the_move_of_a_far_upload() -> None:
    values = random_uploads(10)
    values[4] = 1e9
    assert float(combined(NormClip(), values).norm()) <= float(values.norm(dim=1).median()) * 1.01


def test_near_models_keep_their_distances_in_single_precision() -> None:
    """Norms and products would lose them: 200 000 numbers of size 1 that differ by 1e-3."""
    base = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    noise = 1e-3 * torch.randn(5, 200_000, generator=torch.Generator().manual_seed(1))
    noise[3] *= 3
    found = Krum(1, take=4).chosen(uploads(base + noise))
    assert sorted(found.tolist()) == [0, 1, 2, 4]
    exact = Krum(1, take=4).chosen(uploads(noise.double()))
    assert found.tolist() == exact.tolist()


def test_those_krum_takes_count_alike(double: None) -> None:
    """Whatever they say of their rows."""
    found = Krum(1, take=0).combine(
        uploads([[0.0], [1.0], [2.0], [4.0], [50.0]])._replace(
            weight=torch.tensor([1e6, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
        )
    )
    assert found["w"].item() == near(1.75)


@pytest.mark.parametrize("extreme", [torch.inf, -torch.inf, 3e38])
def test_extremes_are_cut_off_before_they_are_added(extreme: float) -> None:
    """The whole sum less its extremes would be NaN."""
    values = random_uploads(10)
    values[0] = extreme
    assert combined(TrimmedMean(0.1), values).isfinite().all()
    assert combined(CoordinateMedian(), values).isfinite().all()


@pytest.mark.parametrize(
    ("share", "m", "cut"), [(0.29, 100, 29), (0.1, 9, 0), (0.1, 10, 1), (0.2, 5, 1), (0.2, 4, 0)]
)
def test_how_many_are_trimmed(share: float, m: int, cut: int, double: None) -> None:
    values = torch.arange(m)[:, None].double() ** 3
    expected = values[cut : m - cut].mean()
    assert combined(TrimmedMean(share), values).item() == near(float(expected))
    assert bool(TrimmedMean(share).caution(m)) == (cut == 0)


def test_a_rule_that_protects_nobody_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    task = task_of()
    sim = simulate(find("fedavg+trimmed:0.1")(task), ragged(), task)
    with caplog.at_level(logging.WARNING, "fedtailor"):
        play(sim, [[0, 1, 2], [1, 2, 3]])
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        "the robust mean protects nobody: trim 0.1 of 3 uploads leaves none out: it is the plain "
        "mean"
    ]


def test_krum_with_too_small_a_cohort_is_refused() -> None:
    task = task_of()
    sim = simulate(find("fedavg+krum:2")(task), ragged(), task)
    with pytest.raises(BadInput, match="hostile=2 needs a cohort of at least 7, this one has 6"):
        play(sim)
    assert sim.round == 0


@pytest.mark.parametrize(("m", "hostile"), [(1, 0), (2, 0), (4, 0), (5, 1), (10, 2), (11, 3)])
def test_by_default_a_fifth_may_be_hostile(m: int, hostile: int) -> None:
    assert len(Krum(take=0).chosen(uploads(random_uploads(m)))) == m - hostile
    assert bool(Krum().caution(m)) == (hostile == 0)


# ------------------------------------------------------------------------- in the engines


@pytest.mark.parametrize("name", ["median", "krum", "clip"])
def test_uploads_that_are_not_finite_are_left_out_and_named(name: str, double: None) -> None:
    task, world = task_of(), ragged()
    host = fedavg(task, recipe=Recipe(batch=8, lr=0.1))

    def broken(msg: Tree, state: Tree, data: Data, turn: Turn) -> Outcome:
        out = host.client(msg, state, data, turn)
        sick = torch.where(data.n == world.train.n[5], torch.nan, 0.0)
        return out._replace(
            upload=out.upload._replace(mean=tree.map(lambda p: p + sick, out.upload.mean))
        )

    sims = [
        simulate(with_robust_mean(m, task, RULES[name]), world, task)
        for m in (host, host._replace(client=broken))
    ]
    sims[0].step(torch.arange(5))
    report = sims[1].step(torch.arange(6), on_nan="skip")
    assert report.skipped.tolist() == [5]
    assert gap(sims[0].server, sims[1].server) < 1e-12
    with pytest.raises(Diverged, match="diverged"):
        sims[1].step(torch.arange(6))


class OrdinaryMean:
    weighted = True

    def combine(self, uploads: CohortUploads) -> Tree:
        return uploads.mean(uploads.weight)

    def caution(self, m: int) -> str:
        return ""


AVERAGED = ("fedavg", "scaffold", "ditto", "fedrep", "fedbn", "fedala", "pmixfed", "pfedme", "apfl")


@pytest.mark.parametrize("name", AVERAGED)
def test_the_weighted_mean_as_a_rule_is_the_host(name: str, double: None) -> None:
    """Nothing but the mean is touched, and as many bytes travel."""
    task, world = task_of("norm"), ragged()
    options = QUICK.get(name, {}) | ({"weighting": "data"} if name in ("scaffold", "fedbn") else {})
    host = METHODS[name](task, recipe=Recipe(batch=8, lr=0.1), **options)
    sims = [simulate(m, world, task) for m in (host, with_robust_mean(host, task, OrdinaryMean()))]
    plain, ruled = (play(sim, COHORTS) for sim in sims)
    assert gap(*map(models, sims)) < 1e-9
    assert gap(*(sim.states.rows for sim in sims)) < 1e-9
    for one, two in zip(plain, ruled, strict=True):
        assert one.up.tolist() == two.up.tolist()
        assert one.down.tolist() == two.down.tolist()


@pytest.mark.parametrize("rule", RULES)
def test_buffers_go_with_the_clients_that_count(rule: str, double: None) -> None:
    """Joint rules do not look at them; no variance falls below zero."""
    values = random_uploads(7)
    statistics = 10.0 ** torch.arange(7)
    with_them = CohortUploads(
        {"params": {"w": values, "n.running_var": statistics}},
        lambda: [{"params": {"w": torch.zeros(7), "n.running_var": torch.ones(())}}] * 7,
        torch.full((7,), 1 / 7, dtype=torch.float64),
        {"n.running_var"},
    )
    found = RULES[rule].combine(with_them)["params"]
    assert found["w"].tolist() == pytest.approx(combined(RULES[rule], values).tolist())
    assert 1.0 <= float(found["n.running_var"]) <= 1e6
    if rule == "krum":
        assert float(found["n.running_var"]) in statistics.tolist()


def test_krum_chooses_one_client_for_all_that_scaffold_sends(double: None) -> None:
    task, world = task_of(), ragged()
    seen: list[Upload] = []
    host = scaffold(task, recipe=Recipe(batch=8, lr=0.1))

    def receive(server: Tree, ids: Tensor, up: Upload, turn: Turn) -> Tree:
        seen.append(up)
        return host.receive(server, ids, up, turn)

    sim = simulate(with_robust_mean(host._replace(receive=receive), task, Krum()), world, task)
    play(sim, COHORTS[:1])
    alone = []
    for cid in COHORTS[0]:
        one = simulate(host._replace(receive=receive), world, task)
        play(one, [[cid]])
        alone.append(seen[-1].mean)
    near_to = [k for k, mean in enumerate(alone) if gap(mean, seen[0].mean) < 1e-9]
    assert len(near_to) == 1  # params and change are the same client's


def test_dittos_personal_models_see_it_only_through_w() -> None:
    task, world = task_of(), ragged()
    w_path = simulate(find("fedavg+median")(task), world, task)
    play(w_path, COHORTS)
    for lam in (0.0, 1.0):
        sim = simulate(find("ditto+median")(task, lam=lam), world, task)
        play(sim, COHORTS)
        assert same(sim.server["params"], w_path.server["params"])
    plain = simulate(ditto(task, lam=0.0), world, task)
    ruled = simulate(find("ditto+median")(task, lam=0.0), world, task)
    for sim in (plain, ruled):
        play(sim, COHORTS)
    assert same(plain.states.rows, ruled.states.rows)


def test_fedreps_heads_stay_where_they_are() -> None:
    task, world = task_of(), ragged()
    sims = [simulate(m(task, head_epochs=2), world, task) for m in (fedrep, find("fedrep+krum"))]
    for sim in sims:
        play(sim, COHORTS[:1])
    assert same(*(sim.states.rows for sim in sims))
    assert sims[0].server["shared"].keys() == sims[1].server["shared"].keys()
    assert not same(*(sim.server["shared"] for sim in sims))


@pytest.mark.parametrize(
    "name",
    [
        "fedavg+median", "scaffold+trimmed", "ditto+krum", "fedrep+multikrum", "fedala+geometric",
        "fedbn+clip", "pmixfed+median", "fedavg+ala+median", "fedavg+geometric+adam",
    ],
)  # fmt: skip
def test_engines_agree(name: str, double: None) -> None:
    task, world = task_of("norm"), ragged()
    options = QUICK.get(name.split("+")[0], {})
    found = []
    for how in ({"engine": "sequential"}, {"engine": "vectorised"}, {"chunk": 2}):
        method = find(name)(task, recipe=Recipe(batch=8, lr=0.1), **options)
        sim = simulate(with_max_norm(method, task, 0.4), world, task, **how)
        play(sim, COHORTS)
        found.append(outcome(sim))
    assert gap(found[0], found[1]) < 1e-9
    assert gap(found[0], found[2]) < 1e-9


def test_an_optimiser_sees_what_the_rule_made_in_either_order() -> None:
    task, world = task_of(), ragged()
    names = ("fedavg+median+adam", "fedavg+adam+median")
    sims = [simulate(find(name)(task), world, task) for name in names]
    for sim in sims:
        play(sim, COHORTS)
    assert same(*(sim.server["params"] for sim in sims))


def test_max_norm_limits_what_a_rule_is_given(double: None) -> None:
    task, world = task_of(), ragged()
    host = fedavg(task, recipe=Recipe(batch=8, lr=0.1))
    ways = [
        with_max_norm(with_robust_mean(host, task, CoordinateMedian()), task, 0.1),
        with_robust_mean(with_max_norm(host, task, 0.1), task, CoordinateMedian()),
    ]
    sims = [simulate(m, world, task) for m in ways]
    for sim in sims:
        before = tree.map(torch.clone, sim.server["params"])
        play(sim, COHORTS)
        assert float(tree.sq_norm(tree.sub(sim.server["params"], before)).sqrt()) < 0.3
    assert same(*(sim.server for sim in sims))


# ---------------------------------------------------------------------------------- with whom


@pytest.mark.parametrize("name", ["local", "cfl", "fedamp", "pfedhn", "apple", "mocha", "fedfomo"])
def test_without_a_mean_it_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=f"'{name}' cannot take '\\+median': .* takes a mean"):
        find(f"{name}+median")
    config = make_config(name, {"max_norm": 1.0, "val": 0.2}, {})
    with pytest.raises(BadInput, match=f"max-norm is 1, but {name} takes no mean of uploads"):
        make_method(config, task_of())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fedavg+median+krum", "'fedavg\\+median' cannot take '\\+krum'"),
        ("fedalt+median+mix", "before a rule in place of the mean"),
        ("fedavg+median+ala", "cannot take '\\+ala'"),
        ("centralised+median", "cannot take '\\+median'"),
        ("fedavg+median:3", "\\+median takes no value: leave ':3' out"),
        ("fedavg+trimmed:0.5", "option 'trim' is '0.5': it takes number from 0 to 0.499999"),
        ("fedavg+krum:two", "option 'hostile' is 'two'"),
        ("fedavg+kurm:2", "krum"),
    ],
)
def test_what_does_not_go_is_one_line(name: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as error:
        find(name)
    assert "\n" not in str(error.value)


def test_a_value_in_the_name_is_the_option() -> None:
    task = task_of()
    with pytest.raises(BadInput, match="hostile is 3 among the options, but 2 in the name"):
        find("fedavg+krum:2")(task, hostile=3)
    assert make_config("fedavg+krum:2", {}, {}).options == {}
    find("fedavg+krum:2")(task, hostile=2, take=4)


def test_a_rule_costs_no_bytes_and_no_server_state() -> None:
    plain, ruled = footprint(METHODS["fedrep"]), footprint(find("fedrep+median"))
    assert plain == ruled


def test_method_is_built_with_the_setting() -> None:
    task = task_of()
    method: Method = make_method(make_config("fedavg", {"max_norm": 2.0}, {}), task)
    sent = {"params": tree.map(torch.zeros_like, task.init(rng.key(0)))}
    far = {"params": tree.map(lambda p: p + 10, sent["params"])}
    admitted = method.admit(sent, Upload(far, 1.0)).mean
    assert float(tree.sq_norm(admitted).sqrt()) == pytest.approx(2.0)
