"""Commands that measure losses around models of finished runs: landscape, trajectory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.core.errors import BadInput

Device = Annotated[
    str, typer.Option("--device", metavar="TEXT", help="cpu, cuda or cuda:N; auto: a GPU if any.")
]
SPEAK_EVERY = 10.0  # seconds, where there is no terminal


@contextmanager
def points_shown(unit: str = "points") -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr in a terminal, elsewhere a line now and then, with the time left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from fedtailor.cli.showing import err
    from fedtailor.cli.time_left import about

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=28))
    count = TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}")
    bar = Progress(*columns, count, TimeRemainingColumn(), console=err)
    task: Any = None
    begun = spoken = time.monotonic()

    def tell(what: str, done: int, every: int) -> None:
        nonlocal spoken, task
        if err.is_terminal:
            if task is None:
                bar.start()  # not before there is something to show
                task = bar.add_task(what, total=every)
            bar.update(task, completed=done)
            task = None if done == every else task  # the next run has a bar of its own
        elif time.monotonic() - spoken > SPEAK_EVERY:
            spoken = time.monotonic()
            left = about((spoken - begun) / max(done, 1) * (every - done))
            sys.stderr.write(f"{what}: {done}/{every} {unit}, {left} left\n")

    try:
        yield tell
    finally:
        if err.is_terminal:
            bar.stop()


def _sharpness_table(found: dict[Path, dict[str, Any]]) -> Any:
    """How sharp the surfaces are: one row per run, client and model."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from fedtailor.results.measurements import ALL, OWN, WORDS, models_of

    table = Table(box=box.SIMPLE_HEAD, caption="rise: within the radius, less the loss itself")
    for column in ("run", "client", "model"):
        table.add_column(column)
    for rows in (OWN, ALL):
        for column in ("loss", "highest rise", "mean rise"):
            table.add_column(f"{column},\n{WORDS[rows]}", justify="right")
    for folder, one in found.items():
        for client, told in one["clients"].items():
            for which in models_of(told):
                sharp = [told[which][rows]["sharpness"] for rows in (OWN, ALL)]
                values = [s[k] for s in sharp for k in ("centre", "highest", "mean")]
                cells = ["–" if value is None else f"{value:.3f}" for value in values]
                table.add_row(escape(folder.name), escape(client), which, *cells)
    return table


def landscape(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of finished runs or comparisons."),
    ] = None,
    clients: Annotated[
        str,
        typer.Option(
            "--clients",
            metavar="NAME[,NAME...]",
            help="Whose models (default: the worst-off, the middle and the best-off client).",
        ),
    ] = "",
    points: Annotated[
        int, typer.Option("--points", metavar="N", help="Along each direction; odd.")
    ] = 21,
    reach: Annotated[
        float,
        typer.Option("--range", metavar="X", help="How far, in lengths of the model's filters."),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the random directions.")] = 0,
    device: Device = "auto",
) -> None:
    """Measure the loss around personal and global models: how sharp it is, and what lies between.

    Writes landscape.json into each run's folder and makes its report again. Several runs on one
    page: fedtailor report DIR... A picture: fedtailor figure landscape DIR...

    Example: fedtailor landscape runs/plgu-lf-digits-seed0 --clients client-03
    """
    if not folders:
        raise BadInput("no folders: name at least one finished run or comparison")
    from fedtailor.analysis.landscape import write_landscapes
    from fedtailor.api import report
    from fedtailor.cli.showing import out

    with points_shown() as tell:
        found = write_landscapes(
            folders,
            clients=[name.strip() for name in clients.split(",") if name.strip()],
            points=points,
            reach=reach,
            seed=seed,
            device=device,
            tell=tell,
        )
    out.print(_sharpness_table(found))
    for folder in folders:
        out.print(f"In: {report(folder)}", markup=False)


def _window(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        raise BadInput(f"--rounds is '{text}': give FIRST:LAST, e.g. 10:40")
    return int(first), int(last)


def trajectory(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs that were made with --keep-path."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Whose way (default: the first one kept)."),
    ] = None,
    points: Annotated[
        int, typer.Option("--points", metavar="N", help="Of the plane, along each axis.")
    ] = 31,
    rounds: Annotated[
        str, typer.Option("--rounds", metavar="FIRST:LAST", help="Only these (default: all).")
    ] = "",
    device: Device = "auto",
) -> None:
    """Show the way of a client's model over its own loss, in one or several runs on one plane.

    Writes trajectory.json into each run's folder and makes its report again. A picture:
    fedtailor figure trajectory DIR...

    Example: fedtailor trajectory runs/fedavg-digits-seed0 runs/fedala-digits-seed0
    """
    if not folders:
        raise BadInput("no folders: name at least one run that was made with --keep-path")
    window = _window(rounds) if rounds else (1, 10**9)
    from fedtailor.analysis.trajectory import write_trajectory
    from fedtailor.api import report
    from fedtailor.cli.showing import library_aloud, out

    with library_aloud(), points_shown() as tell:
        found = write_trajectory(
            folders, client, points=points, window=window, device=device, tell=tell
        )
    share = 100 * sum(s or 0 for s in found["shares"])
    out.print(f"{found['client']}: the plane holds {share:.0f} % of the variance", markup=False)
    for folder in folders:
        out.print(f"In: {report(folder)}", markup=False)


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (landscape, trajectory):
        app.command()(command)
