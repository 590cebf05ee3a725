"""Settings that all tests of methods share."""

from collections.abc import Iterator

import pytest
import torch

import fedtailor.methods.check.world as suite
from fedtailor.methods.check import laws


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """These nets are so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def double() -> Iterator[None]:
    """float64 for the length of a test."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The toy federation with fewer rounds and rows, so that all methods can be checked.

    There are still clients with less than a batch, with one and with two. With --slow it is as
    `fedtailor check` has it: some methods learn some tasks in more rounds or rows only.
    """
    if not request.config.getoption("--slow"):
        monkeypatch.setattr(suite, "ROUNDS", 2)
        monkeypatch.setattr(suite, "SIZES", (5, 15, 9, 13, 16, 11, 14, 8))
        monkeypatch.setattr(laws, "LEARNING", 2)  # as long as the run that others look at
