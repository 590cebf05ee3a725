"""What a search is made of: methods, what stays and what is tried."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.runs.tuning.plan import TuningPlan


def test_epochs_are_not_tuned_where_steps_take_their_place() -> None:
    """All values would train alike, and one of them would be chosen."""
    shared = {"model": "linear", "clients": 2}
    with pytest.raises(BadInput, match="'epochs' is tuned, but steps is 2"):
        TuningPlan(["fedavg"], shared | {"steps": 2}, {}, {"epochs": "1,3"})
    plan = TuningPlan(["fedavg"], shared, {}, {"epochs": "1,3"})
    assert [axis.name for axis in plan.candidates["fedavg"].space] == ["epochs"]
