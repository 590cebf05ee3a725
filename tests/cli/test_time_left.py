"""How long is left is told from rounds that were played, and from nothing else."""

from __future__ import annotations

import pytest

from fedtailor.cli.time_left import TimeLeft, about


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rounds_left_take_as_long_as_those_played() -> None:
    clock = Clock()
    time = TimeLeft(clock)
    assert time.words(10) == ""  # nobody knows
    clock.now += 30
    time.played("a", 1)
    assert time.words(8) == "about 4 min left"
    clock.now += 30
    time.played("b", 1)
    time.played("a", 3)  # a process does not tell of every round
    assert time.words(8) == "about 2 min left"
    assert time.words(0) == ""


def test_rounds_from_a_checkpoint_were_not_played_here() -> None:
    clock = Clock()
    time = TimeLeft(clock)
    clock.now += 60
    time.played("a", 91)
    assert time.words(9) == "about 9 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "1 s"),
        (80, "80 s"),
        (150, "2 min"),
        (5000, "83 min"),
        (9000, "2.5 h"),
        (86_400, "24 h"),
        (86_400 * 1234, "1234 d"),
    ],
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert about(seconds) == f"about {words}"
