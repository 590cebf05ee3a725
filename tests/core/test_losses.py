"""Losses of three kinds of tasks, against torch's and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedtailor.core import rng
from fedtailor.core.errors import BadInput
from fedtailor.core.losses import (
    balanced_weights,
    class_weighted,
    cox,
    cross_entropy,
    focal,
    huber,
    parse_loss,
    squared_error,
)
from fedtailor.core.task import Batch, regression, survival


def test_focal_without_a_gamma_is_cross_entropy() -> None:
    outputs, labels = torch.randn(20, 4), torch.arange(20) % 4
    torch.testing.assert_close(focal(0.0)(outputs, labels), cross_entropy(outputs, labels))


def test_focal_counts_sure_rows_less() -> None:
    logits = torch.tensor([[math.log(9.0), 0.0]])  # p = 0.9
    found = focal(2.0)(logits, torch.tensor([0]))
    assert float(found) == pytest.approx(-(0.1**2) * math.log(0.9), rel=1e-5)


def test_class_weights_are_torchs_without_its_mean() -> None:
    outputs, labels, weights = torch.randn(20, 3), torch.arange(20) % 3, (0.5, 1.0, 4.0)
    found = class_weighted(cross_entropy, weights)(outputs, labels)
    expected = F.cross_entropy(outputs, labels, torch.tensor(weights), reduction="none")
    torch.testing.assert_close(found, expected)


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = [0] * 30 + [1] * 5 + [2] * 15
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced_weights([30, 5, 15]) == pytest.approx(expected)
    assert balanced_weights([2, 0, 2]) == (1.0, 0.0, 1.0)


def test_errors_of_numbers() -> None:
    outputs, labels = torch.tensor([[1.0], [5.0]]), torch.tensor([0.0, 2.0])
    assert squared_error(outputs, labels).tolist() == [1.0, 9.0]
    assert huber(2.0)(outputs, labels).tolist() == [0.5, 2.0 * (3.0 - 1.0)]


def test_cox_by_hand() -> None:
    """Three rows; events at 1 and 2 with risk sets of three and two, one censored at 3."""
    risks = torch.tensor([[0.0], [1.0], [2.0]])
    labels = torch.tensor([[1.0, 1.0], [2.0, 1.0], [3.0, 0.0]])
    found = cox(risks, labels, torch.ones(3))
    first = math.log(1 + math.e + math.e**2)
    second = math.log(math.e + math.e**2) - 1
    assert found.tolist() == pytest.approx([first, second, 0.0])


def test_cox_leaves_padding_out_of_every_risk_set() -> None:
    risks, labels = torch.randn(6, 1), torch.rand(6, 2).round(decimals=1)
    labels[:, 1] = (labels[:, 1] > 0.4).float()
    whole = cox(risks[:4], labels[:4], torch.ones(4))
    weight = torch.tensor([1.0, 1, 1, 1, 0, 0])
    torch.testing.assert_close(cox(risks, labels, weight)[:4], whole)
    assert cox(risks, labels, weight).isfinite().all()


def test_tied_times_share_a_risk_set() -> None:
    labels = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    found = cox(torch.tensor([[0.0], [1.0]]), labels, torch.ones(2))
    both = math.log(1 + math.e)
    assert found.tolist() == pytest.approx([both, both - 1])


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("mse", "classification", "unknown loss of a classification 'mse'"),
        ("focal", "classification", "unknown loss of a classification 'focal'"),
        ("focal:x", "classification", "give a number from 0 on"),
        ("huber:0", "regression", "unknown loss of a regression 'huber:0'"),
        ("cox:1", "survival", "unknown loss of a survival 'cox:1'"),
    ],
)
def test_refused(name: str, task: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_loss(name, task)  # type: ignore[arg-type]


def test_tasks_descend_what_they_are_given() -> None:
    """One step of a line: the slope of the mean squared error, and of Cox's likelihood."""
    task = regression(lambda: torch.nn.Linear(1, 1))
    params = {"weight": torch.tensor([[1.0]]), "bias": torch.tensor([0.0])}
    one = torch.ones(2)
    batch = Batch(torch.tensor([[1.0], [2.0]]), torch.zeros(2), one, torch.tensor(True), rng.key(0))
    assert float(task.loss(params, batch)[0]) == pytest.approx((1 + 4) / 2)
    dying = survival(lambda: torch.nn.Linear(1, 1))
    times = torch.tensor([[1.0, 1.0], [2.0, 1.0]])
    found = float(dying.loss(params, batch._replace(y=times))[0])
    assert found == pytest.approx((math.log(math.e + math.e**2) - 1 + 0) / 2)
