"""The page of a search: what was tried, which settings matter, and the chosen ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtailor.core.inputs.files import write_atomically
from fedtailor.report.page import asset
from fedtailor.results.config import as_toml
from fedtailor.results.metrics.named import METRICS

TARGETS = {
    "mean": "the mean over clients",
    "bottom5": "the mean of the worst twentieth of clients",
    "worst": "the worst client",
}
SEARCHES = {
    "random": "at random",
    "grid": "on a grid",
    "bayes": "by a tree-structured Parzen estimator (Optuna)",
}
KNOWN = 0.05  # the largest p with which an option is said to matter


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def trial_rows(found: dict[str, Any], higher_is_better: bool) -> list[dict[str, Any]]:
    """All that was tried, those that came furthest first, the best of them first."""
    rows = []
    for trial in found["trials"]:
        values = {int(rounds): value for rounds, value in trial["values"].items()}
        last = values[max(values)]
        rank = (-last if higher_is_better else last) if last is not None else float("inf")
        rows.append(
            {
                "number": trial["number"],
                "cells": [_shown(trial["setting"][name]) for name in found["space"]],
                "values": [values.get(rounds) for rounds in found["rungs"]],
                "failed": trial["failed"],
                "chosen": trial["number"] == found["trial"],
                "order": (-max(values), rank, trial["number"]),
            }
        )
    return sorted(rows, key=lambda row: row["order"])


def chosen_lines(found: dict[str, Any]) -> list[str]:
    """The chosen settings as a configuration has them."""
    config = found["config"]
    lines = [f"{name} = {as_toml(value)}" for name, value in config["settings"].items()]
    if config["options"]:
        options = [f"{name} = {as_toml(value)}" for name, value in config["options"].items()]
        lines += ["", "[options]", *options]
    return lines


def tuning_page(summary: dict[str, Any]) -> str:
    """The page as HTML that needs nothing else.

    Args:
      summary: what `summary.json` of a search has.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    metric = METRICS[summary["metric"]]
    up = metric.higher_is_better
    methods = [
        {
            "name": name,
            "found": found,
            "rows": trial_rows(found, up),
            "lines": chosen_lines(found),
            "most": max([one["share"] for one in found["importance"]], default=0.0) or 1.0,
        }
        for name, found in summary["methods"].items()
    ]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(asset(__package__, "tuning.html.j2")).render(
        s=summary,
        data=Path(str(summary["settings"]["data"])).name,
        metric=metric.name,
        direction="" if up else " (less is better)",
        target=TARGETS[summary["rules"]["target"]],
        search=SEARCHES[summary["rules"]["search"]],
        methods=methods,
        known=KNOWN,
        style=Markup(asset(__package__, "page.css")),
    )


def write_tuning_page(summary: dict[str, Any], path: Path) -> Path:
    """Writes the page of a search and returns where it lies."""
    write_atomically(path, tuning_page(summary))
    return path
