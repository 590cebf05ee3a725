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
from fedtailor.results.metrics.table import lost_clients, table_of_metrics
from fedtailor.runs.data import RunData, TargetScales


class _Part(NamedTuple):
    """Labels of clients' rows of a part, and which are real rows."""

    labels: Tensor
    weight: Tensor
    real: Tensor  # the places of real rows, all clients' rows in a row

    @classmethod
    def of(cls, labels: Tensor, weight: Tensor) -> _Part:
        """With the real rows looked for once: whoever asks a GPU for them waits for it."""
        return cls(labels, weight, (weight > 0).flatten().nonzero()[:, 0])

    def rows(self, values: Tensor) -> Tensor:
        """The real rows of clients' values, one client after the other."""
        return values.flatten(0, 1)[self.real]


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
        """Everyone's."""
        if name not in self._parts:
            everyone = torch.arange(self.client_data.clients)
            labels, weight = self.client_data.labels(everyone, name)
            self._parts[name] = _Part.of(self._in_unit(labels, everyone), weight)
        return self._parts[name]

    def _in_unit(self, values: Tensor, ids: Tensor) -> Tensor:
        """Numbers of clients in the label's own unit."""
        return values if self.targets is None else self.targets.of(ids).unscaled(values)

    def _asked(self, outputs: Tensor, part: str, ids: Tensor | None = None) -> tuple[Tensor, _Part]:
        """Outputs in the label's unit, and what they are judged by, of some clients or of all."""
        found, everyone = self._part(part), torch.arange(self.client_data.clients)
        who, rows = everyone if ids is None else ids, outputs.shape[1]
        if not torch.equal(who, everyone) or rows != found.labels.shape[1]:
            here = who.to(found.labels.device)
            found = _Part.of(found.labels[here][:, :rows], found.weight[here][:, :rows])
        return self._in_unit(outputs.to(found.labels.device), who), found

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
        said, known = self._asked(outputs, part, ids)
        if not len(known.real):
            return {}, [None] * len(said)
        rows, truth = known.rows(said), known.rows(known.labels)
        of_each = self.metric.function(said, known.labels, known.weight)
        of_all = self.metric.function(rows, truth, torch.ones_like(rows[:, 0]))
        loss = self._losses(said, known.labels, known.weight)
        values = [value.reshape(-1).double() for value in (of_each, of_all, loss)]
        *numbers, all_rows, loss_of_all = torch.cat(values).tolist()  # asked for once
        found = over_clients(numbers, all_rows, self.metric.higher_is_better)
        found["loss"] = loss_of_all
        # a diverged model's loss may be infinite, for which JSON has no word
        short = {k: round(v, 6) for k, v in found.items() if math.isfinite(v)}
        return short, [round(v, 6) if math.isfinite(v) else None for v in numbers]

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
        said, known = self._asked(outputs, part)
        return known.rows(said).float().cpu(), known.rows(known.labels).cpu()

    def labels(self, part: str) -> Tensor:
        """The labels of all clients' rows, one client after the other, on the host."""
        known = self._part(part)
        return known.rows(known.labels).cpu()

    def table(
        self, outputs: Tensor, part: str = "test", names: Sequence[Metric] | None = None
    ) -> dict[str, dict[str, Any]]:
        """All metrics that the task has: for each client, over clients, and over all rows."""
        rows, truth = self.rows(outputs, part)
        counts: Tensor = getattr(self.client_data, part).n
        n = dict(zip(self.client_data.names, counts.tolist(), strict=True))
        return rounded_table(table_of_metrics(rows, truth, n, self.task, names, part))

    def lost(self, outputs: Tensor, part: str = "test") -> list[str]:
        """Clients that lack the run's metric by what their models say, not by their rows."""
        return lost_clients(self.table(outputs, part, [self.metric])[self.metric.name])


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
