"""Metrics over clients, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedtailor.results.metrics.over_clients import best_round, over_clients


def summarise(correct: np.ndarray, n: np.ndarray) -> dict[str, float]:
    """Accuracy over clients, from each one's number of right answers and of rows."""
    each = np.where(n > 0, correct / np.maximum(n, 1), np.nan)
    found = over_clients(each, correct.sum() / n.sum() if n.sum() else np.nan)
    return {k: v for k, v in found.items() if k != "clients"}


def test_one_client() -> None:
    assert summarise(np.array([3]), np.array([4])) == {
        "mean": 0.75,
        "weighted": 0.75,
        "std": 0.0,
        "median": 0.75,
        "bottom5": 0.75,
        "top5": 0.75,
        "worst": 0.75,
    }


def test_three_clients() -> None:
    # accuracies 0.5, 1, 0.3 of 2, 4 and 10 samples
    found = summarise(np.array([1, 4, 3]), np.array([2, 4, 10]))
    assert found == pytest.approx(
        {
            "mean": 0.6,
            "weighted": 8 / 16,
            "std": ((0.1**2 + 0.4**2 + 0.3**2) / 3) ** 0.5,
            "median": 0.5,
            "bottom5": 0.3,
            "top5": 1.0,
            "worst": 0.3,
        }
    )


def test_forty_clients() -> None:
    # 0, 1, ..., 39 of 40 right, in no order; 5 % of 40 clients are 2
    correct = np.random.default_rng(0).permutation(40)
    found = summarise(correct, np.full(40, 40))
    assert found["mean"] == found["weighted"] == pytest.approx(19.5 / 40)
    assert found["median"] == pytest.approx(19.5 / 40)
    assert found["bottom5"] == pytest.approx(0.5 / 40)
    assert found["top5"] == pytest.approx(38.5 / 40)
    assert found["worst"] == 0
    assert found["std"] == pytest.approx(((40**2 - 1) / 12) ** 0.5 / 40)


def test_clients_without_rows_are_left_out() -> None:
    correct, n = np.array([1, 0, 4]), np.array([2, 0, 4])
    assert summarise(correct, n) == summarise(correct[[0, 2]], n[[0, 2]])
    assert summarise(np.zeros(2), np.zeros(2)) == {}


def test_all_values_are_plain_numbers() -> None:
    assert all(type(v) is float for v in summarise(np.array([1, 2]), np.array([3, 3])).values())


def test_the_best_round_is_the_earliest_of_equals() -> None:
    assert best_round([1, 5, 10, 15], [0.2, 0.7, 0.7, 0.1]) == 5
    assert best_round([0], [0.0]) == 0


def test_rounds_without_validation_do_not_count() -> None:
    assert best_round([1, 2, 3], [None, 0.1, None]) == 2
    assert best_round([1, 2], [None, None]) is None
    assert best_round([], []) is None


def test_rounds_and_values_must_match() -> None:
    with pytest.raises(ValueError):
        best_round([1, 2], [0.5])


def test_the_worst_off_have_the_highest_errors() -> None:
    # of 40 clients with errors 1 to 40, 5 % are 2
    found = over_clients(np.arange(1.0, 41), 20.5, higher_is_better=False)
    assert found["worst"] == 40
    assert found["bottom5"] == 39.5
    assert found["top5"] == 1.5
    assert found["clients"] == 40
    assert over_clients(np.arange(1.0, 41), 20.5)["bottom5"] == 1.5


def test_clients_without_a_value_are_left_out_and_counted() -> None:
    found = over_clients([0.5, float("nan"), 1.0], 0.7)
    assert found == over_clients([0.5, 1.0], 0.7)
    assert (found["mean"], found["weighted"], found["clients"]) == (0.75, 0.7, 2)


def test_no_client_with_a_value_leaves_nothing() -> None:
    assert over_clients([float("nan")] * 3, float("nan")) == {}
    assert over_clients([], float("nan")) == {}


def test_what_all_rows_together_do_not_have_is_left_out() -> None:
    assert "weighted" not in over_clients([0.5], float("nan"))


def test_the_best_round_by_an_error_is_the_lowest() -> None:
    assert best_round([1, 5, 10], [0.7, 0.2, 0.2], higher_is_better=False) == 5
