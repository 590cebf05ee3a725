"""Judges what clients' models say of their rows, by the metric that a run goes by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedtailor.core.form import Form, TaskKind
from fedtailor.core.losses import PLAIN_LOSSES, cox
from fedtailor.engine import ClientData
from fedtailor.results.metrics.named import METRICS, Metric, metric_named
from fedtailor.results.metrics.over_clients import over_clients
from fedtailor.results.metrics.table import table_of_metrics
from fedtailor.runs.data import RunData, TargetScales


class _Part(NamedTuple):
    """Labels of all clients' rows of a part, and which are real rows."""

    labels: Tensor
    weight: Tensor


class Evaluation:
    """The metrics of a run's clients, from what their models say.

    Args:
      client_data: whose rows are asked about.
      form: what is learnt.
      metric: that the run goes by.
      targets: how labels were scaled, where they are numbers: metrics see their own unit.
    """

    def __init__(
        self, client_data: ClientData, form: Form, metric: Metric, targets: TargetScales | None
    ) -> None:
        self.client_data, self.metric, self.targets = client_data, metric, targets
        self.task: TaskKind = form.task
        self._parts: dict[str, _Part] = {}

    def _part(self, name: str) -> _Part:
        if name not in self._parts:
            everyone = torch.arange(self.client_data.clients)
            labels, weight = self.client_data.labels(everyone, name)
            self._parts[name] = _Part(self._in_unit(labels, everyone), weight)
        return self._parts[name]

    def _in_unit(self, values: Tensor, ids: Tensor) -> Tensor:
        """Numbers of clients in the label's own unit."""
        return values if self.targets is None else self.targets.of(ids).unscaled(values)

    def _asked(
        self, outputs: Tensor, part: str, ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs in the label's unit, with labels and weights, of some clients."""
        labels, weight = self._part(part)
        who = torch.arange(self.client_data.clients) if ids is None else ids
        here, rows = who.to(labels.device), outputs.shape[1]
        labels, weight = labels[here][:, :rows], weight[here][:, :rows]
        return self._in_unit(outputs.to(labels.device), who), labels, weight

    def summary(
        self, outputs: Tensor, part: str = "test", ids: Tensor | None = None
    ) -> dict[str, float]:
        """The metric over clients and over all rows, with the mean loss over rows."""
        return self.judged(outputs, part, ids)[0]

    def judged(
        self, outputs: Tensor, part: str = "test", ids: Tensor | None = None
    ) -> tuple[dict[str, float], list[float | None]]:
        """The metric over clients and over all rows, with the mean loss; and each client's value.

        A client without a value has None.
        """
        said, labels, weight = self._asked(outputs, part, ids)
        real = weight > 0
        if not bool(real.any()):
            return {}, [None] * len(said)
        rows, truth = said[real], labels[real]
        each = self.metric.function(said, labels, weight).cpu().numpy()
        all_rows = float(self.metric.function(rows, truth, torch.ones_like(rows[:, 0])))
        found = over_clients(each, all_rows, self.metric.higher_is_better)
        found["loss"] = float(self._losses(said, labels, weight))
        # a diverged model's loss may be infinite, for which JSON has no word
        short = {k: round(v, 6) for k, v in found.items() if math.isfinite(v)}
        return short, [round(v, 6) if math.isfinite(v) else None for v in each.tolist()]

    def _losses(self, said: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        """The mean over rows of the task's plain loss, whatever training makes small."""
        if self.task == "survival":  # padding is at nobody's risk
            each = vmap(cox)(said, labels.to(said), weight.to(said))
        else:
            each = PLAIN_LOSSES[self.task](said.flatten(0, 1), labels.flatten())
            each = each.reshape(labels.shape)
        return (each * weight).nan_to_num(nan=math.inf).sum() / weight.sum()

    def rows(self, outputs: Tensor, part: str = "test") -> tuple[Tensor, Tensor]:
        """(outputs, labels) of all clients' rows, one client after the other, on the host."""
        said, labels, weight = self._asked(outputs, part, None)
        real = weight > 0
        return said[real].float().cpu(), labels[real].cpu()

    def labels(self, part: str) -> Tensor:
        """The labels of all clients' rows, one client after the other, on the host."""
        labels, weight = self._part(part)
        return labels[weight > 0].cpu()

    def table(self, outputs: Tensor, part: str = "test") -> dict[str, dict[str, Any]]:
        """All metrics that the task has: for each client, over clients, and over all rows."""
        rows, truth = self.rows(outputs, part)
        counts: Tensor = getattr(self.client_data, part).n
        n = dict(zip(self.client_data.names, counts.tolist(), strict=True))
        return rounded_table(table_of_metrics(rows, truth, n, self.task, part=part))


def evaluation_of(data: RunData, metric: str, client_data: ClientData | None = None) -> Evaluation:
    """The evaluation of a run's data; a simulation may have moved rows since (a common pool)."""
    form = data.encoder.form
    found = metric_named(metric, form.task, form.classes)
    return Evaluation(client_data or data.client_data, form, found, data.targets)


def rounded_table(table: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same for a file: six digits say all that can be said."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        return round(value, 6) if isinstance(value, float) else value

    return {name: short(found) for name, found in table.items()}


def is_stale(values: Sequence[float | None], patience: int, metric: str) -> bool:
    """Whether the last `patience` values are no better than the best one before; 0 is no patience.

    Example:
      >>> is_stale([0.5, 0.7, 0.7, 0.6], 2, "accuracy"), is_stale([0.5, 0.7, 0.6], 2, "accuracy")
      (True, False)
    """
    best: int | None = None
    for place, value in enumerate(values):
        before = None if best is None else values[best]
        if value is not None and (before is None or is_better(metric, value, before)):
            best = place
    return patience > 0 and best is not None and len(values) - 1 - best >= patience


def is_better(metric: str, new: float, old: float) -> bool:
    """Whether a value is better than another, by a metric."""
    return new > old if METRICS[metric].higher_is_better else new < old
