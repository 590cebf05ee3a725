"""Concordance: by counting pairs, by hand, and as lifelines has it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fedtailor.results.metrics.survival import comparable, concordance
from tests.results.metrics.drawn import DrawnClients, clients, padded


def counted(risk: np.ndarray, labels: np.ndarray) -> float:
    """Pair by pair."""
    pairs = right = 0.0
    for own, (time, event) in zip(risk, labels, strict=True):
        for other, (end, ended) in zip(risk, labels, strict=True):
            if event and (time < end or (time == end and not ended)):
                pairs += 1
                right += 1.0 if own > other else 0.5 if own == other else 0.0
    return right / pairs if pairs else float("nan")


@settings(max_examples=60, deadline=None)
@given(drawn=clients("survival"))
def test_as_counted_pair_by_pair(drawn: DrawnClients) -> None:
    found = concordance(drawn.outputs, drawn.labels, drawn.weight)
    expected = [counted(said[:, 0], truth) for said, truth in drawn.each]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)
    assert comparable(drawn.labels, drawn.weight).tolist() == [e == e for e in expected]


# times, events, risks; concordance_index(times, -risks, events) of lifelines 0.30.3
LIFELINES = [
    ([2.5, 2, 2, 2.5, 1.5, 2], [1, 0, 0, 0, 0, 1], [2, -2, 0, 1.5, -1.5, 1.5], 0.7),
    (
        [0.5, 2, 3.5, 1.5, 1.5, 1.5, 3, 1.5, 4],
        [0, 0, 1, 1, 1, 1, 1, 1, 1],
        [1, 0.5, -0.5, 2, 0, -1.5, 1.5, -1.5, 1.5],
        0.34210526315789475,
    ),
    (
        [3.5, 1, 0.5, 2.5, 0.5, 1, 3, 5.5, 3, 4.5, 5.5, 5],
        [1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1],
        [1, 1.5, -1.5, 1, -0.5, 0, -2, 0.5, 1.5, 0.5, -1.5, 0],
        0.4166666666666667,
    ),
    (
        [2, 7, 6.5, 1.5, 4, 7, 6, 5, 4.5, 0.5, 5.5, 3.5, 1, 2, 4],
        [1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0],
        [-1.5, -0.5, 1.5, -0.5, -0.5, 0.5, 2, -0.5, 0.5, -0.5, 0.5, 0, 0.5, 0, 1],
        0.3220338983050847,
    ),
]


@pytest.mark.parametrize(("times", "events", "risks", "expected"), LIFELINES)
def test_as_lifelines_has_it(
    times: list[float], events: list[int], risks: list[float], expected: float
) -> None:
    labels = torch.tensor([times, events], dtype=torch.float64).T
    found = concordance(torch.tensor(risks)[:, None], labels, torch.ones(len(times)))
    assert float(found) == pytest.approx(expected, abs=1e-12)


def one(times: list[float], events: list[int], risks: list[float]) -> float:
    labels = torch.tensor([times, events]).T
    return float(concordance(torch.tensor(risks)[:, None], labels, torch.ones(len(times))))


def test_two_events_at_the_same_time_are_not_compared() -> None:
    # pairs (0, 2) and (1, 2) only, of which the second is wrong
    assert one([1, 1, 2], [1, 1, 1], [3, 1, 2]) == 0.5


def test_an_event_comes_before_the_end_of_following_at_the_same_time() -> None:
    assert one([1, 1], [1, 0], [2, 1]) == 1.0
    assert one([1, 1], [0, 1], [2, 1]) == 0.0


def test_who_was_lost_early_is_compared_with_nobody_after() -> None:
    # row 0 was lost at 1: pair (1, 2) alone
    assert one([1, 2, 3], [0, 1, 1], [9, 1, 2]) == 0.0


@pytest.mark.parametrize(
    ("times", "events"), [([1, 2], [0, 0]), ([1, 2], [0, 1]), ([2, 2], [1, 1]), ([3], [1])]
)
def test_no_pair_gives_no_number(times: list[float], events: list[int]) -> None:
    assert np.isnan(one(times, events, [1.0] * len(times)))


def test_no_rows_give_no_number() -> None:
    assert concordance(torch.zeros(2, 0, 1), torch.zeros(2, 0, 2), torch.zeros(2, 0)).isnan().all()
    assert concordance(torch.zeros(2, 3, 1), torch.ones(2, 3, 2), torch.zeros(2, 3)).isnan().all()


def test_outputs_that_are_no_numbers_give_no_number() -> None:
    outputs = torch.tensor([[1.0], [float("nan")], [0.0]])
    labels = torch.tensor([[1.0, 1], [2, 1], [3, 1]])
    assert concordance(outputs, labels, torch.ones(3)).isnan()


@pytest.mark.parametrize("rows", [63, 64, 65, 200])
def test_many_rows(rows: int) -> None:
    rng = np.random.default_rng(rows)
    risk = rng.normal(size=(rows, 1)).round(1)
    labels = np.stack([rng.integers(1, 40, rows), rng.integers(0, 2, rows)], 1) * 1.0
    drawn = padded([(risk, labels), (risk[:9], labels[:9])], rows)
    expected = [counted(risk[:, 0], labels), counted(risk[:9, 0], labels[:9])]
    assert concordance(*drawn[:3]).tolist() == pytest.approx(expected, abs=1e-12)


def test_several_models_on_the_same_rows() -> None:
    outputs = torch.randn(4, 2, 6, 1, generator=torch.Generator().manual_seed(0))
    labels = torch.stack([torch.arange(12.0).view(2, 6), torch.ones(2, 6)], -1)
    found = concordance(outputs, labels, torch.ones(2, 6))
    assert found.shape == (4, 2)
    torch.testing.assert_close(found[3], concordance(outputs[3], labels, torch.ones(2, 6)))
