"""What the command line shows of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedtailor.cli.terminal import out, print_json, table_of
from fedtailor.results.metrics.named import METRICS
from fedtailor.runs.tuning.play import chosen_file, in_words


def tuning_table(summary: dict[str, Any]) -> Table:
    """What was chosen for each method."""
    metric, rules = METRICS[summary["metric"]], summary["rules"]
    direction = "" if metric.higher_is_better else ", less is better"
    whom = {"mean": "mean over clients", "bottom5": "worst twentieth", "worst": "worst client"}
    caption = f"{metric.name} on validation rows{direction}: {whom[rules['target']]}"
    table = table_of("method", numbers=("tried", "failed", "value"), caption=caption)
    table.add_column("chosen")
    for name, found in summary["methods"].items():
        counts = (str(found["tried"]), str(found["failed"]), f"{found['value']:.4f}")
        table.add_row(escape(name), *counts, escape(in_words(found["chosen"])))
    return table


def show_tuning(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """A search's summary, for people or as JSON."""
    if as_json:
        print_json(summary)
        return
    out.print(tuning_table(summary))
    for name, found in summary["methods"].items():
        told = [f"{one['name']} (p {one['p']:.3f})" for one in found["importance"][:3]]
        if told:
            out.print(f"• {name}: what matters, most first: {', '.join(told)}", markup=False)
    if summary["private"]:
        out.print(
            "• every trial used the clients' rows: the ε of a run does not count the search",
            markup=False,
        )
    for name in summary["methods"]:
        where = chosen_file(folder, name)
        out.print(f"• fedtailor run --config {where}", markup=False, soft_wrap=True)
    out.print(f"\nResults: {folder}/report.html  (and summary.json)", markup=False, soft_wrap=True)
