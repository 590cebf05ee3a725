"""Proposals, rungs and who goes on: pure, and the same after a stop."""

from __future__ import annotations

import sys

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.runs.tuning.importance import importances
from fedtailor.runs.tuning.search import (
    SearchRules,
    Strategy,
    check_rules,
    going_on,
    proposals,
    rungs,
)
from fedtailor.runs.tuning.space import Axis, Setting, drawn

SPACE = (Axis("a", low=0.01, high=1, log=True), Axis("b", (False, True)))
USUAL: Setting = {"a": 5.0, "b": True}  # outside of the range


def value(setting: Setting) -> float:
    return -abs(setting["a"] - 0.3) - setting["b"]


def searched(search: Strategy, trials: int, stop: int = 0) -> dict[int, tuple[Setting, float]]:
    """All that a search proposes; after `stop` settings it is begun again from what is known."""
    found: dict[int, tuple[Setting, float]] = {}
    while new := proposals(SPACE, SearchRules(trials, search), USUAL, 3, found):
        for number, setting in new:
            if len(found) == stop:
                stop = -1
                break
            found[number] = setting, value(setting)
    return found


@pytest.mark.parametrize("search", ["random", "grid", "bayes"])
@pytest.mark.parametrize("stop", [1, 9, 11])
def test_a_search_that_was_stopped_proposes_the_same(search: Strategy, stop: int) -> None:
    if search == "bayes":
        pytest.importorskip("optuna")
    whole = searched(search, 14)
    assert searched(search, 14, stop) == whole
    assert len(whole) == 14 if search != "grid" else len(whole) <= 14


def test_what_the_method_has_by_default_is_tried_first() -> None:
    assert searched("random", 3)[0][0] == USUAL


def test_bayes_learns_from_what_was_found() -> None:
    pytest.importorskip("optuna")
    found = searched("bayes", 40)
    assert all(0.01 <= s["a"] <= 1 for n, (s, _) in found.items() if n)
    late = [v for n, (_, v) in found.items() if n >= 24]
    random = [value(drawn(SPACE, 3, n)) for n in range(1, 200)]
    assert sum(late) / len(late) > sum(random) / len(random)


def test_bayes_learns_from_what_failed() -> None:
    pytest.importorskip("optuna")
    found: dict[int, tuple[Setting, float | None]] = {}
    while new := proposals(SPACE, SearchRules(40, "bayes"), USUAL, 3, found):
        for number, setting in new:
            found[number] = setting, None if setting["a"] > 0.1 else -setting["a"]
    assert sum(found[n][1] is None for n in range(8, 40)) <= 8  # half of those drawn at random


def test_bayes_without_optuna_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r"fedtailor\[tune\]"):
        check_rules(SearchRules(search="bayes"))


def test_rungs_end_with_the_whole_run() -> None:
    assert rungs(30, SearchRules(20)) == [4, 10, 30]
    assert rungs(2, SearchRules(20)) == [2]
    assert rungs(30, SearchRules(2)) == [30]
    assert rungs(30, SearchRules(5)) == [10, 30]


def test_the_best_third_goes_on_and_what_failed_never() -> None:
    assert going_on({0: 3.0, 1: 1.0, 2: 2.0}, higher_is_better=False) == [1]
    assert going_on({0: None, 1: None}, higher_is_better=True) == []


@pytest.mark.parametrize("rules", [SearchRules(trials=0), SearchRules(seeds=0)])
def test_numbers_out_of_range_are_refused(rules: SearchRules) -> None:
    with pytest.raises(BadInput, match="give a number"):
        check_rules(rules)


def test_what_matters_is_found_and_what_does_not_is_not() -> None:
    space = (Axis("a", low=0, high=1), Axis("idle", low=0, high=1), Axis("w", ("x", "y")))
    tried = [drawn(space, 0, n) for n in range(60)]
    values = [t["a"] + (t["w"] == "x") * 0.01 for t in tried]
    found = {one.name: one for one in importances(space, tried, [*values[:-1], None])}
    assert found["a"].share > 0.6
    assert found["a"].p < 0.01
    assert found["idle"].share < 0.15
    assert found["idle"].p > 0.05


def test_of_few_or_equal_trials_nothing_is_said() -> None:
    tried = [drawn(SPACE, 0, n) for n in range(20)]
    assert importances(SPACE, tried[:8], [1.0 * n for n in range(8)]) == []
    assert importances(SPACE, tried, [0.5] * 20) == []
