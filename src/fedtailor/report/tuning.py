"""The page of a search: what was tried, which settings matter, and the chosen ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.options import in_short
from fedtailor.report.page import filled
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
                "cells": [in_short(trial["setting"][name]) for name in found["space"]],
                "values": [values.get(rounds) for rounds in found["rungs"]],
                "failed": trial["failed"],
                "chosen": trial["number"] == found["trial"],
                "order": (-max(values), rank, trial["number"]),
            }
        )
    return sorted(rows, key=lambda row: row["order"])


WIDE, HIGH = 260, 150  # of a panel, without its margins


def panels(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For each option where its trials lie: its value across, what came of it upwards.

    Dots are after the first look, which all trials had, and after the last.
    """
    first, last = str(found["rungs"][0]), str(found["rungs"][-1])
    seen = [
        (trial, trial["values"][rounds], rounds == last)
        for trial in found["trials"]
        for rounds in dict.fromkeys((first, last))
        if trial["values"].get(rounds) is not None
    ]
    if not seen:
        return []
    low, high = min(value for _, value, _ in seen), max(value for _, value, _ in seen)
    shown = []
    for name in found["space"]:
        place, ticks = _across([trial["setting"][name] for trial in found["trials"]])
        dots = [
            {
                "x": place(tried),
                "y": HIGH * (1 - (value - low) / ((high - low) or 1)),
                "whole": whole,
                "chosen": whole and trial["number"] == found["trial"],
                "title": f"trial {trial['number']}, {in_short(tried)}: {value:.4f}",
            }
            for trial, value, whole in seen
            for tried in [trial["setting"][name]]
        ]
        shown.append({"name": name, "dots": dots, "ticks": ticks, "low": low, "high": high})
    return shown


def _across(values: list[Any]) -> tuple[Callable[[Any], float], list[tuple[float, str]]]:
    """Where each value lies, and the ends of the axis; words lie side by side."""
    if any(isinstance(value, (bool, str)) or value is None for value in values):
        words = sorted({str(value) for value in values})
        at = {word: WIDE * (i + 0.5) / len(words) for i, word in enumerate(words)}
        return lambda value: at[str(value)], [(at[word], word) for word in words]
    # a range of more than two decades is looked at by its logarithm
    by_log = min(values) > 0 and max(values) / min(values) > 100
    scale = math.log if by_log else float
    low, high = scale(min(values)), scale(max(values))
    ends = [(0.0, in_short(min(values))), (float(WIDE), in_short(max(values)))]
    return lambda value: WIDE * (scale(value) - low) / ((high - low) or 1), ends


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
    metric = METRICS[summary["metric"]]
    up = metric.higher_is_better
    methods = [
        {
            "name": name,
            "found": found,
            "rows": trial_rows(found, up),
            "lines": chosen_lines(found),
            "panels": panels(found),
            "most": max([one["share"] for one in found["importance"]], default=0.0) or 1.0,
        }
        for name, found in summary["methods"].items()
    ]
    return filled(
        __package__,
        "tuning.html.j2",
        s=summary,
        data=Path(str(summary["settings"]["data"])).name,
        metric=metric.name,
        direction="" if up else " (less is better)",
        target=TARGETS[summary["rules"]["target"]],
        search=SEARCHES[summary["rules"]["search"]],
        methods=methods,
        known=KNOWN,
        size=(WIDE, HIGH),
    )


def write_tuning_page(summary: dict[str, Any], path: Path) -> Path:
    """Writes the page of a search and returns where it lies."""
    write_atomically(path, tuning_page(summary))
    return path
