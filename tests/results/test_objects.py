"""What a run is given as Python objects is looked at before anything is played."""

from __future__ import annotations

from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import BadInput
from fedtailor.core.losses import cross_entropy

SMALL: dict[str, Any] = {"data": "digits", "model": "linear", "clients": 3, "rounds": 1}


def one(outputs: Any) -> Any:
    return outputs


def test_a_loss_and_a_metric_take_outputs_and_labels() -> None:
    with pytest.raises(
        BadInput, match=r"^loss is one\(outputs\): write it as one\(outputs, labels\)"
    ):
        fedtailor.run("fedavg", loss=one, **SMALL)
    with pytest.raises(BadInput, match=r"^metric 'm' is one\(outputs\): write it as one"):
        fedtailor.run("fedavg", metrics={"m": one}, **SMALL)


def test_a_loss_of_ones_own_that_raises_is_one_line_with_its_place() -> None:
    def lost(outputs: Any, labels: Any) -> Any:
        return {"a": cross_entropy(outputs, labels)}["b"]

    told = r"^lost of your own \(test_objects.py, line \d+: return .*\) raises KeyError: 'b': mend"
    with pytest.raises(BadInput, match=told):
        fedtailor.run("fedavg", loss=lost, **SMALL)
    with pytest.raises(BadInput, match=told):
        fedtailor.compare("fedavg", loss=lost, **SMALL)
