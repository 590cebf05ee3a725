"""How good a model is on a site's own test rows, by the metric that the federation goes by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.scoring import outputs_on
from fedtailor.core.tree import Tree
from fedtailor.datasets import Encoder
from fedtailor.federation.protocol.plan import Setup
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.table import table_of_metrics
from fedtailor.results.statistics import PairedRows, measure_gains, scoring_of
from fedtailor.results.statistics.variance import variances

Predict = Callable[[Any, Tensor], Tensor]


class SiteScore(NamedTuple):
    """What a model comes to on test rows."""

    value: float | None  # of the federation's metric; None where it is undefined
    loss: float | None  # the mean over rows; None where it is not finite
    metrics: dict[str, dict[str, Any]]  # each one's `value`, or `undefined` with why
    said: Tensor  # what the model says of each row, numbers in the label's own unit
    labels: Tensor  # of the rows, likewise


def score_model(
    setup: Setup,
    predict: Predict,
    model: Tree,
    test: Data,
    encoder: Encoder,
    *,
    every_metric: bool = False,
) -> SiteScore:
    """A model's score on a site's test rows; numbers are judged in the label's own unit.

    Args:
      setup: what the federation agreed on.
      predict: (model, x) -> outputs.
      model: the site's, or one that was trained alone.
      test: the rows, as `encoder` has them.
      encoder: what scaled the labels.
      every_metric: beside the federation's, for a model card.
    """
    form, n = setup.encoder.form, int(test.n)
    labels = test.y[test.rows[:n]]
    if n == 0:
        return SiteScore(None, None, {}, torch.zeros(0, form.outputs), labels)
    said = outputs_on(predict, model, test, form.outputs)[:n]
    loss = float(setup.task.losses(said, labels, torch.ones(n).to(said)).mean())
    names = None if every_metric else [setup.config.metric]
    if encoder.target is not None:
        said, labels = (encoder.target.undo(each.double()) for each in (said, labels))
    table = table_of_metrics(said, labels, {"": n}, form.task, names)
    found = {
        name: {"undefined": of["undefined"][""]}
        if of["per_client"][""] is None
        else {"value": round(of["per_client"][""], 6)}
        for name, of in table.items()
    }
    value = found[setup.config.metric].get("value")
    return SiteScore(value, loss if math.isfinite(loss) else None, found, said, labels)


def error_of_gain(here: SiteScore, alone: SiteScore, metric: str) -> float | None:
    """The standard error of what is gained, as the site's test rows have it; None if unknown.

    Both models speak of the same rows, so it is that of paired differences.
    """
    if here.value is None or alone.value is None:
        return None
    outputs = (each.said.double().numpy() for each in (here, alone))
    rows = PairedRows(np.arange(len(here.said)), here.labels.numpy(), *outputs)
    gains = measure_gains({"": [rows]}, scoring_of(METRICS[metric]))
    return math.sqrt(variances(gains)[0]) if gains.clients else None


def gain_over(here: float | None, alone: float | None, metric: str) -> float | None:
    """What is gained: positive is better, whichever way the metric points."""
    if here is None or alone is None:
        return None
    return round(here - alone if METRICS[metric].higher_is_better else alone - here, 6)
