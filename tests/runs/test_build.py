"""From a configuration to network and method."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.errors import BadInput
from fedtailor.core.task import classification
from fedtailor.results.config import make_config
from fedtailor.runs.build import make_method


def test_fedfomo_needs_validation_rows() -> None:
    task = classification(lambda: torch.nn.Linear(2, 2))
    for name in ("fedfomo", "fedfomo-ma", "pmixfed", "fedsim+mix"):
        with pytest.raises(BadInput, match="raise --val"):
            make_method(make_config(name, {"val": 0}, {}), task)
