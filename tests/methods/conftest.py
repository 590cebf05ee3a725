"""Settings that all tests of methods share."""

from collections.abc import Iterator

import pytest
import torch

import fedtailor.methods.check as suite


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
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy federation with fewer rows and rounds, so that all methods can be checked."""
    monkeypatch.setattr(suite, "ROUNDS", 2)
    case = getattr(request.node, "callspec", None)
    if case is None or not case.params.get("name", "").startswith("fedfomo"):
        # which judges models on validation rows, and needs some
        monkeypatch.setattr(suite, "SIZES", (7, 16, 12, 9, 16, 5, 11, 8))
