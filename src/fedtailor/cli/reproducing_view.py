"""How a reproduction looks in a terminal: while it runs, and what it came to."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table

from fedtailor.cli.showing import err, per_cent
from fedtailor.reproduce.play import Task
from fedtailor.reproduce.queue import News
from fedtailor.reproduce.writing import SIGNS, by_place, number, shown, signed, verdict

Outcome = dict[str, Any]
COLOURS = {"above": "cyan", "below": "red", "within": "green", "": ""}


class View:
    """Runs done, what each job is at, and how long it will take; on stderr.

    Args:
      tasks: all runs, finished or not.
    """

    def __init__(self, tasks: list[Task]) -> None:
        self._left = {t.key: t.config.rounds for t in tasks if not t.finished}
        self._all, self._done = len(tasks), len(tasks) - len(self._left)
        self._at: dict[str, int] = {}
        self._spoken = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            Remaining(),
            console=err,
        )
        self._whole: TaskID | None = None
        self._jobs: dict[int, TaskID] = {}

    def __enter__(self) -> View:
        if err.is_terminal:
            self._whole = self._bar.add_task(
                "all runs", total=sum(self._left.values()) or 1, note=self._count()
            )
            self._bar.start()
        elif self._done:
            sys.stderr.write(f"{self._done} of {self._all} runs are finished already\n")
        return self

    def __exit__(self, *_: Any) -> None:
        if err.is_terminal:
            self._bar.stop()

    def _count(self) -> str:
        return f"{self._done}/{self._all} runs"

    def tell(self, news: News) -> None:
        """What a worker has to say."""
        task = news.task
        if news.kind == "round" and news.line:
            self._at[task.key] = news.line["round"]
        elif news.kind in ("done", "failed"):
            self._at[task.key] = task.config.rounds
            self._done += news.kind == "done"
        if news.kind in ("failed", "again"):
            err.print(f"{task.label}: {news.reason}", markup=False, style="yellow")
        if err.is_terminal:
            self._show(news)
        else:
            self._say(news)

    def _note(self, news: News) -> str:
        line = news.line or {}
        note = f"round {line.get('round', 0)}/{news.task.config.rounds}"
        return note + (f" {per_cent(line['pre']['mean'])} %" if line.get("pre") else "")

    def _show(self, news: News) -> None:
        task = news.task
        if news.job not in self._jobs:
            self._jobs[news.job] = self._bar.add_task(task.label, total=task.config.rounds, note="")
        mine = self._jobs[news.job]
        if news.kind == "begins":
            self._bar.reset(mine, total=task.config.rounds, description=task.label, note="")
        elif news.kind == "round":
            self._bar.update(mine, completed=self._at[task.key], note=self._note(news))
        assert self._whole is not None
        self._bar.update(self._whole, completed=sum(self._at.values()), note=self._count())

    def _say(self, news: News) -> None:
        now = time.monotonic()
        if news.kind == "done":
            sys.stderr.write(f"[{self._count()}] {news.task.label}: done\n")
        elif news.kind == "round" and now - self._spoken > 10:
            self._spoken = now
            sys.stderr.write(f"{news.task.label}: {self._note(news)}\n")


def _ours(cell: dict[str, Any]) -> str:
    if cell["status"] != "done":
        return f"[yellow]{escape(cell['status'])}[/]"
    kind = verdict(cell)
    text = f"{shown(cell)} {SIGNS[kind]}".strip()
    return f"[{COLOURS[kind]}]{text}[/]" if kind else text


def _wide(outcome: Outcome) -> Table:
    cells = by_place(outcome)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("ours\npaper", no_wrap=True)
    for column in outcome["columns"]:
        table.add_column(escape(column), justify="right", no_wrap=True)
    for row in outcome["rows"]:
        shown_cells = []
        for column in outcome["columns"]:
            cell = cells.get((row, column))
            paper = cell["paper"]["text"] if cell and cell["paper"] else "–"
            shown_cells.append(f"{_ours(cell)}\n[dim]{paper}[/]" if cell else "")
        table.add_row(escape(row), *shown_cells)
    return table


def _narrow(outcome: Outcome, column: str) -> Table:
    cells = by_place(outcome)
    table = Table(box=box.SIMPLE_HEAD, title=escape(column), title_justify="left")
    table.add_column("")
    for name in ("ours", "paper", "difference"):
        table.add_column(name, justify="right")
    for row in outcome["rows"]:
        cell = cells.get((row, column))
        if cell:
            paper = cell["paper"]["text"] if cell["paper"] else "–"
            table.add_row(escape(row), _ours(cell), paper, signed(cell["difference"]))
    return table


def outcome_table(outcome: Outcome, console: Console) -> RenderableType:
    """The table of an experiment: all columns side by side where they fit, else one at a time."""
    wide = _wide(outcome)
    unbound = console.options.update(width=10_000)
    needed = Measurement.get(console, unbound, wide).maximum
    if len(outcome["columns"]) > 1 and needed <= console.width:
        return wide
    return Group(*(_narrow(outcome, column) for column in outcome["columns"]))


def show_outcome(outcome: Outcome, console: Console) -> None:
    """All that is printed of an experiment."""
    title = f"{outcome['experiment']}: {outcome['title']} ({outcome['meaning']})"
    console.print(f"\n{title}", markup=False, style="bold")
    if outcome["scale"]:
        console.print(f"Not as in the paper: {outcome['scale']}.", markup=False, style="yellow")
    console.print(outcome_table(outcome, console))
    if any(cell["outside"] is not None for cell in outcome["cells"]):
        console.print("▲ ▼ more than two of the paper's standard deviations apart; ≈ within")
    for column, found in outcome["tau"].items():
        if found["tau"] is not None:
            text = f"order of rows, {column}: Kendall's τ {number(found['tau'])}"
            console.print(f"{text} ({found['rows']} rows)", markup=False)
    for cell in outcome["cells"]:
        if cell["reason"]:
            place = f"{cell['row']}, {cell['column']}"
            console.print(f"{place}: {cell['status']}: {cell['reason']}", markup=False)
    if outcome["undrawn"]:
        console.print(f"no picture: {outcome['undrawn']}", markup=False)
    console.print(f"Results: {outcome['folder']}/index.html", markup=False)
