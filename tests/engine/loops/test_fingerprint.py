"""Tests of the texts by which other processes know what a function does."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedtailor.core.steps.run_numbers import RunNumber
from fedtailor.engine.loops.fingerprint import CannotTell, environment_fingerprint, fingerprint

FACTOR = 2.0


def with_global(x: Any) -> Any:
    return x * FACTOR


def calls_it(x: Any) -> Any:
    return with_global(x) + 1


def closing(value: Any) -> Any:
    return lambda x: (x, value)


@dataclass(frozen=True)
class Settings:
    rate: float
    parts: tuple[str, ...] = ()

    def used(self) -> float:
        return self.rate


def alike(a: Any, b: Any) -> bool:
    return fingerprint(a) == fingerprint(b)


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 2),
        (1, 1.0),
        (True, 1),
        ("a", "b"),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"a": 2}),
        (frozenset("ab"), frozenset("ac")),
        (torch.float32, torch.float64),
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (np.arange(3), np.arange(3) + 1),
        (Settings(0.1), Settings(0.2)),
        (Settings(0.1).used, Settings(0.2).used),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (nn.Linear(2, 3), nn.Linear(2, 4)),
        (nn.Dropout(0.1), nn.Dropout(0.2)),
        (torch.relu, torch.sigmoid),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_function_closes_over_counts(value: Any, other: Any) -> None:
    assert alike(closing(value), closing(value))
    assert not alike(closing(value), closing(other))


def test_of_a_networks_parameters_the_shape_counts_alone() -> None:
    assert alike(nn.Linear(2, 3), nn.Linear(2, 3))
    one, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    other.running_mean += 1  # type: ignore[operator]
    assert not alike(one, other)  # of other tensors the numbers do


def test_code_counts_and_where_it_stands_does_not() -> None:
    space: dict[str, Any] = {}
    for name, code in (("a", "x + 1"), ("b", "x + 1"), ("c", "x + 2"), ("d", "x - 1")):
        lines = "\n" * len(space)
        exec(f"{lines}def f(x):\n    return {code}\n", space)
        space[name] = space.pop("f")
    assert alike(space["a"], space["b"])
    assert not alike(space["a"], space["c"]) and not alike(space["a"], space["d"])


def test_what_is_found_in_modules_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(calls_it)
    assert fingerprint(calls_it) == before
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    changed = fingerprint(calls_it)
    assert changed != before
    monkeypatch.setattr(sys.modules[__name__], "with_global", lambda x: x)
    assert fingerprint(calls_it) not in (before, changed)


def test_methods_of_a_class_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(closing(Settings(0.1)))
    monkeypatch.setattr(Settings, "used", lambda self: 0.0)
    assert fingerprint(closing(Settings(0.1))) != before


class Rate(float):
    def twice(self) -> float:
        return 2 * self


class Table(dict[str, int]):
    def total(self) -> int:
        return sum(self.values())


@pytest.mark.parametrize("value", [Rate(0.1), Table(a=1)], ids=["Rate", "Table"])
def test_so_do_those_of_a_number_or_a_table(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(closing(value))
    assert before != fingerprint(closing(type(value)()))
    for name in ("twice", "total"):
        if hasattr(type(value), name):
            monkeypatch.setattr(type(value), name, lambda self: 0)
    assert fingerprint(closing(value)) != before


def test_options_of_several_runs_count_with_all_values() -> None:
    """A step may have branched on them when it was traced."""

    def times(values: list[float]) -> Any:
        number = RunNumber.of("mu", values) / 2
        return lambda x: number * x

    assert fingerprint(times([1.0, 2.0])) == fingerprint(times([1.0, 2.0]))
    assert fingerprint(times([1.0, 2.0])) != fingerprint(times([1.0, 3.0]))


def test_functions_may_refer_to_each_other() -> None:
    def one(n: int) -> int:
        return n and other(n - 1)

    def other(n: int) -> int:
        return n and one(n - 1)

    assert fingerprint(one) == fingerprint(one)


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), iter([1]), torch.zeros(5 << 20), {object: 1}.keys()],
    ids=lambda value: type(value).__name__,
)
def test_what_only_this_process_knows_is_not_guessed(value: Any) -> None:
    with pytest.raises(CannotTell):
        fingerprint(closing(value))


def test_another_process_finds_the_same() -> None:
    code = (
        "from fedtailor.engine.loops.fingerprint import fingerprint\n"
        "from fedtailor.core.training import Recipe\n"
        "from fedtailor.core.task import classification\n"
        "from torch import nn\n"
        "task = classification(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU()))\n"
        "print(fingerprint(task.loss, Recipe(lr=0.1)))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 1 and len(found.pop().strip()) == 40


def test_environments_are_known_by_device() -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert environment_fingerprint(cpu) != environment_fingerprint(meta)
