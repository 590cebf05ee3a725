"""Metrics of finished runs, from what their models said of each row: nothing is run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtailor.core.errors import BadInput, unknown
from fedtailor.results.collect import FinishedRun, collect
from fedtailor.results.metrics.named import refuse_our_names
from fedtailor.results.metrics.over_clients import mean_of_known
from fedtailor.results.metrics.table import table_of_metrics, table_of_own
from fedtailor.results.mixes import class_names
from fedtailor.results.outputs import PARTS, RunOutputs, read_outputs

OwnMetric = Callable[[Tensor, Tensor], Any]  # (outputs, labels) of one client -> number
PART_WORDS = {"test": "test", "val": "validation"}


def kept_metrics(
    folder: Path,
    names: Sequence[str] = (),
    *,
    best: bool = False,
    part: str = "test",
    own: Mapping[str, OwnMetric] | None = None,
) -> dict[str, Any]:
    """Metrics of a finished run, or of all methods of a comparison.

    Args:
      folder: of the run or comparison.
      names: of metrics; all that the task can have if none is named.
      best: what was said in the best round by validation rows; else by the final models.
      part: `test` or `val`.
      own: metrics of one's own by name: (outputs, labels) of a client's rows -> number.

    Returns:
      `task`, `classes` (their names), `metric` (that the runs went by), `part`, `models` (`last`
      or `best`), `unfinished` (runs that are left out), and `methods`: for each its number of
      `runs`, their `rounds`, and `metrics`: for each its summary over clients, `per_client` and
      `undefined`, all of them means over the runs that have a value.

    Raises:
      BadInput: the folder holds no finished run, or one that kept no outputs; a metric does not
        fit.
    """
    if part not in PARTS:
        raise unknown("part", part, PARTS)
    mine = dict(own or {})
    refuse_our_names(mine)
    found = collect([folder])
    first = found.contenders[0].first.result
    chosen = list(dict.fromkeys(names)) or None
    methods = {}
    for contender in found.contenders:
        tables = [_table(run, chosen, mine, best, part) for run in contender.runs]
        methods[contender.label] = {
            "runs": len(tables),
            "rounds": [number for number, _ in tables],
            "metrics": mean_tables([table for _, table in tables]),
        }
    return {
        "task": first["task"],
        "classes": class_names(found.contenders[0].first.folder),
        "metric": first["metric"],
        "part": part,
        "models": "best" if best else "last",
        "unfinished": found.unfinished,
        "methods": methods,
    }


def _table(
    run: FinishedRun,
    names: list[str] | None,
    own: Mapping[str, OwnMetric],
    best: bool,
    part: str,
) -> tuple[int, dict[str, Any]]:
    """(round, metrics by name) of one run."""
    kept = _outputs(run)
    said = kept.best if best else kept.last
    if said is None:
        why = "no round was judged on validation rows" if best else "the last round was not judged"
        raise BadInput(f"'{run.folder}' kept no outputs of that round: {why}; leave --best out")
    rows = kept.test if part == "test" else kept.val
    outputs = said.test if part == "test" else said.val
    clients = list(run.result["per_client"])
    if len(clients) != len(rows.n):
        raise BadInput(f"'{run.folder}': outputs and result.json have other clients: run it again")
    n = dict(zip(clients, rows.n.tolist(), strict=True))
    task = run.result["task"]
    table = table_of_metrics(outputs, rows.labels, n, task, names, PART_WORDS[part])
    for name, metric in own.items():
        table[name] = table_of_own(metric, outputs, rows.labels, n)
    return said.round, table


def _outputs(run: FinishedRun) -> RunOutputs:
    kept = read_outputs(run.folder)
    if kept is None:
        version = run.result.get("version")
        raise BadInput(
            f"'{run.folder}' kept no outputs on test rows"
            + (f" (it was made by FedTailor {version}; " if version else " (")
            + "they are kept since 0.3): run it again to have its metrics"
        )
    return kept


def mean_tables(tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Metrics over runs: each number is the mean over those runs that have it.

    Example:
      >>> why = {"south": "no test rows"}
      >>> one = {"mean": 0.5, "per_client": {"north": 0.5, "south": None}, "undefined": why}
      >>> two = {"mean": 0.8, "per_client": {"north": 0.7, "south": 0.9}, "undefined": {}}
      >>> found = mean_tables([{"r2": one}, {"r2": two}])["r2"]
      >>> found["mean"], found["per_client"], found["undefined"]
      (0.65, {'north': 0.6, 'south': 0.9}, {'south': 'no test rows (in 1 of 2 runs)'})
    """
    if len(tables) == 1:
        return tables[0]
    found = {}
    for name in tables[0]:
        each = [table[name] for table in tables]
        numbers = {k for one in each for k in one if k not in ("per_client", "undefined")}
        ordered = [k for k in max(each, key=len) if k in numbers]
        per_client = {
            client: mean_of_known([one["per_client"][client] for one in each])
            for client in each[0]["per_client"]
        }
        found[name] = {k: mean_of_known([one.get(k) for one in each]) for k in ordered} | {
            "per_client": per_client,
            "undefined": _reasons([one["undefined"] for one in each], list(per_client)),
        }
    return found


def _reasons(each: Sequence[Mapping[str, str]], clients: Sequence[str]) -> dict[str, str]:
    """The first reason of each client, and in how many runs there was one."""
    found = {}
    for client in clients:
        told = [one[client] for one in each if client in one]
        if told:
            often = "" if len(told) == len(each) else f" (in {len(told)} of {len(each)} runs)"
            found[client] = told[0] + often
    return found
