"""Commands that show runs: report, figure for papers, and watch while they go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedtailor.core.errors import BadInput


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of finished runs or comparisons."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to write the page (default: report.html in DIR)."
        ),
    ] = None,
) -> None:
    """Make one page to read from finished runs: it needs no network and opens from disk.

    Several folders are compared on one page, if their clients are the same.

    Example: fedtailor report runs/fedavg-digits-seed0 runs/fedala-digits-seed0 --out both.html
    """
    if not folders:
        raise BadInput("no folders: name at least one finished run or comparison")
    if out and out.suffix.lower() not in ("", ".html", ".htm") and not out.is_dir():
        raise BadInput(f"'{out}' ends with {out.suffix}: name a file that ends with .html")
    from fedtailor.api import report as write_report

    typer.echo(f"Written: {write_report(folders, out)}")


def _numbers(text: str) -> tuple[int, ...]:
    """Rounds, as in "1,10,30"."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if wrong:
        raise BadInput(f"--round is '{text}': give rounds from 1 with commas, e.g. 1,10,30")
    return tuple(int(part) for part in parts)


def _show_list() -> None:
    from fedtailor.figures import FIGURES

    for name, figure in FIGURES.items():
        typer.echo(f"{name:<14} {figure.shows}\n{'':<14} needs {figure.needs}")


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What to draw (--list tells).")
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders of runs or comparisons, finished or not."),
    ] = None,
    known: Annotated[
        bool, typer.Option("--list", help="Say what each figure shows and what it needs.")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="pdf|svg|png", help="Kind of file (default: pdf)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Where to put it (default: figures/NAME.pdf in DIR)."
        ),
    ] = None,
    width: Annotated[
        float,
        typer.Option(
            "--width", metavar="INCHES", help="3.5 is a column, 7 a page (default: what suits)."
        ),
    ] = 0.0,
    rounds: Annotated[
        str,
        typer.Option(
            "--round", metavar="N[,N...]", help="Rounds, where single ones are shown (the last)."
        ),
    ] = "",
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Only this one; may be said several times."),
    ] = None,
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="A title (captions usually say it).")
    ] = "",
) -> None:
    """Draw a figure for a paper from runs: small, fonts embedded, readable in grey.

    Example: fedtailor figure forest runs/compare-digits --format pdf
    """
    if known:
        _show_list()
        return
    if name is None:
        raise BadInput("no figure: name one (fedtailor figure --list tells what there is)")
    if not folders:
        raise BadInput(f"no folders: say fedtailor figure {name} DIR, with a run's or comparison's")
    from fedtailor.figures import FigureOptions, draw_figure

    options = FigureOptions(width, _numbers(rounds), tuple(methods or ()))
    made = draw_figure(name, folders, out=out, kind=kind, options=options, title=title)
    typer.echo(f"Written: {made}")


def _told(url: str, what: str = "it") -> None:
    sys.stderr.write(f"Watch {what} at {url}\n")
    sys.stderr.flush()


@contextmanager
def watched(folder: Path, asked: bool, what: str = "it") -> Iterator[None]:
    """Serves the page of a run, comparison or experiment while it goes on, if asked for."""
    if not asked:
        yield
        return
    from fedtailor.watch import Watching, open_browser

    with Watching(folder, 0) as watching:
        _told(watching.url, what)
        open_browser(watching.url)
        yield
        watching.linger()


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A run's or comparison's folder, or an experiment's of a paper."
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Port on this machine; 0: any free one.")
    ] = 8640,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Only say where it is, open no browser.")
    ] = False,
) -> None:
    """Show a run's report in the browser while it goes on; only this machine can see it.

    Examples: fedtailor watch runs/fedala-digits-seed0, fedtailor watch reproduction/fedala/table2
    """
    from fedtailor.watch import Watching, open_browser

    with Watching(folder, port) as watching:
        _told(f"{watching.url} (Ctrl-C ends it)")
        if not no_open:
            open_browser(watching.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.stderr.write("\nNo longer watching.\n")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (report, figure, watch):
        app.command()(command)
