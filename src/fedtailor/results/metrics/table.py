"""All metrics of all clients, from the outputs that a run has kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.core.errors import BadInput
from fedtailor.core.form import TaskKind
from fedtailor.core.inputs.their_code import line_of
from fedtailor.results.metrics.named import Metric, metric_named, metrics_of
from fedtailor.results.metrics.over_clients import over_clients
from fedtailor.results.metrics.real_rows import BLOCK

DIVERGED = "its model's outputs are not finite numbers"  # why a metric cannot be had
NO_NUMBER = "gives no finite number here"


def table_of_metrics(
    outputs: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    n: Mapping[str, int],
    task: TaskKind,
    names: Sequence[str | Metric] | None = None,
    part: str = "test",
) -> dict[str, dict[str, Any]]:
    """Metrics of every client, over clients, and over all rows.

    Args:
      outputs: [rows, K], all clients' rows one after the other.
      labels: [rows], or [rows, 2] for survival, in the same order.
      n: how many of the rows each client has, in the same order.
      task: what was learnt.
      names: of metrics, or metrics of one's own; all that the task can have if None.
      part: of the data, for the reasons' wording.

    Returns:
      For each metric its summary (see `over_clients`), `per_client` (None where undefined) and
      `undefined`, the reason for each client without a value.

    Example:
      >>> outputs, labels = torch.tensor([[0.0, 1], [1, 0], [0, 1]]), torch.tensor([1, 0, 1])
      >>> found = table_of_metrics(outputs, labels, {"north": 2, "south": 1}, "classification")
      >>> found["roc-auc"]["per_client"], found["roc-auc"]["undefined"]
      ({'north': 1.0, 'south': None}, {'south': 'only one class in its one test row'})
    """
    outputs, labels = torch.as_tensor(outputs), torch.as_tensor(labels)
    _check(outputs, labels, n, task)
    classes = outputs.shape[1] if task == "classification" else 0
    if names is None:
        names = metrics_of(task, classes)
    metrics = [m if isinstance(m, Metric) else metric_named(m, task, classes) for m in names]
    sizes = list(n.values())
    said, truth = torch.split(outputs, sizes), torch.split(labels, sizes)
    values = {metric.name: np.full(len(n), math.nan) for metric in metrics}
    for some in _batches(sizes, outputs.shape[1]):
        rows = pad_sequence([said[c] for c in some], batch_first=True)
        held = pad_sequence([truth[c] for c in some], batch_first=True)
        weight = pad_sequence([torch.ones(len(said[c])) for c in some], batch_first=True)
        for metric in metrics:
            found = metric.function(rows, held, weight.to(rows.device))
            values[metric.name][some] = found.cpu()
    everything = torch.ones(len(labels), device=outputs.device)
    table = {}
    for metric in metrics:
        # an error beyond all bounds is no number either, and JSON has no word for it
        each = np.where(np.isfinite(values[metric.name]), values[metric.name], math.nan)
        weighted = float(metric.function(outputs, labels, everything))
        if math.isinf(weighted):
            weighted = math.nan
        table[metric.name] = over_clients(each, weighted, metric.higher_is_better) | {
            "per_client": {
                c: None if math.isnan(v) else float(v) for c, v in zip(n, each, strict=True)
            },
            "undefined": {
                c: _why(metric, said[at], truth[at], part)
                for at, c in enumerate(n)
                if math.isnan(each[at])
            },
        }
    return table


def diverged_clients(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Whose outputs were not all finite numbers, as a table of metrics says it.

    Of them right answers are counted, the rows without any as wrong ones; nothing else is known.

    Example:
      >>> outputs, labels = torch.tensor([[0.0, 1], [math.nan, 0]]), torch.tensor([1, 1])
      >>> found = table_of_metrics(outputs, labels, {"north": 1, "south": 1}, "classification")
      >>> diverged_clients(found), found["accuracy"]["per_client"]["south"]
      (['south'], 0.0)
    """
    reasons = (of.get("undefined", {}) for of in metrics.values())
    return list(dict.fromkeys(c for of in reasons for c, why in of.items() if why == DIVERGED))


def lost_clients(table: Mapping[str, Any]) -> list[str]:
    """Who lacks one metric by what its model says, and not by its rows.

    Example:
      >>> lost_clients({"undefined": {"north": DIVERGED, "south": "only one class"}})
      ['north']
    """
    reasons = table.get("undefined", {}).items()
    return [c for c, why in reasons if why == DIVERGED or why.endswith(NO_NUMBER)]


def table_of_own(
    metric: Callable[[Tensor, Tensor], Any],
    outputs: Tensor,
    labels: Tensor,
    n: Mapping[str, int],
) -> dict[str, Any]:
    """A metric of one's own of every client: (outputs, labels) -> number.

    What it cannot be had of (it raises: one class only, say) is None, with the reason; the mean is
    over the clients that have it.

    Example:
      >>> right = lambda outputs, labels: (outputs.argmax(-1) == labels).float().mean()
      >>> table_of_own(right, torch.eye(2), torch.tensor([0, 0]), {"north": 2})["mean"]
      0.5
    """
    sizes = list(n.values())
    found: dict[str, Any] = {"per_client": {}, "undefined": {}}
    lines: dict[str, str] = {}
    parts = (torch.split(rows, sizes) for rows in (outputs, labels))
    for client, said, truth in zip(n, *parts, strict=True):
        value, why = math.nan, ""
        try:
            # copies: a function that writes into them would change what the next one is given
            given = metric(said.clone(), truth.clone())
        except Exception as error:  # a stranger's function may raise anything
            why = " ".join(f"{type(error).__name__}: {error}".split())
            lines[client] = line_of(error)
        else:
            value, why = _number(given)
        found["per_client"][client] = None if why else value
        if why:
            found["undefined"][client] = why
    there = [value for value in found["per_client"].values() if value is not None]
    if not there:  # it is the metric that is at fault, not a client's rows
        found["undefined"] |= {
            c: f"{found['undefined'][c]} ({at})" for c, at in lines.items() if at
        }
    return found | {"mean": float(np.mean(there)) if there else None}


def _number(given: Any) -> tuple[float, str]:
    """What a metric of one's own gave, as a number; why it is none."""
    shape = tuple(getattr(given, "shape", ()))
    if isinstance(given, (str, bytes)) or math.prod(shape) != 1:
        told = f"{type(given).__name__} of shape {shape}" if shape else repr(given)[:40]
        return math.nan, f"it gives {told}: return one number"
    try:
        value = float(given)
    except (TypeError, ValueError):
        return math.nan, f"it gives {repr(given)[:40]}: return one number"
    return value, "" if math.isfinite(value) else f"it gives {value}"


def _why(metric: Metric, said: Tensor, truth: Tensor, part: str) -> str:
    """Why one client has no value."""
    reason = metric.why_undefined(truth, torch.ones(len(truth), device=truth.device), part)
    if reason is None and not said.isfinite().all():
        return DIVERGED
    return reason or f"{metric.name} {NO_NUMBER}"


def _check(outputs: Tensor, labels: Tensor, n: Mapping[str, int], task: TaskKind) -> None:
    rows = sum(n.values())
    if any(count < 0 for count in n.values()):
        raise BadInput(f"a client with fewer than no rows: {min(n.values())}")
    if outputs.ndim != 2 or len(outputs) != rows:
        raise BadInput(
            f"the outputs have the shape {list(outputs.shape)}, but the clients have {rows} rows: "
            f"[{rows}, outputs of the model] is needed"
        )
    needed = [rows, 2] if task == "survival" else [rows]
    if list(labels.shape) != needed:
        raise BadInput(f"the labels have the shape {list(labels.shape)}: {needed} is needed")
    if task == "classification":
        classes = outputs.shape[1]
        if labels.is_floating_point() or ((labels < 0) | (labels >= classes)).any():
            raise BadInput(f"some labels are not class numbers from 0 to {classes - 1}")
        return
    if outputs.shape[1] != 1:
        raise BadInput(f"{outputs.shape[1]} outputs per row: {task} needs one")
    if not labels.isfinite().all():
        raise BadInput("some labels are not finite numbers")
    if task == "survival" and not ((labels[:, 1] == 0) | (labels[:, 1] == 1)).all():
        raise BadInput("some events are neither 0 nor 1")


def _batches(n: Sequence[int], width: int) -> Iterator[list[int]]:
    """Clients of like size together, so that a padded batch is at most a block, or one client."""
    order = np.argsort(n, kind="stable").tolist()
    while order:
        some = [order.pop()]
        while order and (len(some) + 1) * n[some[0]] * width <= BLOCK:
            some.append(order.pop())
        yield some
