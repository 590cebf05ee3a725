"""How results look in a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import TextColumn, TimeElapsedColumn
from rich.table import Table

from fedtailor.cli.terminal import SPEAK_EVERY, TimeLeft, WithBar, err, out, print_json, table_of
from fedtailor.core.inputs.plain_text import counted
from fedtailor.results.folder import YARDSTICKS, read_metric
from fedtailor.runs.stopwatch import phases_line

if TYPE_CHECKING:
    from fedtailor.results.metrics.named import Metric


SHOWN = ("mean", "std", "bottom5", "top5")  # of a metric, in a comparison
SHOWN_NAMES, SHOWN_REASONS = 6, 12  # clients in a line, lines

SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def in_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit, size in SIZES:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def per_cent(value: float | None) -> str:
    """A share for people."""
    return "–" if value is None else f"{100 * value:.2f}"


def metric_title(metric: Metric) -> str:
    """What stands above a column of a metric's values."""
    return f"{metric.title} %" if metric.percent else metric.title


def metric_value(metric: Metric | None, value: float | None) -> str:
    """A metric's value in such a column; "–" where there is none."""
    if value is None or (metric is not None and metric.percent):
        return per_cent(value)
    from fedtailor.results.statistics.scoring import IN_UNITS  # late: it needs torch
    from fedtailor.results.verdict import short_number

    return short_number(value) if metric is None or metric.name in IN_UNITS else f"{value:.3f}"


def score_note(name: str, value: float | None) -> str:
    """A metric with its value, in a line."""
    metric = _metric(name)
    return f"{name} {metric_value(metric, value)}{' %' * metric.percent}"


def _metric(name: str) -> Metric:
    from fedtailor.results.metrics.named import METRICS  # late: it needs torch

    return METRICS[name]


class Live(WithBar):
    """Progress on stderr: a live bar in a terminal, elsewhere a line now and then."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._spoken = 0.0
        self._time = TimeLeft()
        self._begun: list[str] = []  # runs, in the order in which they were announced
        self._rounds: dict[str, int] = {}  # of each run

    def watch(
        self, name: str, folder: Path, runs_after: int = 0
    ) -> Callable[[dict[str, Any], int], None]:
        """What is to be called with each line of a run's history.

        Args:
          name: of the run, as shown.
          folder: of the run, which says in its first round what metric it goes by.
          runs_after: how many more of as many rounds are to be played when it is finished.
        """
        task: Any = None
        self._begun.append(name)
        place = len(self._begun)

        def tell(line: dict[str, Any], rounds: int) -> None:
            nonlocal task
            note = ""
            if "pre" in line:
                note = score_note(read_metric(folder), line["pre"].get("mean"))
            if "epsilon" in line:
                from fedtailor.core.steps.privacy import epsilon_in_words  # late: it needs torch

                note += f" ε {epsilon_in_words(line['epsilon']['max'])}"
            self._time.played(name, line["round"])
            self._rounds[name] = rounds
            # of runs that are played side by side, later ones have begun, too
            begun = {run: self._time.round_of(run) for run in self._begun}
            later = sum(begun[run] > 0 for run in self._begun[place:])
            # trials of a search have different numbers of rounds
            going = sum(self._rounds[run] - number for run, number in begun.items() if number)
            left = self._time.words(going + rounds * (runs_after - later))
            if err.is_terminal:
                if task is None:
                    task = self._bar.add_task(name, total=rounds, note=note, left=left)
                self._bar.update(task, completed=line["round"], left=left)
                if note:
                    self._bar.update(task, note=note)
            elif line["round"] == rounds or time.monotonic() - self._spoken > SPEAK_EVERY:
                self._spoken = time.monotonic()
                far = f"round {line['round']}/{rounds} {note}".rstrip()
                sys.stderr.write(f"{name}: {far}{', ' if left else ''}{left}\n")
            if "skipped" in line:
                those = ", ".join(line["skipped"])
                err.print(f"{name}: left out (diverged): {those}", markup=False, style="yellow")

        return tell


def result_table(result: dict[str, Any]) -> Table:
    """One run's metric at its evaluation points."""
    metric = _metric(result["metric"])
    table = table_of(
        metric_title(metric),
        numbers=("mean", "all rows", "std", "bottom 5 %", "top 5 %", "worst"),
        title=escape(f"{result['method']} on {result['data']}"),
    )
    keys = ("mean", "weighted", "std", "bottom5", "top5", "worst")
    tune = result["points"]["final"].get("finetune_epochs")
    rows = [
        ("pre (before training)", result["points"]["pre"]),
        ("post (after training)", result["points"]["post"]),
        (f"final (fine-tuned {counted(tune, 'epoch')})" if tune else "final", result["score"]),
    ]
    if result["best"]:
        rows.append((f"best round {result['best_round']} (by validation)", result["best"]))
    for name, row in rows:
        table.add_row(name, *(metric_value(metric, row.get(k)) for k in keys))
    return table


def undefined_lines(undefined: dict[str, dict[str, str]]) -> list[str]:
    """Why some clients have no value: a line for each reason.

    Args:
      undefined: of each metric, the reason by client.

    Example:
      >>> why = "no event among its 3 test rows"
      >>> undefined_lines({"concordance": {"north": why, "south": why}})
      ['– concordance of north, south: no event among its 3 test rows']
    """
    names: dict[tuple[str, str], list[str]] = {}  # metrics by reason and client
    for metric, reasons in undefined.items():
        for client, reason in reasons.items():
            names.setdefault((reason, client), []).append(metric)
    clients: dict[tuple[str, str], list[str]] = {}  # clients by reason and metrics
    for (reason, client), metrics in names.items():
        clients.setdefault((reason, ", ".join(metrics)), []).append(client)
    found = []
    for (reason, which), who in clients.items():
        more = f" and {len(who) - SHOWN_NAMES} more" if len(who) > SHOWN_NAMES else ""
        found.append(f"– {which} of {', '.join(who[:SHOWN_NAMES])}{more}: {reason}")
    left = len(found) - SHOWN_REASONS
    return [*found[:SHOWN_REASONS], *([f"– and {left} reasons more: see --json"] * (left > 0))]


def comparison_table(summary: dict[str, Any]) -> Table:
    """All methods of a comparison, best mean first, with the yardsticks among them."""
    metric = _metric(summary["metric"])
    several = len(summary["seeds"]) > 1
    over = f"mean ± std over {len(summary['seeds'])} runs, " if several else ""
    direction = "" if metric.higher_is_better else ", less is better"
    caption = (
        f"{metric_title(metric)} over clients{direction}; {over}last round; std is over clients; "
        "better: clients that do better than alone, by chance or not; *: a yardstick"
    )
    if any(row.get("still_rising") for row in summary["table"].values()):
        caption += "; ↗: still better with every round at the end, on validation rows"
    numbers = ("mean", "std", "bottom 5 %", "top 5 %", "better", "up", "down", "s")
    table = table_of("method", numbers=numbers, caption=caption)
    for method, row in sorted(
        summary["table"].items(), key=lambda kv: _rank(kv[1], metric.higher_is_better)
    ):
        better = "–" if method == "local" else f"{row['better_off']} / {len(row['gain'])}"
        mean, *others = (
            _cell(metric, row["score"].get(k, {}), several and k != "std") for k in SHOWN
        )
        table.add_row(
            escape(f"{method} *" if method in YARDSTICKS else method),
            f"{mean} ↗" if row.get("still_rising") else mean,
            *others,
            better,
            in_bytes(row["bytes"]["up"]),
            in_bytes(row["bytes"]["down"]),
            f"{row['seconds']:.1f}",
        )
    constant = summary.get("constant", {}).get(metric.name)
    if constant is not None:
        cells = (metric_value(metric, constant.get(k)) for k in SHOWN)
        table.add_row("always the same answer *", *cells, *"–" * 4)
    return table


def sweep_table(summary: dict[str, Any]) -> Table:
    """A sweep's learning rates, with the metric over seeds."""
    metric = _metric(summary["metric"])
    seeds = len(summary["seeds"])
    direction = "" if metric.higher_is_better else ", less is better"
    over = f"mean over {seeds} seeds, 95 % for other seeds on the same rows; " if seeds > 1 else ""
    caption = f"{metric_title(metric)}, mean over clients{direction}; {over}last round"
    settings = summary["settings"]
    title = escape(f"{summary['method']} on {settings['data']}")
    numbers = ("lr", "test", "95 %", "validation", "runs")
    table = table_of(numbers=numbers, title=title, caption=caption)
    for row in summary["rates"]:
        ends = [metric_value(metric, end) for end in row["interval"] or ()]
        done = len(row["runs"]) - len(row["failed"])
        table.add_row(
            f"{row['lr']:g}",
            _cell(metric, row["score"] or {}, seeds > 1),
            " to ".join(ends) or "–",
            metric_value(metric, row["val"]),
            str(done) if not row["failed"] else f"{done} of {len(row['runs'])}",
        )
    return table


def _rank(row: dict[str, Any], higher_is_better: bool) -> float:
    mean: float | None = row["score"].get("mean", {}).get("mean")
    if mean is None:  # no client has a value
        return math.inf
    return -mean if higher_is_better else mean


def _cell(metric: Metric, found: dict[str, float], spread: bool) -> str:
    text = metric_value(metric, found.get("mean"))
    return f"{text} ± {metric_value(metric, found['std'])}" if spread and found else text


def _absent(result: dict[str, Any]) -> str:
    """Who was not there in rounds for which it was drawn, as the page says it."""
    from fedtailor.report.absent import absent_in_words

    dropped, late = (sum(result.get(kind, {}).values()) for kind in ("dropped", "stragglers"))
    told = absent_in_words(dropped, late, result.get("never_in_time", []))
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def _diverged(runs: dict[str, int]) -> str:
    """Whose final models diverged, as the page says it."""
    from fedtailor.report.absent import diverged_in_words

    return diverged_in_words(runs) if runs else ""


def show_result(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    """A run's result, for people or as JSON."""
    if as_json:
        print_json(result)
        return
    from fedtailor.results.collect import network_in_words  # it needs torch, --help does not

    out.print(result_table(result))
    metric = result["metric"]
    for line in undefined_lines({metric: result["metrics"].get(metric, {}).get("undefined", {})}):
        out.print(line, markup=False)
    if diverged := _diverged(dict.fromkeys(result.get("diverged", ()), 1)):
        out.print(f"– {diverged}", markup=False, style="yellow")
    if held_out := result.get("held_out"):
        from fedtailor.report.absent import held_out_in_words

        out.print(f"– {held_out_in_words(held_out)}", markup=False)
    if never := result.get("never_trained"):
        from fedtailor.report.absent import never_trained_in_words

        out.print(f"– {never_trained_in_words(dict.fromkeys(never, 1))}", markup=False)
    sent = result["bytes"]
    clients, rounds = counted(result["clients"], "client"), counted(result["rounds"], "round")
    work = f"{clients}, {rounds}"
    if stopped := result.get("stopped_early"):
        work = f"{clients}, stopped after {stopped} of {rounds}"
    size = network_in_words(result)
    traffic = f"{in_bytes(sent['up'])} up, {in_bytes(sent['down'])} down"
    where = (
        f"{result['device']} ({result['engine']}, {counted(result['chunk'], 'client')} at a time)"
    )
    out.print(f"{work}, {size}; {traffic}; {result['seconds']:.1f} s on {where}")
    if absent := _absent(result):
        out.print(absent, markup=False)
    if phases := phases_line(result.get("seconds_by_phase", {})):
        out.print(f"Time: {phases}")
    out.print(
        f"Results: {folder}/report.html  (models: {folder}/models, per client: "
        f"{folder}/clients.csv; every metric: fedtailor metrics {quote(str(folder))})",
        markup=False,
        soft_wrap=True,
    )


def show_sweep(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """A sweep's summary, for people or as JSON."""
    if as_json:
        print_json(summary)
        return
    out.print(sweep_table(summary))
    for row in summary["rates"]:
        for name, reason in row["failed"].items():
            out.print(f"• {name} failed: {reason}", markup=False)
        if diverged := _diverged(row.get("diverged", {})):
            out.print(f"• lr {row['lr']:g}: {diverged}", markup=False, style="yellow")
    if len(summary["rates"]) > 1 and summary["chosen"] is not None:
        out.print(f"• best on validation rows: --lr {summary['chosen']:g}", markup=False)
    out.print(
        f"\nResults: {folder}/summary.json  (each run's report: {folder}/runs/*/report.html)",
        markup=False,
        soft_wrap=True,
    )


def tuning_table(summary: dict[str, Any]) -> Table:
    """What was chosen for each method."""
    from fedtailor.runs.tuning.play import in_words  # late: it needs torch

    metric, rules = _metric(summary["metric"]), summary["rules"]
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
    from fedtailor.runs.tuning.play import chosen_file  # late: it needs torch

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


def show_summary(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """A comparison's summary, for people or as JSON."""
    if as_json:
        print_json(summary)
        return
    out.print(comparison_table(summary))
    if tuned := summary.get("tuned"):
        trials = counted(tuned["trials"], "trial")
        told = f"every method had {trials} ({tuned['search']}) on validation rows"
        out.print(f"• {told}: {folder}/tuned/split*/report.html", markup=False)
    for line in summary["verdict"]:
        out.print(f"• {line}", markup=False)
    for method, row in summary["table"].items():
        if diverged := _diverged(row.get("diverged", {})):
            out.print(f"• {method}: {diverged}", markup=False, style="yellow")
    pictures = sorted(picture.name for picture in folder.glob("*.png"))
    out.print(
        f"\nResults: {folder}/report.html  (and {', '.join(['summary.json', *pictures])}; every "
        f"metric: fedtailor metrics {quote(str(folder))})",
        markup=False,
        soft_wrap=True,
    )
