"""Options that the commands for federations share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedtailor.core.errors import BadInput

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The project's folder.")]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Without TLS and node keys: for trials on one machine only."),
]
MinSites = Annotated[
    str | None,
    typer.Option("--min-sites", metavar="N", help="A round with fewer answers is played again."),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="S", help="Seconds that sites have for a round."),
]


def parse_number(
    flag: str, text: str | None, kind: type[Any], least: float, most: float | None = None
) -> Any:
    """A number from the command line; None where none was given."""
    if text is None:
        return None
    what = "a whole number" if kind is int else "a number"
    try:
        value = kind(text)
    except ValueError:
        raise BadInput(f"{flag} is '{text}': give {what}") from None
    if most is not None and not least <= value <= most:
        raise BadInput(f"{flag} is {text}: give {what} from {least} to {most}")
    if not least <= value < 1e9:
        raise BadInput(f"{flag} is {text}: give {what}, at least {least:g}")
    return value


def rules_of(min_sites: str | None, deadline: str | None) -> dict[str, Any]:
    """Entries of `[federation]` that were given on the command line."""
    found = {
        "min_sites": parse_number("--min-sites", min_sites, int, 1),
        "deadline": parse_number("--deadline", deadline, float, 1),
    }
    return {name: value for name, value in found.items() if value is not None}


def require_flower() -> None:
    """Says how to get Flower where it is missing."""
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise BadInput("Flower is not installed: pip install 'fedtailor[flower]'")
