"""Who takes part in a round."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.engine import client_times, draw_cohort, who_answers, who_is_in_time
from fedtailor.engine.cohort import round_half_up


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.sets(st.integers(0, 500), min_size=1),
    st.floats(0, 1),
)
def test_a_cohort_is_a_sorted_set_of_eligible_clients(
    seed: int, round: int, eligible: set[int], share: float
) -> None:
    ids = torch.tensor(sorted(eligible))
    cohort = draw_cohort(seed, round, ids, share).tolist()
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= eligible
    assert len(cohort) == max(1, round_half_up(share * len(eligible)))
    assert cohort == draw_cohort(seed, round, ids, share).tolist()


def test_full_participation_is_everyone() -> None:
    assert draw_cohort(0, 3, torch.arange(7), 1.0).tolist() == list(range(7))


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (0.01, 1), (0.1, 1), (0.25, 3), (0.5, 5)])
def test_how_many(share: float, count: int) -> None:
    assert len(draw_cohort(0, 0, torch.arange(10), share)) == count


def test_halves_go_up() -> None:
    assert [round_half_up(v) for v in (0.49, 0.5, 1.5, 2.5, 3.0)] == [0, 1, 2, 3, 3]


def test_cohorts_vary_with_round_and_seed_and_every_client_has_its_turn() -> None:
    cohorts = [tuple(draw_cohort(0, r, torch.arange(20), 0.2).tolist()) for r in range(500)]
    assert len(set(cohorts)) > 400
    assert cohorts[0] != tuple(draw_cohort(1, 0, torch.arange(20), 0.2).tolist())
    counts = torch.bincount(torch.tensor(cohorts).flatten(), minlength=20)
    # 100 expected each, standard deviation about 9
    assert int(counts.min()) > 60 and int(counts.max()) < 140


def test_the_global_generator_has_no_say() -> None:
    torch.manual_seed(1)
    one = draw_cohort(0, 0, torch.arange(20), 0.3)
    torch.manual_seed(2)
    assert torch.equal(draw_cohort(0, 0, torch.arange(20), 0.3), one)


def test_each_client_drops_out_as_often_as_it_was_said() -> None:
    cohort = torch.arange(20)
    stays = torch.zeros(20)
    for number in range(500):
        stays[who_answers(3, number, cohort, 0.3)] += 1
    # 500 draws of 0.7: four standard deviations are 41
    assert (stays - 350).abs().max() < 41


def test_somebody_answers_and_nobody_drops_out_unasked() -> None:
    cohort = torch.tensor([2, 5, 6])
    for number in range(30):
        found = who_answers(0, number, cohort, 0.999)
        assert len(found) >= 1 and torch.isin(found, cohort).all()
        assert torch.equal(who_answers(0, number, cohort, 0.0), cohort)


def test_slow_clients_are_drawn_once_among_those_that_train() -> None:
    steps, trained = torch.full((20,), 5), torch.arange(15)
    times = client_times(3, steps, trained, "0.4:2.5")
    assert sorted(times.tolist()) == [1.0] * 14 + [2.5] * 6
    assert times[15:].tolist() == [1.0] * 5
    assert torch.equal(client_times(3, steps, trained, "0.4:2.5"), times)
    assert not torch.equal(client_times(4, steps, trained, "0.4:2.5"), times)
    assert client_times(0, steps, trained, "0.001:2").max() == 2  # at least one


def test_who_meets_a_deadline_to_the_moment_counts() -> None:
    times, cohort = torch.tensor([1.2, 0.5, 3.0, 0.7]), torch.tensor([0, 2, 3])
    assert [
        x.tolist() if hasattr(x, "tolist") else x for x in who_is_in_time(times, cohort, 0)
    ] == [
        [0, 2, 3],
        3.0,
    ]
    found, took = who_is_in_time(times, cohort, float(times[0]))
    assert found.tolist() == [0, 3] and took == float(times[0])
    found, took = who_is_in_time(times, cohort, 0.1)
    assert found.tolist() == [3] and took == float(times[3])
