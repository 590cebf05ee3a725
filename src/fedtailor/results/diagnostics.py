"""What is behind the metrics, from the outputs that runs kept: for the page and for figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.form import TaskKind
from fedtailor.results.collect import CollectedRuns, Contender
from fedtailor.results.metrics.curves import (
    calibration_points,
    kaplan_meier,
    risk_thirds,
    roc_points,
    rows_at_risk,
)
from fedtailor.results.mixes import class_names
from fedtailor.results.numbers import task_of
from fedtailor.results.outputs import read_outputs
from fedtailor.results.pack import Array, evenly

log = logging.getLogger(__name__)

CLIENT_LINES = 40  # of all methods together; with more, only the clients' common line is drawn
POINTS = 120  # of a curve: more no screen shows
SCATTERED = 1500  # rows of a method
CLASSES = 12  # curves of the commonest; more would be too many for a page
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOMENTS = 7  # at which rows at risk are counted
GROUPS = ("low risk", "middle", "high risk")
INSTEAD = {
    "classification": "roc or calibration",
    "regression": "residuals",
    "survival": "survival",
}


class PooledRows(NamedTuple):
    """What a method's final models said of test rows, all clients' together."""

    outputs: Array  # rows x outputs
    labels: Array  # class, number, or time and event
    client: Array  # number of the client whose row it is
    lost: int = 0  # rows left out: of these the models said nothing finite

    def each_client(self) -> Iterator[tuple[int, PooledRows]]:
        """The rows of each client that has any."""
        for number in np.unique(self.client).tolist():
            own = self.client == number
            yield number, PooledRows(self.outputs[own], self.labels[own], self.client[own])


def tested_rows(contender: Contender, *, runs: int | None = None) -> PooledRows | None:
    """A method's test rows with what was said of them; None where a run kept no outputs.

    Rows of which a model says nothing finite are left out: no curve could show them.

    Args:
      contender: the method.
      runs: how many seeds or repeats; None takes all.
    """
    kept = [read_outputs(run.folder) for run in contender.runs[:runs]]
    parts, lost = [], 0
    for found in kept:
        if found is None or found.last is None:
            return None
        said, labels = found.last.test.double().numpy(), found.test.labels.numpy()
        client = np.repeat(np.arange(len(found.test.n)), found.test.n.numpy())
        real = np.isfinite(said).all(axis=1)
        parts.append((said[real], labels[real], client[real]))
        lost += int((~real).sum())
    outputs, labels, client = (np.concatenate(each) for each in zip(*parts, strict=True))
    return PooledRows(outputs, labels, client, lost)


def check_task(collection: CollectedRuns, figure: str, task: TaskKind) -> None:
    """Refuses runs that learnt something else than a figure is about."""
    learnt = task_of(collection)
    if learnt != task:
        raise BadInput(
            f"figure {figure} is for {task}, but these runs learnt {learnt}: "
            f"try {INSTEAD[learnt]} instead"
        )


def rows_of_all(collection: CollectedRuns, *, runs: int | None = None) -> list[PooledRows]:
    """The test rows of all methods; a warning says how many could not be shown.

    Raises:
      BadInput: a run kept no outputs.
    """
    out = []
    for contender in collection.contenders:
        found = tested_rows(contender, runs=runs)
        if found is None:
            raise BadInput(
                f"a run of {contender.label} has no outputs on test rows (it keeps them at its "
                "end; runs of versions before 0.3 kept none): let it finish, or run it again"
            )
        if not len(found.labels) and found.lost:
            raise BadInput(
                f"the final models of {contender.label} diverged: their outputs on all "
                f"{found.lost:,} test rows are not finite numbers, so there is nothing to draw"
            )
        if not len(found.labels):
            raise BadInput("no client of these runs has test rows: there is nothing to draw")
        if found.lost:
            rows = found.lost + len(found.labels)
            log.warning(
                "%d of the %d test rows of %s are not in the figure: what its models say of them "
                "is no finite number",
                found.lost,
                rows,
                contender.label,
            )
        out.append(found)
    return out


def few_clients(found: list[PooledRows]) -> bool:
    """Whether there is room for a thin line per client."""
    return sum(len(np.unique(rows.client)) for rows in found) <= CLIENT_LINES


def shown_classes(collection: CollectedRuns, found: PooledRows) -> list[tuple[int, str]]:
    """The classes that have a curve of their own: of two the second, of many the commonest."""
    names = class_names(collection.contenders[0].first.folder)
    count = found.outputs.shape[1]
    names = names if len(names) == count else [str(number) for number in range(count)]
    if count == 2:
        return [(1, names[1])]
    common = np.argsort(-np.bincount(found.labels, minlength=count), kind="stable")
    return [(number, names[number]) for number in sorted(common[:CLASSES].tolist())]


# --- for the page ---


def _numbers(points: Array, most: int = POINTS) -> list[list[float]]:
    """Points for JSON: some of many, with as many digits as can be seen."""
    kept = points[evenly(len(points), most)]
    return [[float(f"{v:.4g}") for v in point] for point in kept]


def _lines(rows: PooledRows, clients: bool, points: Callable[[PooledRows], Array]) -> Any:
    """A curve over all rows, and a curve per client that has one."""
    each = [(c, points(own)) for c, own in rows.each_client()] if clients else []
    return {
        "all": _numbers(points(rows)),
        "clients": [{"client": c, "points": _numbers(p, POINTS // 3)} for c, p in each if len(p)],
    }


def _roc(rows: PooledRows, number: int) -> Array:
    return roc_points(rows.outputs, rows.labels, number)


def calibration_of(rows: PooledRows) -> Array:
    """Said and true probabilities: of two classes the second's, of many the answer's."""
    two = rows.outputs.shape[1] == 2
    return calibration_points(rows.outputs, rows.labels, 1 if two else None)


def _area(points: Array) -> float | None:
    """Below a curve; None without one."""
    if not len(points):
        return None
    x, y = points.T
    return round(float(((x[1:] - x[:-1]) * (y[1:] + y[:-1])).sum() / 2), 6)


def _of_classes(collection: CollectedRuns, found: dict[int, PooledRows]) -> dict[str, Any]:
    classes = shown_classes(collection, next(iter(found.values())))
    few = few_clients(list(found.values()))
    two = next(iter(found.values())).outputs.shape[1] == 2
    roc = {
        method: [
            _lines(rows, few, partial(_roc, number=k)) | {"area": _area(_roc(rows, k))}
            for k, _ in classes
        ]
        for method, rows in found.items()
    }
    calibration = {method: _numbers(calibration_of(rows)) for method, rows in found.items()}
    named = [name for _, name in classes]
    return {"classes": named, "two": two, "roc": roc, "calibration": calibration}


def _of_numbers(found: dict[int, PooledRows]) -> dict[str, Any]:
    out = {}
    for method, rows in found.items():
        pairs = np.column_stack([rows.labels, rows.outputs[:, 0]])
        out[method] = {
            "pairs": _numbers(pairs, SCATTERED),
            "spread": [
                {"client": c, "at": _numbers(residual_quantiles(own)[None])[0]}
                for c, own in rows.each_client()
            ],
        }
    return {"residuals": out, "quantiles": QUANTILES}


def residual_quantiles(rows: PooledRows) -> Array:
    """How predictions lie about the truth (predicted less true): some quantiles."""
    return np.asarray(np.quantile(rows.outputs[:, 0] - rows.labels, QUANTILES))


class RiskGroup(NamedTuple):
    """A third of the rows by predicted risk."""

    name: str  # low risk, middle or high risk
    steps: Array  # share without the event by time, from `kaplan_meier`
    at_risk: Array  # rows still seen at the figure's moments


def risk_groups(rows: PooledRows) -> tuple[Array, list[RiskGroup]]:
    """Moments at which rows at risk are counted, and the thirds of the rows by predicted risk.

    The thirds are taken within each client: models of different clients need not mean the same by
    a number.
    """
    third = np.zeros(len(rows.labels), dtype=np.int64)
    for number, own in rows.each_client():
        third[rows.client == number] = risk_thirds(own.outputs[:, 0])
    time, event = rows.labels[:, 0], rows.labels[:, 1]
    moments = _round_moments(float(time.max()))
    groups = [
        RiskGroup(
            name,
            kaplan_meier(time[third == k], event[third == k]),
            rows_at_risk(time[third == k], moments),
        )
        for k, name in enumerate(GROUPS)
        if (third == k).any()
    ]
    return moments, groups


def _round_moments(end: float) -> Array:
    """Round numbers from 0 to the end, at most `MOMENTS` of them."""
    if end <= 0:
        return np.zeros(1)
    power = 10.0 ** np.floor(np.log10(end / (MOMENTS - 1)))
    step = next(k * power for k in (1, 2, 2.5, 5, 10) if end / (k * power) <= MOMENTS - 1)
    return np.arange(0, end + step / 1e6, step)


def _of_times(found: dict[int, PooledRows]) -> dict[str, Any]:
    out = {}
    for method, rows in found.items():
        moments, groups = risk_groups(rows)
        out[method] = {
            "moments": moments.tolist(),
            "groups": [
                {"name": g.name, "steps": _numbers(g.steps), "at_risk": g.at_risk.tolist()}
                for g in groups
            ],
        }
    return {"survival": out}


def diagnostics_of(collection: CollectedRuns) -> dict[str, Any] | None:
    """What the page draws of test rows, by method's number; None where no run kept outputs."""
    task = task_of(collection)
    # a repeat tests rows of another cut: counted together, a patient would be at risk twice
    runs = 1 if task == "survival" else None
    found = {
        number: rows
        for number, contender in enumerate(collection.contenders)
        if (rows := tested_rows(contender, runs=runs)) is not None and len(rows.labels)
    }
    if not found:
        return None
    if task == "classification":
        return _of_classes(collection, found)
    return _of_numbers(found) if task == "regression" else _of_times(found)
