"""Metrics of numbers: scikit-learn's, for several clients at once, with padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn import metrics as sk

from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.regression import r2, rmse
from tests.results.metrics.drawn import DrawnClients, clients, padded

NAN = float("nan")
REFERENCES = {
    "rmse": sk.root_mean_squared_error,
    "mae": sk.mean_absolute_error,
    "r2": lambda truth, said: sk.r2_score(truth, said) if len(set(truth)) > 1 else NAN,
}


def assert_equal_to_reference(name: str, drawn: DrawnClients) -> None:
    found = METRICS[name].function(drawn.outputs, drawn.labels, drawn.weight)
    expected = [
        REFERENCES[name](truth, said[:, 0].astype(np.float64)) if len(truth) else NAN
        for said, truth in drawn.each
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-9)


def test_every_metric_of_numbers_has_a_reference() -> None:
    assert list(REFERENCES) == [n for n, m in METRICS.items() if "regression" in m.tasks]


@settings(max_examples=30, deadline=None)
@given(drawn=clients("regression"))
def test_as_in_scikit_learn(drawn: DrawnClients) -> None:
    for name in REFERENCES:
        assert_equal_to_reference(name, drawn)


@pytest.mark.parametrize("name", REFERENCES)
def test_labels_far_from_zero(name: str) -> None:
    rng = np.random.default_rng(0)
    truth = 1e6 + rng.normal(size=500)
    assert_equal_to_reference(name, padded([(truth[:, None] + 0.5, truth)], 510))


def test_equal_labels_leave_nothing_to_explain() -> None:
    # three times 0.1 is not 0.3: the mean of equal numbers may differ from them
    labels = torch.full((3,), 0.1, dtype=torch.float64)
    assert r2(torch.zeros(3, 1), labels, torch.ones(3)).isnan()
    assert r2(labels[:, None], labels, torch.ones(3)).isnan()


@pytest.mark.parametrize("name", REFERENCES)
def test_no_rows_give_no_number(name: str) -> None:
    function = METRICS[name].function
    assert (
        function(torch.zeros(2, 3, 1), torch.arange(6.0).view(2, 3), torch.zeros(2, 3))
        .isnan()
        .all()
    )
    assert function(torch.zeros(2, 0, 1), torch.zeros(2, 0), torch.zeros(2, 0)).isnan().all()


@pytest.mark.parametrize("name", REFERENCES)
def test_outputs_that_are_no_numbers_give_no_number(name: str) -> None:
    outputs = torch.tensor([[[1.0], [NAN]], [[1.0], [2.0]]])
    found = METRICS[name].function(outputs, torch.tensor([0.0, 1.0]), torch.ones(2, 2))
    assert found.isnan().tolist() == [True, False]


def test_labels_of_single_precision() -> None:
    found = rmse(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.ones(1))
    assert found.dtype == torch.float64
    assert float(found) == 2.0
