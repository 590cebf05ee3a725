"""Whether training had ended."""

import math

import numpy as np
import pytest

from fedtailor.results.statistics import training_end

ROUNDS = range(1, 31)


def test_a_steady_rise_asks_for_as_many_rounds_again() -> None:
    found = training_end(ROUNDS, [0.3 + 0.01 * r for r in ROUNDS])
    assert found.still_rising and found.more_rounds == 30
    assert found.rise == pytest.approx(0.09)


def test_a_rise_that_slows_asks_for_fewer() -> None:
    # each third of ten rounds rises by half of the one before
    curve = [0.9 - 0.4 * 0.5 ** (r / 10) for r in ROUNDS]
    assert training_end(ROUNDS, curve, margin=0.02).more_rounds == 20  # 4.3, 2.1, 1.1 points
    assert training_end(ROUNDS, curve, margin=0.05).more_rounds == 0


def test_a_flat_curve_with_noise_had_ended() -> None:
    rng = np.random.default_rng(0)
    false = sum(
        bool(training_end(ROUNDS, 0.8 + 0.02 * rng.normal(size=30)).still_rising)
        for _ in range(200)
    )
    assert false <= 16  # one-sided 2.5 %, with room for chance


def test_an_error_rises_where_it_falls() -> None:
    falls = [10 - 0.2 * r for r in ROUNDS]
    assert training_end(ROUNDS, falls, higher_is_better=False, margin=0.1).still_rising
    assert not training_end(ROUNDS, falls, margin=0.1).still_rising


def test_few_points_say_nothing() -> None:
    found = training_end(range(5), [0.1, 0.2, 0.3, 0.4, 0.5])
    assert found.still_rising is None and math.isnan(found.rise) and found.more_rounds == 0


def test_rounds_without_a_value_are_passed_over() -> None:
    values = [0.3 + 0.01 * r if r % 2 else float("nan") for r in ROUNDS]
    assert training_end(ROUNDS, values).still_rising
