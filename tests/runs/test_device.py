"""Where a run computes."""

from __future__ import annotations

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.runs.device import choose_device


@pytest.mark.parametrize("name", ["gpu9", "cuda:99", "", "cpu:x"])
def test_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(BadInput, match="try --device cpu") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)


def test_a_device_that_cannot_compute_is_refused() -> None:
    with pytest.raises(BadInput):
        choose_device("meta")
