"""Candidates: chosen, judged, taken in, credited; and means of clusters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedtailor.core import rng, wire
from fedtailor.core.data import Data
from fedtailor.core.task import classification
from fedtailor.core.tree import Tree
from fedtailor.methods.parts.candidates import (
    acquainted,
    choose_candidates,
    cluster_means,
    gain_per_distance,
    mean_losses,
    normalised,
    offered,
    strangers,
    towards,
)
from tests.methods.worlds import data_of, near, one_number, rows_of, task_of, two_numbers

NEVER, ALWAYS = torch.tensor(0.0), torch.tensor(1.0)


def _known(row: list[float], fresh: list[int]) -> Tree:
    """Client 0 has the affinities `row`."""
    known = strangers(len(row), torch.device("cpu"))
    known["affinity"][0] = torch.tensor(row)
    known["fresh"][fresh] = True
    return known


def test_strangers() -> None:
    known = strangers(3, torch.device("cpu"))
    assert torch.equal(known["affinity"], torch.eye(3))
    assert not known["fresh"].any()


def test_the_best_are_chosen() -> None:
    """By affinity, among the fresh ones, never oneself."""
    known = _known([9.0, 1.0, 3.0, 2.0, 5.0], [0, 1, 2, 3])
    ids, filled = choose_candidates(known, torch.tensor(0), 3, NEVER, rng.key(0))
    assert ids.tolist() == [2, 3, 1]
    assert filled.tolist() == [True] * 3
    # a slot for which nobody is left
    filled = choose_candidates(known, torch.tensor(0), 5, NEVER, rng.key(0))[1]
    assert filled.tolist() == [True] * 3 + [False] * 2
    nobody = known | {"fresh": torch.zeros(5, dtype=torch.bool)}
    assert not choose_candidates(nobody, torch.tensor(0), 2, NEVER, rng.key(0))[1].any()


def test_no_slots_no_candidates() -> None:
    ids, filled = choose_candidates(_known([1.0, 0.0], [1]), torch.tensor(0), 0, NEVER, rng.key(0))
    assert (ids.shape, filled.shape) == ((0,), (0,))


@pytest.mark.parametrize("chance", [NEVER, ALWAYS], ids=["tie", "explore"])
def test_chance_and_ties_are_fair(chance: torch.Tensor) -> None:
    """Exploring: any of the fresh three. Not exploring: one of the two best."""
    known = _known([0.0, 7.0, 1.0, 7.0, 9.0], [0, 1, 2, 3])
    drawn = [
        choose_candidates(known, torch.tensor(0), 2, chance, rng.key(seed))[0]
        for seed in range(600)
    ]
    assert all(len(set(ids.tolist())) == 2 for ids in drawn)
    first = torch.stack(drawn)[:, 0].bincount(minlength=5).tolist()
    if float(chance):
        assert first[0] == first[4] == 0
        assert all(150 < first[i] < 250 for i in (1, 2, 3))
    else:
        assert first[0] == first[2] == first[4] == 0
        assert all(250 < first[i] < 350 for i in (1, 3))


def test_what_is_offered() -> None:
    """The own model first, then the message in its order."""
    message = {
        "models": wire.maybe(torch.tensor([True, False]), {"w": torch.tensor([2.0, 3.0])}),
        "extra": wire.maybe(torch.tensor([True]), {"w": torch.tensor([4.0])}),
    }
    models, there = offered({"w": torch.tensor(1.0)}, message)
    assert models["w"].tolist() == [1, 2, 3, 4]
    assert there.tolist() == [True, True, False, True]


@pytest.mark.parametrize("models", [2, 5, 40])
def test_how_many_rows_at_a_time_changes_no_loss(models: int) -> None:
    """(w - row)²/2 over 200 rows, which are two passes of two models and seven of forty."""
    task, rows = one_number(), data_of(rows_of([[r / 100 for r in range(200)]]), 0)
    w = torch.arange(models, dtype=torch.get_default_dtype()) / 40
    expected = [sum((m / 40 - r / 100) ** 2 / 2 for r in range(200)) / 200 for m in range(models)]
    assert mean_losses(task, {"w": w}, rows).tolist() == near(*expected)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_gains_by_hand(norm: str) -> None:
    """The row is 3. L(0) = 4.5, L(2) = 0.5, L(-1) = 8, L(0) = L(0): 4/2, -3.5/1 and nothing."""
    task, rows = one_number(), data_of(rows_of([[3.0]]), 0)
    base, models = {"w": torch.tensor(0.0)}, {"w": torch.tensor([2.0, -1.0, 0.0])}
    assert gain_per_distance(task, rows, base, models, norm).tolist() == near(2.0, -3.5, 0.0)


def test_the_two_distances_by_hand() -> None:
    """(0, 0) to (3, 4): 5 or 7. The row is 3: L = 9 before, 0.5 after."""
    task, rows = two_numbers(), data_of(rows_of([[3.0]]), 0)
    base = {"a": torch.tensor(0.0), "b": torch.tensor(0.0)}
    models = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    for norm, far in (("l2", 5), ("l1", 7)):
        assert float(gain_per_distance(task, rows, base, models, norm)) == near(8.5 / far)


def test_running_statistics_are_no_distance() -> None:
    task, rows = task_of("norm"), data_of(rows_of([[3.0]]), 0)
    base = task.init(rng.key(0))
    moved = {k: p + 1 if k in task.buffers else p for k, p in base.items()}
    rows = rows._replace(x=torch.ones(len(rows.x), 4))
    found = gain_per_distance(task, rows, base, {k: p[None] for k, p in moved.items()}, "l2")
    assert found.tolist() == [0]


def test_towards_by_hand() -> None:
    """10 + 0.25 (2 - 10) + 0.5 (14 - 10); with no weights nothing moves."""
    base, models = {"w": torch.tensor([10.0])}, {"w": torch.tensor([[2.0], [14.0]])}
    assert float(towards(base, models, torch.tensor([0.25, 0.5]))["w"]) == 10
    assert float(towards(base, models, torch.tensor([0.0, 1.0]))["w"]) == 14
    assert float(towards(base, models, torch.zeros(2))["w"]) == 10


def test_credit_by_hand() -> None:
    """Clients 2 and 0; the second slot of client 0 was empty, its leftover id says nothing."""
    known = _known([1.0, 0.0, 0.0], [1])
    after = acquainted(
        known,
        torch.tensor([2, 0]),
        torch.tensor([[0, 1], [2, 2]]),
        torch.tensor([[True, True], [True, False]]),
        torch.tensor([[0.5, -2.0, 3.0], [10.0, 20.0, 40.0]]),
    )
    assert after["affinity"].tolist() == [[11, 0, 20], [0, 1, 0], [-2, 3, 1.5]]
    assert after["fresh"].tolist() == [True, False, True]


def test_normalised() -> None:
    share, any_helps = normalised(torch.tensor([1.0, -5.0, 3.0, 0.0]))
    assert share.tolist() == [0.25, 0, 0.75, 0]
    assert bool(any_helps)
    for none in ([-1.0, 0.0, -2.0], [0.0, 0.0]):
        share, any_helps = normalised(torch.tensor(none))
        assert not share.any()
        assert not bool(any_helps)
    # only ratios count, and order goes with the candidates
    weights = torch.tensor([0.3, -1.0, 0.1, 2.0])
    share = normalised(weights)[0]
    torch.testing.assert_close(normalised(weights * 7)[0], share)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(normalised(weights[order])[0], share[order])


def _affinity(groups: list[list[int]]) -> torch.Tensor:
    count = sum(map(len, groups))
    out = torch.zeros(count, count)
    for group in groups:
        for i in group:
            out[i, group] = 1.0
    return out


def test_clusters_are_found() -> None:
    """Two groups that only help each other: their means, and that of all."""
    models = {"w": torch.tensor([[0.0], [10.0], [2.0], [12.0], [4.0]])}
    means = cluster_means(models, _affinity([[0, 2, 4], [1, 3]]), 2)["w"]
    assert means.shape == (3, 1)
    assert sorted(means[:2].flatten().tolist()) == [2, 11]
    assert means[2].item() == pytest.approx(28 / 5)


def test_negative_affinities_and_one_way_help() -> None:
    models = {"w": torch.arange(4.0)}
    affinity = torch.tensor(
        [[1.0, 2.0, -9.0, -9.0], [0.0, 1.0, -9.0, -9.0], [-9, -9, 1, 0], [-9.0, -9.0, 2.0, 1.0]]
    )
    means = cluster_means(models, affinity, 2)["w"]
    assert sorted(means[:2].tolist()) == [0.5, 2.5]
    assert float(means[2]) == 1.5


def test_a_small_cohort_repeats() -> None:
    """No more clients than clusters: each for itself, what is missing is the mean of all."""
    models = {"w": torch.tensor([1.0, 3.0])}
    assert cluster_means(models, torch.eye(2), 3)["w"].tolist() == [1, 3, 2, 2]
    one = cluster_means({"w": torch.tensor([5.0])}, torch.eye(1), 2)["w"]
    assert one.tolist() == [5, 5, 5]


def test_the_same_every_time() -> None:
    maker = torch.Generator().manual_seed(0)
    affinity = torch.rand(9, 9, generator=maker)
    models = {"w": torch.rand(9, 4, generator=maker)}
    one, two = (cluster_means(models, affinity, 3)["w"] for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(one[-1], models["w"].mean(0))


def test_a_candidate_whose_outputs_overflow_is_worth_nothing_and_takes_nothing_from_others() -> (
    None
):
    task = classification(lambda: nn.Linear(2, 2))
    rows = Data.of(torch.full((4, 2), 5.0), torch.zeros(4, dtype=torch.long))
    base = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    good = base | {"bias": torch.tensor([1.0, 0.0])}
    wild = base | {"weight": torch.full((2, 2), 3e38)}  # finite, but not times 5
    models = {k: torch.stack([m[k] for m in (base, good, wild)]) for k in base}
    gains = gain_per_distance(task, rows, base, models, "l2")
    share, any_helps = normalised(gains)
    assert share.tolist() == [0, 1, 0] and any_helps
    assert towards(base, models, share)["bias"].tolist() == [1, 0]
    assert gain_per_distance(task, rows, wild, models, "l2").tolist() == [0, 0, 0]
