"""How close models come to a number: functions of outputs [..., R, 1], labels and weights.

Outputs and labels are in the label's own unit. Equal to scikit-learn's; `real_rows` says what the
arguments are and where the result is nan.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.results.metrics.real_rows import mean_of_rows, real_rows


def row_errors(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Each row's distance from its label; 0 in the padding."""
    rows = real_rows(outputs, labels, weight)
    return rows.each((rows.outputs[..., 0] - rows.labels.double()).abs())


def mae(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The mean distance from the label.

    Example:
      >>> float(mae(torch.tensor([[1.0], [5.0]]), torch.tensor([2.0, 2.0]), torch.ones(2)))
      2.0
    """
    return mean_of_rows(row_errors(outputs, labels, weight), weight)


def rmse(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The root of the mean squared distance from the label.

    Example (distances 1 and 7: the root of 50 / 2):
      >>> float(rmse(torch.tensor([[1.0], [9.0]]), torch.tensor([2.0, 2.0]), torch.ones(2)))
      5.0
    """
    return mean_of_rows(row_errors(outputs, labels, weight).square(), weight).sqrt()


def r2(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """The share of the labels' variance that is explained: 0 for their mean, 1 for no error.

    Nan where all labels are the same: there is nothing to explain (scikit-learn says 0 or 1).

    Example (squared distances 1 of 8):
      >>> outputs, labels = torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 4.0])
      >>> float(r2(outputs, labels, torch.ones(2)))
      0.875
    """
    rows = real_rows(outputs, labels, weight)
    truth, real = rows.labels.double(), rows.weight > 0
    if not truth.shape[-1]:
        return rows.known(rows.weight.sum(-1))
    left = row_errors(outputs, labels, weight).square().sum(-1)
    mean = (truth * rows.weight).sum(-1, keepdim=True) / rows.weight.sum(-1, keepdim=True)
    total = ((truth - mean).square() * rows.weight).sum(-1)
    # not by `total`: rounding leaves the mean of equal numbers beside them
    most = truth.masked_fill(~real, -math.inf).amax(-1)
    least = truth.masked_fill(~real, math.inf).amin(-1)
    return rows.known(torch.where(most > least, 1 - left / total, math.nan))
