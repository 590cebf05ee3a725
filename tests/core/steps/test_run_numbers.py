"""Options that stand for each run's own value: late where they can be, refused where not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core.steps.run_numbers import NeedsNumber, RunNumber, with_run_numbers

VALUES = (0.3, 1.7)
X = torch.tensor([0.5, -2.0, 4.0])


def late(fn: Callable[[Any, Tensor], Tensor], x: Tensor = X) -> Tensor:
    """Of both values, mapped."""
    number = RunNumber.of("mu", VALUES)

    def one(value: Tensor) -> Tensor:
        with with_run_numbers({"mu": value}):
            return fn(number, x)

    return vmap(one)(torch.tensor(VALUES, dtype=torch.float64))


@pytest.mark.parametrize(
    "fn",
    [
        lambda mu, x: mu / 2 * x,
        lambda mu, x: x * (1 - mu),
        lambda mu, x: 3 / mu - x,
        lambda mu, x: -(mu**2) + x,
        lambda mu, x: 2**mu * abs(mu - 1) * x,
        lambda mu, x: x.clamp(max=mu),
        lambda mu, x: torch.lerp(x, x * 2, mu),
        lambda mu, x: torch.where(x > mu, x, mu),
        lambda mu, x: torch.where(mu * x < 1, x, -x),
        lambda mu, x: torch.stack([x.sum(), x.sum() * mu]),
        lambda mu, x: x.long() * mu,
        lambda mu, x: (mu * x.double()).floor(),
    ],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_tensor_meets_it_as_it_meets_a_number(
    fn: Callable[[Any, Tensor], Tensor], kind: torch.dtype
) -> None:
    x = X.to(kind)
    found, expected = late(fn, x), torch.stack([fn(value, x) for value in VALUES])
    torch.testing.assert_close(found, expected)  # of the same type, too


def test_a_number_with_many_digits_is_not_shortened() -> None:
    # 0.7 in single precision is less than 0.7: seven of ten would be six
    number = RunNumber.of("share", [0.7])
    with with_run_numbers({"share": torch.tensor(0.7, dtype=torch.float64)}):
        assert float((number * torch.tensor(10).double()).floor()) == 7


def test_branches_that_all_values_take_alike_are_taken() -> None:
    number = RunNumber.of("mu", VALUES)
    assert number and number != 0 and number > 0.2 and 2 * number < 4
    assert int(number * 0) == 0 and max(number, 0.1) is number
    same = RunNumber.of("mu", [2.0, 2.0])
    assert float(same) == 2 and math.sqrt(same * 2) == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda mu: bool(mu > 1),
        lambda mu: mu == 1.7 or None,
        lambda mu: mu in (0.3, 5),
        lambda mu: int(mu),
        lambda mu: math.log(mu),
        lambda mu: max(mu, 1),
        lambda mu: torch.ones(2) * mu,  # and there is no client
    ],
)
def test_what_parts_the_values_is_refused(ask: Callable[[RunNumber], Any]) -> None:
    with pytest.raises(NeedsNumber, match="mu"):
        ask(RunNumber.of("mu", VALUES))


def test_what_is_no_number_is_no_partner() -> None:
    with pytest.raises(TypeError):
        RunNumber.of("mu", VALUES) * "a"  # type: ignore[operator]
    with pytest.raises(TypeError):
        f"{RunNumber.of('mu', VALUES):g}"
