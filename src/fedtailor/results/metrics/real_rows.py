"""What a metric sees: a model's outputs on real rows, apart from the padding between clients.

Every metric is a function of `outputs` [..., R, K], `labels` [..., R] and `weight` [..., R], which
is 1 for a real row and 0 for padding; leading axes are clients, or whatever else is measured at
once. It gives one number for each, in float64: nan where a client has no rows, or where the metric
itself says so. Outputs that are not finite numbers are no answer: what counts right answers counts
them as wrong, so that no client whose model diverged drops out of a mean; of probabilities, ranks
and errors nothing can be said there, and they are nan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Numbers that a metric holds at once where it works in blocks: bounds memory, not the result.
BLOCK = 2**22


class RealRows(NamedTuple):
    """Outputs and labels with nothing in the padding."""

    outputs: Tensor  # [..., R, K] in float64; 0 in the padding
    labels: Tensor  # [..., R]; 0 in the padding
    weight: Tensor  # [..., R] in float64; 1 for a real row, 0 for padding
    finite: Tensor  # [..., R]; False for real rows whose outputs are not all finite numbers

    def each(self, value: Tensor) -> Tensor:
        """A number per row: 0 in the padding, nan where the outputs are not finite."""
        return torch.where(self.finite, value, math.nan) * self.weight

    def known(self, value: Tensor) -> Tensor:
        """A number per client: nan without rows, or where an output is not finite."""
        return self.counted(torch.where(self.finite.all(-1), value, math.nan))

    def counted(self, value: Tensor) -> Tensor:
        """A number per client that knows what to do with outputs that are not finite."""
        return torch.where(self.weight.sum(-1) > 0, value, math.nan)


def real_rows(outputs: Tensor, labels: Tensor, weight: Tensor) -> RealRows:
    """Outputs and labels, the padding emptied: whatever stands in it changes nothing.

    Labels and weights may lack leading axes of the outputs: several models on the same rows.

    Example:
      >>> outputs = torch.tensor([[[1.0, 2.0], [float("nan"), 0.0]]])
      >>> real_rows(outputs, torch.tensor([[1, -1]]), torch.tensor([[1, 0]])).labels
      tensor([[1, 0]])
    """
    shape = outputs.shape[:-1]
    real = (weight > 0).expand(shape)
    return RealRows(
        torch.where(real[..., None], outputs.double(), 0.0),
        torch.where(real, labels.expand(shape), 0),
        real.double(),
        outputs.isfinite().all(-1) | ~real,
    )


def mean_of_rows(each: Tensor, weight: Tensor) -> Tensor:
    """The mean of a number per row (0 in the padding); nan without rows.

    Example:
      >>> mean_of_rows(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([1, 1, 0]))
      tensor(0.7500, dtype=torch.float64)
    """
    return each.sum(-1) / (weight > 0).double().sum(-1)
