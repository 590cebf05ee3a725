"""Why a client has no value: a reason wherever, and only where, the metric has none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.undefined import no_negative, no_pair, no_positive, one_value
from tests.results.metrics.drawn import DrawnClients, clients


@settings(max_examples=60, deadline=None)
@given(data=st.data(), task=st.sampled_from(["classification", "regression", "survival"]))
def test_a_reason_where_there_is_no_value(data: st.DataObject, task: str) -> None:
    drawn: DrawnClients = data.draw(clients(task))
    for metric in METRICS.values():
        if task in metric.tasks:
            values = metric.function(*drawn[:3]).tolist()
            for client, value in enumerate(values):
                reason = metric.why_undefined(drawn.labels[client], drawn.weight[client])
                assert (reason is not None) == math.isnan(value), (metric.name, reason)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (no_positive(torch.zeros(12), torch.ones(12)), "no positive row among its 12 test rows"),
        (no_negative(torch.ones(2), torch.ones(2), "val"), "no negative row among its 2 val rows"),
        (one_value(torch.ones(1), torch.ones(1)), "only one value in its one test row"),
        (no_pair(torch.ones(2, 2), torch.zeros(2)), "no test rows"),
    ],
)
def test_reasons_in_words(reason: str | None, expected: str) -> None:
    assert reason == expected
