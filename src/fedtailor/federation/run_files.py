"""A federation's numbers in the form of a run's folder, which pages and figures are made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtailor.core import __version__
from fedtailor.core.inputs.files import write_atomically, write_json
from fedtailor.core.inputs.spreadsheet import csv_text
from fedtailor.engine import ClientData
from fedtailor.federation.protocol.lines import Line
from fedtailor.federation.protocol.plan import Setup
from fedtailor.partition.parts import PARTS
from fedtailor.report import write_report
from fedtailor.results.confusion import save_confusion
from fedtailor.results.folder import (
    CLIENTS,
    COMPARISON,
    HISTORY,
    PREPROCESSING,
    RESULT,
    SUMMARY,
    open_folder,
    run_folder,
)
from fedtailor.results.metrics.named import METRICS
from fedtailor.results.metrics.over_clients import over_clients
from fedtailor.results.outputs import RunOutputs, save_outputs
from fedtailor.results.verdict import Verdict

NOTHING_SENT = {"up": 0, "down": 0}
PAGE = "report"  # folder of a federation's page and its numbers, at the coordinator or a site


class RunNumbers(NamedTuple):
    """What is known of a method that sites played, or of what it is held against."""

    result: dict[str, Any]  # see `run_result`
    history: Sequence[Line]  # a line for each round of which something is known
    # what models said of test rows, and these rows, where they are one's own
    outputs: RunOutputs | None = None
    client_data: ClientData | None = None


def scores_over(
    values: Sequence[float | None], metric: str, losses: Sequence[float | None] = ()
) -> dict[str, float]:
    """A metric over sites, of those that have it, and their mean loss; empty without any.

    Not over all rows together, which nobody has.
    """
    known = [math.nan if value is None else value for value in values]
    found = over_clients(known, math.nan, METRICS[metric].higher_is_better)
    lost = [loss for loss in losses if loss is not None]
    mean = {"loss": sum(lost) / len(lost)} if lost else {}
    return {k: round(v, 6) for k, v in (found | mean).items()}


def at_point(
    point: str, values: Sequence[float | None], metric: str, losses: Sequence[float | None] = ()
) -> Line:
    """What a line of a run's history says of sites' models at a point, `pre` or `post`."""
    each = [None if value is None else round(value, 6) for value in values]
    return {point: scores_over(values, metric, losses), f"{point}_per_client": each}


def run_result(
    setup: Setup,
    method: str,
    per_client: Mapping[str, float | None],
    history: Sequence[Line],
    data: str,
    networks: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """What `result.json` says of a method that sites played, or of what it is held against."""
    config = setup.config
    score = scores_over(list(per_client.values()), config.metric)
    return {
        "method": method,
        "options": config.options if method == config.method else {},
        "data": data,
        "model": config.model,
        "parameters": sum(p.numel() for p in setup.initial.values()),
        "clients": len(per_client),
        "networks": dict(networks),
        "partition": "each site's own rows",
        "task": setup.encoder.form.task,
        "metric": config.metric,
        "participation": config.participation,
        "score": score,
        "accuracy": score if config.metric == "accuracy" else {},
        "per_client": dict(per_client),
        "rounds": setup.plan.rounds,
        "bytes": {way: sum(line["bytes"][way] for line in history) for way in NOTHING_SENT},
        "seconds": None,  # what nobody has measured
        "seed": config.seed,
        "version": __version__,
    }


def _write_run(
    folder: Path, run: RunNumbers, rows: Mapping[str, Mapping[str, int]], setup: Setup
) -> None:
    folder.mkdir(parents=True)
    write_atomically(folder / HISTORY, "".join(json.dumps(line) + "\n" for line in run.history))
    table = [
        [name, *(rows.get(name, {}).get(part, "") for part in PARTS), 0]
        for name in run.result["per_client"]
    ]
    write_atomically(folder / CLIENTS, csv_text(["client", *PARTS, "held_out"], table))
    write_json(folder / PREPROCESSING, setup.plan.encoder)
    if run.outputs is not None and run.client_data is not None:
        save_outputs(folder, run.outputs)
        save_confusion(folder, run.client_data, setup.encoder.form, run.outputs)
    write_json(folder / RESULT, run.result)


def write_comparison(
    folder: Path,
    setup: Setup,
    runs: Sequence[RunNumbers],
    rows: Mapping[str, Mapping[str, int]],
    verdict: Verdict,
    notes: Sequence[str],
) -> Path:
    """Writes what pages and figures need of a federation, and the page itself; returns the page.

    Args:
      folder: for all of it; one of an earlier page is replaced.
      setup: what the federation agreed on.
      runs: the method's, training alone, ...
      rows: of each site for training, validation and testing, as far as it is known.
      verdict: what they mean.
      notes: what a reader must know beside.
    """
    open_folder(folder, overwrite=True, marks=(COMPARISON,), what="report")
    methods, seed = [run.result["method"] for run in runs], setup.config.seed
    planned = {"methods": methods, "played": methods, "seeds": 1, "settings": {"seed": seed}}
    write_json(folder / COMPARISON, {"made_by": "FedTailor", "version": __version__} | planned)
    for run in runs:
        place = run_folder(folder, run.result["method"], seed)
        _write_run(place, run, rows, setup)
    summary = {
        "version": __version__,
        "methods": methods,
        "seeds": [seed],
        "metric": setup.config.metric,
        "decision": verdict.decision,
        "others": verdict.others,
        "clients": verdict.clients,
        "verdict": verdict.sentences,
        "notes": list(notes),
    }
    write_json(folder / SUMMARY, summary)
    return write_report([folder])
