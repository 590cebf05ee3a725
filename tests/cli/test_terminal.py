"""What a terminal shows: nothing that steers it, and the time left by rounds that were played."""

from __future__ import annotations

import pytest
from rich.table import Table

from fedtailor.cli import terminal
from fedtailor.cli.terminal import SafeConsole, TimeLeft, about


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rounds_left_take_as_long_as_those_behind_the_first() -> None:
    clock = Clock()
    time = TimeLeft(clock)
    assert time.words(10) == ""  # nobody knows
    clock.now += 600  # steps are prepared
    time.played("a", 1)
    assert time.words(8) == ""  # a first round says nothing of later ones
    clock.now += 30
    time.played("b", 1)
    assert time.words(8) == ""
    time.played("a", 3)  # a process does not tell of every round
    assert time.words(8) == "about 2 min left"
    assert time.words(0) == ""


def test_rounds_from_a_checkpoint_were_not_played_here() -> None:
    clock = Clock()
    time = TimeLeft(clock)
    time.played("a", 91)
    clock.now += 60
    time.played("a", 92)
    assert time.words(8) == "about 8 min left"


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


def test_data_cannot_steer_the_terminal() -> None:
    """A class may be called anything: its name is shown, not obeyed."""
    table = Table("class\x1b[2J")
    table.add_row("no\x1b]0;title\x07")
    console = SafeConsole(width=80)
    with console.capture() as said:
        console.print(table)
        console.print("a\x1b[31mb", markup=False)
    assert "class\\x1b[2J" in said.get() and "a\\x1b[31mb" in said.get()
    assert "\x1b" not in said.get() and "\x07" not in said.get()


@pytest.mark.parametrize("console", [terminal.out, terminal.err])
def test_a_partition_with_a_number_is_no_picture(console: SafeConsole) -> None:
    with console.capture() as captured:
        console.print("visits, natural:100: 3 clients", markup=False)
    assert captured.get().strip() == "visits, natural:100: 3 clients"
