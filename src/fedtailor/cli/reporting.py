"""Commands that show finished runs: report."""

from __future__ import annotations

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


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command()(report)
