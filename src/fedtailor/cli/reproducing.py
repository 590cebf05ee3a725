"""The command that runs the papers' tables and figures again: reproduce."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from fedtailor.cli.reporting import watched
from fedtailor.cli.running import Watch
from fedtailor.cli.settings import whole, with_settings
from fedtailor.cli.terminal import out as console
from fedtailor.cli.terminal import points_shown, print_json, table_of
from fedtailor.core.errors import BadInput
from fedtailor.reproduce.declared.allowed_settings import ALLOWED_SETTINGS
from fedtailor.results.config import settings

OTHERS = tuple(name for name in settings() if name not in ALLOWED_SETTINGS)


def _command(values: dict[str, Any]) -> str:
    """The command as it would be typed again."""
    words = ["fedtailor", "reproduce"]
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if name == "experiments":
            words += value
        elif isinstance(value, list):
            words += [word for each in value for word in (flag, str(each))]
        elif isinstance(value, bool):
            words += [flag] if value else []
        elif value is not None:
            words += [flag, str(value)]
    return shlex.join(words)


def _show_list(names: list[str], given: dict[str, Any], papers: Path | None, as_json: bool) -> None:
    from fedtailor.reproduce.playing.catalogue import catalogue

    entries = catalogue(names, given, papers)
    if as_json:
        print_json(entries)
        return
    table = table_of("experiment", "what", "data", numbers=("runs", "rounds", "small"))
    for entry in entries:
        data = [
            f"[green]{escape(d)}[/]" if there else f"[red]{escape(d)} (not here)[/]"
            for d, there in entry["data"].items()
        ]
        table.add_row(
            escape(entry["experiment"]),
            escape(entry["title"]),
            "\n".join(data),
            str(entry["runs"]),
            str(entry["rounds"]),
            entry["small"],
        )
    console.print(table)
    console.print(
        "small: runs of --scale small. How long it takes is said after a run's second round.",
        markup=False,
    )


@with_settings(without=OTHERS)
def reproduce(
    given: dict[str, Any],
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAPER/EXPERIMENT...", help="Or PAPER for all of its experiments."),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Show what can be run, and what it needs.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAMES",
            help="Names or globs of rows and columns, with commas. May be given several times.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale", metavar="small", help="The declared smaller version; it is marked."
        ),
    ] = None,
    rounds: Annotated[
        str | None, typer.Option("--rounds", metavar="N", help="Instead of the paper's; marked.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N", help="Runs per cell; marked.")
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            "--patience",
            metavar="N",
            help="End a run when N tests in a row brought nothing on validation rows; marked.",
        ),
    ] = None,
    jobs: Annotated[
        str, typer.Option("--jobs", metavar="N", help="Runs at a time, sharing the device.")
    ] = "1",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where runs and results are kept.")
    ] = Path("reproduction"),
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out cells whose data are not here.")
    ] = False,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the models of finished runs, too.")
    ] = False,
    papers: Annotated[
        Path | None,
        typer.Option("--papers", metavar="DIR", help="Declarations of your own instead."),
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Write what is finished again; run nothing.")
    ] = False,
    watch: Watch = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON on stdout, nothing else.")
    ] = False,
) -> None:
    """Run a table or figure of the papers again, and see it beside the paper's numbers.

    The same command goes on after an interruption: finished runs are never run again.

    Example: fedtailor reproduce fedala/table2 --only "FedAvg,FedALA" --scale small
    """
    if scale not in (None, "small"):
        raise BadInput(f"--scale is '{scale}': the only other scale is small")
    if papers is not None and not papers.is_dir():
        raise BadInput(f"--papers '{papers}' is no folder: name one with TOML files")
    if list_all:
        _show_list(experiments or [], given, papers, json)
        return
    if not experiments:
        raise BadInput("no experiment: name one (fedtailor reproduce --list shows them)")
    count = {
        name: None if text is None else whole(name, text)
        for name, text in (("rounds", rounds), ("seeds", seeds), ("patience", patience))
    }
    workers = whole("jobs", jobs)

    from fedtailor.cli.reproducing_view import ReproductionView, opening_line, show_outcome
    from fedtailor.reproduce import run_request
    from fedtailor.reproduce.playing.cells import Scale
    from fedtailor.reproduce.playing.request import ReproductionRequest

    command = _command(
        {"experiments": experiments, "only": only or [], "scale": scale, **count}
        | {"jobs": None if workers == 1 else workers, "skip_missing": skip_missing}
        | {"out": None if out == Path("reproduction") else out, "papers": papers}
        | given
    )
    request = ReproductionRequest(
        Scale(scale == "small", **count), only or [], given, papers, command
    )

    @contextmanager
    def playing(plan: Any) -> Iterator[Any]:
        sys.stderr.write(opening_line(plan.tasks) + "\n")
        with ExitStack() as stack:
            for part in plan.parts:
                stack.enter_context(watched(plan.folder(part), watch, part.experiment.key))
            yield stack.enter_context(ReproductionView(plan.tasks)).tell

    outcomes, played = run_request(
        request,
        experiments,
        out,
        jobs=workers,
        run=not no_run,
        skip_missing=skip_missing,
        keep_models=keep_models,
        playing=playing,
        measuring=points_shown,
    )
    if json:
        print_json({o["experiment"]: o for o in outcomes})
    else:
        for outcome in outcomes:
            show_outcome(outcome, console)
    if played.stopped:
        sys.stderr.write("fedtailor: stopped; the same command goes on\n")
        raise typer.Exit(130)
    if played.failed:
        sys.stderr.write(f"fedtailor: {len(played.failed)} runs failed; see above\n")
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command()(reproduce)
