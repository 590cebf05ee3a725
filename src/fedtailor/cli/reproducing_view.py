"""How a reproduction looks in a terminal: while it runs, and what it came to."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedtailor.cli.showing import per_cent
from fedtailor.cli.terminal import SPEAK_EVERY, TimeLeft, WithBar, err, table_of
from fedtailor.reproduce.playing.play import PlannedRun
from fedtailor.reproduce.playing.queue import RunEvent
from fedtailor.reproduce.shown.writing import (
    SIGNS,
    beside_paper,
    by_place,
    ends_of_training,
    order,
    ours,
    paper_text,
    ranks_of,
    signed,
    troubles,
)

Outcome = dict[str, Any]
COLOURS = {"above": "cyan", "below": "red", "within": "green", "": ""}


def opening_line(tasks: Sequence[PlannedRun]) -> str:
    """What is said before anything is run: how many runs, and how many of them are left."""
    waiting = [task for task in tasks if not task.finished]
    diverged = sum(bool(task.diverged) for task in waiting)
    done = len(tasks) - len(waiting)
    words = [f"{len(tasks)} run{'s' * (len(tasks) != 1)}"]
    if done:
        words.append(f"{done} finished already" if waiting else "all finished already")
    if diverged:
        words.append(f"{diverged} diverged before")
    return ", ".join(words)


class ReproductionView(WithBar):
    """Runs done, what each job is at, and how long it will take; on stderr.

    Args:
      tasks: all runs, finished or not.
    """

    def __init__(self, tasks: list[PlannedRun]) -> None:
        note = TextColumn("{task.fields[note]}")
        super().__init__(note, TimeElapsedColumn(), width=24, markup=False)
        self._left = {t.key: t.config.rounds for t in tasks if not (t.finished or t.diverged)}
        self._all, self._done = len(tasks), sum(t.finished for t in tasks)
        self._at: dict[str, int] = {}
        self._elsewhere: set[str] = set()
        self._time, self._spoken = TimeLeft(), 0.0
        self._whole: TaskID | None = None
        self._jobs: dict[int, TaskID] = {}

    def __enter__(self) -> Self:
        if err.is_terminal:
            self._whole = self._bar.add_task(
                "all runs", total=sum(self._left.values()) or 1, note=self._count()
            )
        return super().__enter__()

    def _count(self) -> str:
        return f"{self._done}/{self._all} runs"

    def _to_go(self) -> str:
        """How long the rest will take."""
        words = self._time.words(sum(self._left.values()) - sum(self._at.values()))
        return f", {words}" if words else ""

    def tell(self, news: RunEvent) -> None:
        """What a worker has to say."""
        task = news.task
        if news.kind == "round" and news.line:
            self._at[task.key] = news.line["round"]
            self._time.played(task.key, news.line["round"])
        elif news.kind in ("done", "failed") and task.key in self._left:
            self._at[task.key] = task.config.rounds
            self._done += news.kind == "done"
        if news.kind in ("failed", "again"):
            err.print(f"{task.label}: {news.reason}", markup=False, style="yellow")
        if news.kind == "elsewhere" and task.key not in self._elsewhere:  # once
            self._elsewhere.add(task.key)
            err.print(f"{task.label}: {news.reason} is at it: waits for that", markup=False)
        if err.is_terminal:
            self._show(news)
        else:
            self._say(news)

    def _note(self, news: RunEvent) -> str:
        line = news.line or {}
        note = f"round {line.get('round', 0)}/{news.task.config.rounds}"
        return note + (f" {per_cent(line['pre']['mean'])} %" if line.get("pre") else "")

    def _show(self, news: RunEvent) -> None:
        task = news.task
        if news.job not in self._jobs:
            self._jobs[news.job] = self._bar.add_task(task.label, total=task.config.rounds, note="")
        mine = self._jobs[news.job]
        if news.kind == "begins":
            self._bar.reset(mine, total=task.config.rounds, description=task.label, note="")
        elif news.kind == "round":
            self._bar.update(mine, completed=self._at[task.key], note=self._note(news))
        assert self._whole is not None
        self._bar.update(
            self._whole, completed=sum(self._at.values()), note=self._count() + self._to_go()
        )

    def _say(self, news: RunEvent) -> None:
        now = time.monotonic()
        if news.kind == "done":
            sys.stderr.write(f"[{self._count()}] {news.task.label}: done{self._to_go()}\n")
        elif news.kind == "round" and now - self._spoken > SPEAK_EVERY:
            self._spoken = now
            far = f"{self._to_go()} ({self._done} of {self._all} runs)"
            sys.stderr.write(f"{news.task.label}: {self._note(news)}{far}\n")


def _ours(cell: dict[str, Any], wanted: int) -> str:
    if cell["status"] != "done":
        return f"[yellow]{escape(ours(cell, wanted))}[/]"
    kind = beside_paper(cell)
    text = f"{ours(cell, wanted)} {SIGNS[kind]}".strip()
    return f"[{COLOURS[kind]}]{text}[/]" if kind else text


def _wide(outcome: Outcome) -> Table:
    cells = by_place(outcome)
    table = table_of()
    table.add_column("ours\npaper", no_wrap=True)
    for column in outcome["columns"]:
        table.add_column(escape(column), justify="right", no_wrap=True)
    for row in outcome["rows"]:
        shown_cells = []
        for column in outcome["columns"]:
            cell = cells.get((row, column))
            both = f"{_ours(cell, outcome['seeds'])}\n[dim]{paper_text(cell)}[/]" if cell else ""
            shown_cells.append(both)
        table.add_row(escape(row), *shown_cells)
    return table


def _narrow(outcome: Outcome, column: str) -> Table:
    cells = by_place(outcome)
    numbers = ("ours", "paper", "difference")
    table = table_of("", numbers=numbers, title=escape(column), title_justify="left")
    for row in outcome["rows"]:
        cell = cells.get((row, column))
        if cell:
            mine = _ours(cell, outcome["seeds"])
            table.add_row(escape(row), mine, paper_text(cell), signed(cell["difference"]))
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
    if ends := ends_of_training(outcome):
        console.print(ends, markup=False)
    for name, found in outcome["tau"].items():
        if found["tau"] is not None:
            text = f"order of {ranks_of(outcome)}, {name}: Kendall's τ {order(outcome, name)}"
            console.print(text, markup=False)
    for text in troubles(outcome):
        console.print(text, markup=False)
    if outcome["undrawn"]:
        console.print(f"no picture: {outcome['undrawn']}", markup=False)
    console.print(f"Results: {outcome['folder']}/index.html", markup=False)
