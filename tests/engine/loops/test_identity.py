"""When two functions are the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedtailor.engine.loops.identity import ClosesOverClient, identity


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
