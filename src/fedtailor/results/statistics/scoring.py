"""A metric of ours, as the statistics take it: on arrays, with what they must know of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedtailor.results.metrics.named import Metric
from fedtailor.results.statistics.paired import Scoring, Values

RANKINGS = ("roc-auc", "average-precision", "concordance")
ANSWERS = ("accuracy", "balanced-accuracy", "macro-f1", "sensitivity", "specificity")
NO_SHARES = ("log-loss", "perplexity", "rmse", "mae", "r2")  # not between 0 and 1
IN_UNITS = ("rmse", "mae")  # of the label, and so is a margin for them


def scoring_of(metric: Metric) -> Scoring:
    """How outputs are judged by a metric.

    Example:
      >>> from fedtailor.results.metrics.named import METRICS
      >>> scoring = scoring_of(METRICS["accuracy"])
      >>> outputs, labels = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1, 1])
      >>> float(scoring.function(outputs, labels, np.ones(2)))
      0.5
    """
    per_row = metric.per_row
    return Scoring(
        function=_on_arrays(metric.function),
        per_row=None if per_row is None else _by_row(_on_arrays(per_row)),
        higher_is_better=metric.higher_is_better,
        ranking=metric.name in RANKINGS,
        share=metric.name not in NO_SHARES,
        answers=metric.name in ANSWERS,
        why_undefined=lambda labels: metric.why_undefined(
            torch.from_numpy(np.array(labels)), torch.ones(len(labels))
        ),
    )


def _on_arrays(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Values, Values, Values], Values]:
    def of(outputs: Values, labels: Values, weight: Values) -> Values:
        ahead = weight.shape[:-1]
        given = (
            np.asarray(outputs, dtype=np.float64),
            np.broadcast_to(labels, (*ahead, *np.shape(labels))),
            np.asarray(weight, dtype=np.float64),
        )
        found = function(*(torch.from_numpy(np.array(a)) for a in given))  # copies: some are views
        return np.asarray(found.numpy())

    return of


def _by_row(
    function: Callable[[Values, Values, Values], Values],
) -> Callable[[Values, Values], Values]:
    return lambda outputs, labels: function(outputs, labels, np.ones(len(outputs)))
