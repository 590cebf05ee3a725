"""Shared by the tests of sites."""

import sys

import pytest
import torch


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch, request):
    """Within one process an answer is there at once: no need to wait between two looks."""
    if "slow" in request.keywords or sys.modules.get("flwr") is None:
        return
    from fedtailor.federation.coordinator import carrier

    monkeypatch.setattr(carrier, "POLL", 0.01)
    monkeypatch.setattr(carrier, "PER_MESSAGE", 0.0)


@pytest.fixture
def without_pages(monkeypatch):
    """Sites that finish write all but their pages, which coordinator/test_report.py looks at."""
    from fedtailor.federation.site import model_card

    monkeypatch.setattr(model_card, "_write_page", lambda *args: None)
