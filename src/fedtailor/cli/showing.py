"""How results look in a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedtailor.cli.time_left import TimeLeft

# a pipe has no width of its own: lines there are not broken at 80 columns
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False)

SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def in_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit, size in SIZES:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def per_cent(value: float | None) -> str:
    """An accuracy for people."""
    return "–" if value is None else f"{100 * value:.2f}"


class _Aloud(logging.Handler):
    """What the library has to say in passing, as lines above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if err.is_terminal:
            err.print(record.getMessage(), markup=False, style="yellow")
        else:
            sys.stderr.write(f"fedtailor: {record.getMessage()}\n")


@contextmanager
def library_aloud() -> Iterator[None]:
    """Within, what the library has to say is shown."""
    log, handler = logging.getLogger("fedtailor"), _Aloud()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)


class Live:
    """Progress on stderr: a live bar in a terminal, elsewhere a line now and then."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=err,
        )
        self._spoken = 0.0
        self._time = TimeLeft()

    def __enter__(self) -> Live:
        if err.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if err.is_terminal:
            self._bar.stop()

    def watch(self, name: str, runs_after: int = 0) -> Callable[[dict[str, Any], int], None]:
        """What is to be called with each line of a run's history.

        Args:
          name: of the run, as shown.
          runs_after: how many more of as many rounds are to be played when it is finished.
        """
        task: Any = None

        def tell(line: dict[str, Any], rounds: int) -> None:
            nonlocal task
            note = f"accuracy {per_cent(line['pre'].get('mean'))} %" if "pre" in line else ""
            if "epsilon" in line:
                from fedtailor.core.steps.privacy import epsilon_in_words  # late: it needs torch

                note += f" ε {epsilon_in_words(line['epsilon']['max'])}"
            self._time.played(name, line["round"])
            left = self._time.words(rounds * (1 + runs_after) - line["round"])
            if err.is_terminal:
                if task is None:
                    task = self._bar.add_task(name, total=rounds, note=note, left=left)
                self._bar.update(task, completed=line["round"], left=left)
                if note:
                    self._bar.update(task, note=note)
            elif line["round"] == rounds or time.monotonic() - self._spoken > 10:
                self._spoken = time.monotonic()
                far = f"round {line['round']}/{rounds} {note}".rstrip()
                sys.stderr.write(f"{name}: {far}{', ' if left else ''}{left}\n")
            if "skipped" in line:
                those = ", ".join(line["skipped"])
                err.print(f"{name}: left out (diverged): {those}", markup=False, style="yellow")

        return tell


def result_table(result: dict[str, Any]) -> Table:
    """One run's accuracy at its evaluation points."""
    table = Table(box=box.SIMPLE_HEAD, title=escape(f"{result['method']} on {result['data']}"))
    for column in ("accuracy %", "mean", "weighted", "std", "bottom 5 %", "top 5 %", "worst"):
        table.add_column(column, justify="left" if column == "accuracy %" else "right")
    keys = ("mean", "weighted", "std", "bottom5", "top5", "worst")
    tune = result["points"]["final"].get("finetune_epochs")
    rows = [
        ("pre (before training)", result["points"]["pre"]),
        ("post (after training)", result["points"]["post"]),
        (f"final (fine-tuned {tune} epochs)" if tune else "final", result["score"]),
    ]
    if result["best"]:
        rows.append((f"best round {result['best_round']} (by validation)", result["best"]))
    for name, row in rows:
        table.add_row(name, *(per_cent(row.get(k)) for k in keys))
    return table


def comparison_table(summary: dict[str, Any]) -> Table:
    """All methods of a comparison, best mean first."""
    several = len(summary["seeds"]) > 1
    over = f"mean ± std over {len(summary['seeds'])} seeds, " if several else ""
    caption = f"accuracy in %, {over}last round; std is over clients"
    table = Table(box=box.SIMPLE_HEAD, caption=caption)
    table.add_column("method")
    for column in (
        "mean",
        "std",
        "bottom 5 %",
        "top 5 %",
        "better off",
        "up",
        "down",
        "s",
    ):
        table.add_column(column, justify="right")
    rows = sorted(summary["table"].items(), key=lambda kv: -kv[1]["score"]["mean"]["mean"])
    for method, row in rows:
        shown = []
        for key in ("mean", "std", "bottom5", "top5"):
            cell = row["score"][key]
            text = per_cent(cell["mean"])
            shown.append(f"{text} ± {per_cent(cell['std'])}" if several and key != "std" else text)
        better = "–" if method == "local" else f"{row['better_off']} / {len(row['gain'])}"
        table.add_row(
            escape(method),
            *shown,
            better,
            in_bytes(row["bytes"]["up"]),
            in_bytes(row["bytes"]["down"]),
            f"{row['seconds']:.1f}",
        )
    return table
