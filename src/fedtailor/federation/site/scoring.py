"""How good a model is on a site's own test rows, by the metric that the federation goes by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.data import Data
from fedtailor.core.scoring import outputs_on
from fedtailor.core.tree import Tree
from fedtailor.datasets import Encoder
from fedtailor.federation.protocol.plan import Setup
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.table import table_of_metrics

Predict = Callable[[Any, Tensor], Tensor]


class SiteScore(NamedTuple):
    """What a model comes to on test rows."""

    value: float | None  # of the federation's metric; None where it is undefined
    loss: float | None  # the mean over rows; None where it is not finite
    metrics: dict[str, dict[str, Any]]  # each one's `value`, or `undefined` with why


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
    if n == 0:
        return SiteScore(None, None, {})
    said = outputs_on(predict, model, test, form.outputs)[:n]
    labels = test.y[test.rows[:n]]
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
    return SiteScore(
        found[setup.config.metric].get("value"), loss if math.isfinite(loss) else None, found
    )


def gain_over(here: float | None, alone: float | None, metric: str) -> float | None:
    """What is gained: positive is better, whichever way the metric points."""
    if here is None or alone is None:
        return None
    return round(here - alone if METRICS[metric].higher_is_better else alone - here, 6)
