"""Commands that measure losses around models of finished runs: landscape, trajectory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedtailor.cli.terminal import library_aloud, out, points_shown, table_of
from fedtailor.core.errors import BadInput

Device = Annotated[
    str, typer.Option("--device", metavar="TEXT", help="cpu, cuda or cuda:N; auto: a GPU if any.")
]


def _sharpness_table(found: dict[Path, dict[str, Any]]) -> Table:
    """How sharp the surfaces are: one row per run, client and model."""
    from fedtailor.results.measurements import ALL, OWN, WORDS, models_of

    table = table_of(
        *("run", "client", "model"),
        numbers=(
            f"{column},\n{WORDS[rows]}"
            for rows in (OWN, ALL)
            for column in ("loss", "highest rise", "mean rise")
        ),
        caption="rise: within the radius, less the loss itself",
    )
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
