"""What is tried: declared ranges, ranges that a person names, grids and draws."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.methods.find import find
from fedtailor.runs.tuning.space import Axis, drawn, grid_of, run_and_options, space_of


def names(method: str, **more: object) -> list[str]:
    return [axis.name for axis in space_of(find(method), method, **more)]  # type: ignore[arg-type]


def test_the_rate_and_declared_options_are_tried() -> None:
    assert names("fedprox") == ["lr", "mu"]
    assert names("fedavg") == ["lr"]
    assert names("fedprox", fixed=["lr"]) == ["mu"]
    assert names("fedprox", named={"mu": ""}) == ["mu"]


def test_a_method_with_rates_of_its_own_does_not_tune_the_runs() -> None:
    assert "lr" not in names("pfedme")


def test_a_runs_setting_with_an_options_name_is_written_as_a_flag() -> None:
    space = space_of(find("pfedhn"), "pfedhn")
    assert [axis.name for axis in space] == ["--lr", "lr"]
    assert run_and_options(space, {"--lr": 0.1, "lr": 0.2}) == ({"lr": 0.1}, {"lr": 0.2})


def test_adam_has_lower_rates() -> None:
    (sgd, _), (adam, _) = (
        space_of(find("fedprox"), "fedprox", optimizer=name) for name in ("sgd", "adam")
    )
    assert adam.high == pytest.approx(sgd.high / 10)


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("0.1..2", Axis("mu", low=0.1, high=2)),
        ("0.1..2:log", Axis("mu", low=0.1, high=2, log=True)),
        ("0.1, 2", Axis("mu", (0.1, 2.0))),
    ],
)
def test_a_range_may_be_named(text: str, axis: Axis) -> None:
    assert space_of(find("fedprox"), "fedprox", {"mu": text}) == (axis,)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"nu": "1..2"}, "'mu'"),
        ({"mu": "2..1"}, "the second larger"),
        ({"mu": "0..1:log"}, "above 0"),
        ({"mu": "-1..1"}, "at least 0"),
        ({"mu": "0.1,0.1"}, "once"),
        ({"mu": "0.1..1:cubic"}, ":log"),
        ({"weighting": "1..2"}, "no range"),
        ({"weighting": ""}, "declares no range"),
        ({"rounds": "1..2"}, "option to tune"),
        ({}, "nothing of 'fedprox'"),
    ],
)
def test_what_cannot_be_tried_is_told(named: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        space_of(find("fedprox"), "fedprox", named)


def test_what_is_given_is_not_tuned_too() -> None:
    with pytest.raises(BadInput, match="both"):
        space_of(find("fedprox"), "fedprox", {"mu": ""}, fixed=["mu"])


def test_a_grid_has_as_many_points_as_trials_allow() -> None:
    space = (Axis("a", low=0.01, high=1, log=True), Axis("b", (False, True)))
    assert [s["a"] for s in grid_of(space, 7) if s["b"]] == [0.01, 0.1, 1.0]
    assert len(grid_of(space, 4)) == 4
    whole = (Axis("k", low=1, high=3, whole=True),)
    assert [s["k"] for s in grid_of(whole, 50)] == [1, 2, 3]
    with pytest.raises(BadInput, match="at least 4"):
        grid_of(space, 3)


def test_draws_lie_within_the_range_and_depend_on_seed_and_number_alone() -> None:
    space = (
        Axis("a", low=0.01, high=1, log=True),
        Axis("k", low=1, high=3, whole=True),
        Axis("e", low=1, high=20, log=True, whole=True),
    )
    found = [drawn(space, 0, n) for n in range(200)]
    assert found == [drawn(space, 0, n) for n in range(200)]
    assert found[1] != drawn(space, 1, 1)
    assert all(0.01 <= s["a"] <= 1 for s in found)
    assert {s["k"] for s in found} == {1, 2, 3}
    assert {min(s["e"] for s in found), max(s["e"] for s in found)} <= set(range(1, 21))
    below = sum(s["a"] < 0.1 for s in found)
    assert 70 < below < 130  # by logarithm, the middle is 0.1
