"""Commands that show a run while it goes on: watch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer


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
    app.command()(watch)
