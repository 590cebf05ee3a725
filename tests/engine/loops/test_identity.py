"""When two functions are the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedtailor.core.task import Task, classification
from fedtailor.engine.loops.identity import MOST, ClosesOverClient, TaskNumbers, identity


def scaled(factor: Any) -> Any:
    return lambda x: factor * x


@dataclass(frozen=True)
class Settings:
    rate: float
    names: tuple[str, ...] = ()


def same(one: Any, other: Any) -> bool:
    return identity(one, []) == identity(other, [])


@pytest.mark.parametrize(
    "make",
    [
        scaled,
        lambda c: partial(scaled, c),
        lambda c: partial(scaled, factor=c),
        lambda c: [scaled(c), {"a": c}],
        lambda c: lambda x, c=c: x * c,
        lambda c: {"a": {c}},
    ],
)
def test_equal_constants_make_equal_functions(make: Any) -> None:
    assert same(make(2), make(2))
    assert not same(make(2), make(3))
    assert not same(make(1), make(1.0))  # they compute other types
    assert not same(make(True), make(1))


def test_frozen_settings_count_by_value_and_modules_by_themselves() -> None:
    assert same(scaled(Settings(0.1, ("a",))), scaled(Settings(0.1, ("a",))))
    assert not same(scaled(Settings(0.1)), scaled(Settings(0.2)))
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    assert same(scaled(one), scaled(one)) and not same(scaled(one), scaled(other))


def test_different_code_is_different() -> None:
    assert not same(lambda x: x + 1, lambda x: x + 2)


def test_what_is_known_by_its_address_is_held() -> None:
    tensor, held = torch.zeros(1), []  # type: ignore[var-annotated]
    identity(scaled(tensor), held)
    assert any(one is tensor for one in held)


def test_a_function_that_refers_to_itself_has_an_identity() -> None:
    def fact(n: int) -> int:
        return 1 if n == 0 else n * fact(n - 1)

    assert same(fact, fact)


def test_a_name_without_a_value_is_no_error() -> None:
    def make() -> Any:
        def use() -> Any:
            return late

        if False:
            late = 1
        return use

    assert same(make(), make())


def test_a_mapped_tensor_is_told() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ClosesOverClient, match="given"):
            identity(scaled(x), [])
        return x

    vmap(one)(torch.zeros(2))


def linear(outputs: int) -> Task:
    return classification(lambda: nn.Linear(2, outputs))


def test_tasks_that_do_the_same_have_the_same_number() -> None:
    tasks, two = TaskNumbers(), linear(2)
    alike, other = two._replace(), two._replace(kind="regression")
    assert tasks.of(two) == tasks.of(two) == tasks.of(alike) != tasks.of(other)
    steps = [identity(scaled(task), [], tasks) for task in (two, alike, other, linear(2))]
    assert steps[0] == steps[1] and len(set(steps)) == 3  # a network of its own counts


def test_a_task_is_walked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, task = TaskNumbers(), linear(2)
    first = identity(scaled(task), [], tasks)

    def nothing_more(*anything: Any) -> None:
        raise AssertionError("walked through again")

    monkeypatch.setattr(Task, "__iter__", nothing_more)
    assert identity(scaled(task), [], tasks) == first


def test_tasks_that_are_made_anew_and_anew_are_not_all_kept() -> None:
    tasks, task = TaskNumbers(), linear(2)
    assert {tasks.of(task._replace()) for _ in range(2 * MOST)} == {0}
    assert len(tasks._known) <= MOST
