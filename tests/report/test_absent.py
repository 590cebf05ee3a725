"""Tests of what is said of clients that were not there."""

from __future__ import annotations

import pytest

from fedtailor.report.absent import absent_in_words, diverged_in_words, times_in_words


@pytest.mark.parametrize(
    ("dropped", "late", "never", "said"),
    [
        (0, 0, [], ""),
        (1, 0, [], "clients dropped out once (--dropout); those rounds went on without them"),
        (
            1_000,
            2,
            ["a", "b"],
            "clients dropped out 1,000 times (--dropout) and missed the deadline 2 times "
            "(--deadline); those rounds went on without them; never in time: a, b",
        ),
    ],
)
def test_in_words(dropped: int, late: int, never: list[str], said: str) -> None:
    assert absent_in_words(dropped, late, never) == said


def test_many_that_were_never_in_time_are_counted() -> None:
    names = [f"site {i}" for i in range(30)]
    assert absent_in_words(0, 90, names).endswith("site 11 and 18 more")
    assert times_in_words(1) == "once"


def test_whose_models_diverged() -> None:
    assert diverged_in_words({"north": 1}).startswith("the final model of north diverged: outputs")
    said = diverged_in_words({"north": 3, "south": 1, "west": 1})
    assert said.startswith("the final models of north (3 times), south, west diverged: ")
