"""Which metric, loss and class weights a run goes by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.form import TaskKind
from fedtailor.core.losses import LOSSES, balanced_weights, parse_loss
from fedtailor.datasets import Source
from fedtailor.datasets.wording import listed, quoted
from fedtailor.partition import Partition
from fedtailor.results.config import Config, check_class_weights
from fedtailor.results.metrics.named import (
    default_metric,
    metric_named,
    positive_note,
    refuse_our_names,
)
from fedtailor.results.objects import MARK


def settle_judging(
    config: Config, task: TaskKind, classes: int, counts: Sequence[int]
) -> tuple[Config, str]:
    """The configuration with metric, loss and class weights that fit the task and the labels.

    Also says why that metric, where nobody asked for one and it is not accuracy.

    Args:
      config: what was asked for.
      task: what is learnt.
      classes: how many.
      counts: training rows of each class; empty where nobody knows them (rows lie at sites).
    """
    refuse_our_names(config.objects.metrics or {})
    weights = config.class_weights
    if task != "classification" and weights != "none":
        raise BadInput(
            f"class-weights is '{weights}', but the labels are no classes ({task}): leave it out"
        )
    if weights == "balanced":
        if not counts:
            raise BadInput(
                "class-weights is 'balanced', but how many rows of each class the sites have is "
                "not known here: give a number for each class, e.g. 1,5"
            )
        weights = ",".join(f"{w:g}" for w in balanced_weights(counts))
    check_class_weights(weights, classes)
    loss = config.loss
    if not loss.startswith(MARK):
        parse_loss(loss, task)
        loss = LOSSES[task][0] if loss == "auto" else loss
    metric, why = config.metric, ""
    if metric == "auto" and task == "classification" and not counts:
        metric = "accuracy"
    elif metric == "auto":
        metric, why = default_metric(task, counts)
    metric_named(metric, task, classes)
    made = replace(config, task=task, loss=loss, class_weights=weights, metric=metric)
    return made, "" if metric == "accuracy" else why


def judging_notes(config: Config, why: str, classes: Sequence[str]) -> list[str]:
    """A line on each thing that hangs on the order of the classes, after why that metric.

    Args:
      config: with settled metric and class weights.
      why: that metric, as `settle_judging` says it.
      classes: their names.
    """
    weights = check_class_weights(config.class_weights)
    each = [
        f"{quoted(name, 40)} {weight:g}" for name, weight in zip(classes, weights, strict=False)
    ]
    weighed = f"Rows count in the loss by class: {listed(each, 10)}." if each else ""
    return [line for line in (why, positive_note([config.metric], classes), weighed) if line]


def class_counts(source: Source, partition: Partition) -> list[int]:
    """How many training rows there are of each class; empty where there are no classes."""
    if source.task != "classification":
        return []
    trained = source.labels[np.concatenate(partition.train)]
    counts: list[int] = np.bincount(trained, minlength=len(source.classes)).tolist()
    return counts
