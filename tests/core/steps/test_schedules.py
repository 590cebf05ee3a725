"""How the learning rate changes from round to round: factors by hand, and what people may write."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import BadInput
from fedtailor.core.rng import Turn
from fedtailor.core.steps.schedules import check_factors, factor, parse_schedule
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS
from tests.methods.worlds import gap, models, play, quick, ragged, same, simulate, task_of, turn_of


@pytest.fixture
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def factors(text: str, rounds: int, count: int | None = None) -> list[float]:
    """The factors of all rounds."""
    end = torch.tensor(rounds)
    return [float(factor(text, torch.tensor(r), end)) for r in range(count or rounds)]


HALF = 2**-0.5  # cos 45°


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("text", "rounds", "expected"),
    [
        ("constant", 3, [1, 1, 1]),
        ("decay:0.5", 4, [1, 0.5, 0.25, 0.125]),
        ("decay:2", 3, [1, 2, 4]),
        # (1 + cos) / 2 of 0°, 45°, 90°, 135°
        ("cosine", 4, [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        # 0.2 + 0.8 times that
        ("cosine:0.2", 4, [1, 0.2 + 0.4 * (1 + HALF), 0.6, 0.2 + 0.4 * (1 - HALF)]),
        ("cosine:1", 3, [1, 1, 1]),
        ("step:2:0.1", 6, [1, 1, 0.1, 0.1, 0.01, 0.01]),
        ("step:2", 3, [1, 1, 0.1]),
        ("warmup:4", 6, [0.25, 0.5, 0.75, 1, 1, 1]),
        ("warmup:1+decay:0.5", 4, [1, 1, 0.5, 0.25]),
        # the cosine has the four rounds that are left to itself
        ("warmup:2+cosine", 6, [0.5, 1, 1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        ("warmup:2+step:1:0.5", 5, [0.5, 1, 1, 0.5, 0.25]),
        ("warmup:2+warmup:2+decay:0.5", 6, [0.5, 1, 0.5, 1, 1, 0.5]),
        ("warmup:9+cosine", 2, [1 / 9, 2 / 9]),  # a run may end before it is warm
    ],
)
def test_factors_by_hand(text: str, rounds: int, expected: list[float]) -> None:
    assert factors(text, rounds) == pytest.approx(expected, abs=1e-12)


def test_after_the_last_round_a_cosine_stays_where_it_ended() -> None:
    assert factors("cosine:0.1", 4, 7)[4:] == pytest.approx([0.1] * 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosin", ("unknown schedule 'cosin'", "did you mean 'cosine'", "warmup")),
        ("", ("unknown schedule ''",)),
        ("decay", ("'decay'", "decay:0.99")),
        ("decay:x", ("'decay:x'", "decay:0.99")),
        ("decay:0", ("'decay:0'",)),
        ("decay:-1", ("'decay:-1'",)),
        ("decay:nan", ("'decay:nan'",)),
        ("decay:inf", ("'decay:inf'",)),
        ("decay:0.9:0.1", ("'decay:0.9:0.1'",)),
        ("constant:1", ("'constant:1'", "write constant")),
        ("cosine:1.5", ("'cosine:1.5'", "cosine:0.001")),
        ("step:0:0.1", ("'step:0:0.1'", "step:10:0.1")),
        ("step:1.5", ("'step:1.5'",)),
        ("warmup", ("'warmup'", "warmup:5+cosine")),
        ("warmup:5+", ("unknown schedule ''",)),
        ("warmup:5+slow", ("unknown schedule 'slow'",)),
        ("cosine+warmup:5", ("'cosine+warmup:5'",)),
    ],
)
def test_what_is_no_schedule_is_told_in_one_line(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as told:
        parse_schedule(text)
    assert "\n" not in str(told.value)
    assert all(word in str(told.value) for word in words)
    with pytest.raises(BadInput):
        Recipe(schedule=text)


@pytest.mark.parametrize("more", [{"lr_decay": 0.9}, {"lr_floor": 0.01}])
def test_a_schedule_and_a_decay_at_once_are_refused(more: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="give one of them"):
        Recipe(schedule="cosine", **more)
    Recipe(**more)


def turn(round: int, rounds: int = 10) -> Turn:
    return turn_of(round, rounds=rounds)


def test_the_rate_of_a_recipe_is_the_learning_rate_times_the_factor() -> None:
    recipe = Recipe(lr=0.2, schedule="step:3:0.5")
    assert [float(recipe.rate(turn(r))) for r in range(7)] == pytest.approx(
        [0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05]
    )
    assert Recipe(lr=0.2).rate(turn(3)) == 0.2
    # the same numbers as with the older way to say it
    old, new = Recipe(lr=0.3, lr_decay=0.97), Recipe(lr=0.3, schedule="decay:0.97")
    assert all(torch.equal(old.rate(turn(r)), new.rate(turn(r))) for r in range(10))


def test_a_function_of_ones_own() -> None:
    def half_later(round: Tensor, rounds: Tensor) -> Tensor:
        return torch.where(2 * round < rounds, 1.0, 0.5)

    recipe = Recipe(lr=0.2, schedule=half_later)
    assert [float(recipe.rate(turn(r, 4))) for r in range(4)] == pytest.approx([0.2, 0.2, 0.1, 0.1])
    number = Recipe(lr=0.2, schedule=lambda round, rounds: 0.25)
    assert float(number.rate(turn(0))) == pytest.approx(0.05)
    wrong = Recipe(schedule=lambda round, rounds: torch.ones(3))
    with pytest.raises(BadInput, match=r"shape \(3,\)"):
        wrong.rate(turn(0))


def _wavy(round: Tensor, rounds: Tensor) -> Tensor:
    return 1 + 0.5 * (round / rounds).sin()


SCHEDULES = ["decay:0.9", "warmup:2+cosine:0.1", "step:1:0.5", _wavy]


@cache  # several schedules are held against the constant one
def run(name: str, schedule: Any, **options: Any) -> Any:
    task = task_of()
    method = quick(name, task, Recipe(batch=8, lr=0.1, schedule=schedule))
    sim = simulate(method, ragged(), task, rounds=4, **options)
    play(sim, [[0, 1, 2, 3, 4, 5], [0, 2, 5], [1, 2, 3], [0, 4]])
    found = {"server": sim.server, "clients": sim.states.rows, "models": models(sim)}
    sim.close()
    return found


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedala"])
def test_engines_agree_with_a_schedule(name: str, schedule: Any) -> None:
    one = run(name, schedule, engine="sequential")
    assert gap(one, run(name, schedule)) < 1e-9
    assert gap(one, run(name, schedule, loop_mode="traced")) < 1e-9
    assert gap(one, run(name, "constant")) > 1e-4


def test_a_decay_by_schedule_is_a_decay_to_the_last_bit() -> None:
    task, world, found = task_of(), ragged(), []
    for more in ({"lr_decay": 0.9}, {"schedule": "decay:0.9"}):
        recipe = replace(Recipe(batch=8, lr=0.1), **more)
        sim = simulate(METHODS["fedavg"](task, recipe=recipe), world, task)
        play(sim, [[0, 1, 2], [1, 2, 3], [0, 4]])
        found.append(sim.server)
    assert same(*found)


def test_a_schedule_of_training_leaves_alas_own_rate_alone() -> None:
    """ALA's weights have a learning rate of their own, as without a schedule."""
    task, world, found = task_of(), ragged(), []
    for schedule in ("constant", lambda round, rounds: torch.ones(())):
        recipe = Recipe(batch=8, lr=0.1, schedule=schedule)
        sim = simulate(METHODS["fedala"](task, recipe=recipe), world, task)
        play(sim, [[0, 1, 2], [1, 2, 3]])
        found.append(sim.states.rows)
    assert gap(*found) < 1e-6


def test_a_function_that_falls_below_zero_is_refused_before_the_first_round() -> None:
    """Clients would climb the loss from round 3 on."""
    falls = partial(lambda round, rounds, last: 1 - round / last, last=2)
    check_factors(falls, 3)
    with pytest.raises(
        BadInput, match=r"^schedule gives -0\.5 for round 3 \(from 0\) of 5: give 0"
    ):
        check_factors(falls, 5)
    with pytest.raises(BadInput, match="schedule gives nan for round 0"):
        check_factors(lambda round, rounds: math.nan, 1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("given", "said"),
    [(None, "None"), ("half", "'half'"), (torch.ones(2), "a tensor of shape (2,)")],
)
def test_a_function_that_gives_no_number_is_told_so(given: object, said: str) -> None:
    with pytest.raises(BadInput) as told:
        factor(lambda round, rounds: given, torch.tensor(0), torch.tensor(3))  # type: ignore[arg-type,return-value]
    assert str(told.value) == f"schedule gives {said}: give one number"
