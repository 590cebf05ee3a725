"""An error of a method is told in one line, with the method's own line of code."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.func import vmap

from fedtailor.methods.check.failures import explained, listening


def raised(function: object, *args: object) -> Exception:
    try:
        function(*args)  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def mine(x: torch.Tensor) -> float:
    return x.sum().item()


def deeper(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2) + x


def test_the_line_of_the_method_is_told_with_the_likely_cause() -> None:
    said = explained(raised(vmap(mine), torch.zeros(3, 2)))
    assert "\n" not in said
    assert "return x.sum().item() (test_failures.py, line" in said
    assert "use torch.where" in said


def test_lines_of_torch_are_not_told() -> None:
    said = explained(raised(deeper, torch.zeros(3)))
    assert said.count(", line") == 1
    assert "return torch.zeros(2) + x" in said
    assert "padding" in said


def test_warnings_are_kept_and_not_printed(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    log = logging.getLogger("fedtailor")
    with listening(heard):
        log.warning("played %s", "slowly")
        log.info("nobody has to know")
    log.warning("after")
    assert heard == ["played slowly"]
    assert caplog.messages == ["after"]
