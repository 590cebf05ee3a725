"""What stops a run: input that cannot be used, or somebody who pressed Ctrl-C."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class BadInput(ValueError):
    """The input is at fault, not the program: one line that names culprit, value and cure.

    The command line prints it without a traceback and exits with code 2.
    """


class CohortTooSmall(BadInput):
    """A method needs more clients in a round than take part: nothing is wrong with it."""


class Interrupted(Exception):
    """Somebody pressed Ctrl-C; everything up to `round` is in the folder."""

    def __init__(self, folder: Path | None, round: int) -> None:
        self.folder, self.round = folder, round
        super().__init__(f"interrupted after round {round}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a slip of, if any."""
    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[found[0]] if found else None


def unknown(kind: str, name: object, known: Iterable[str]) -> BadInput:
    """The error for a name that is not among the `known` ones; from Python it may be anything."""
    known = list(known)
    guess = nearest(str(name), known)
    hint = f"did you mean '{guess}'? " if guess else ""
    return BadInput(f"unknown {kind} '{name}': {hint}known: {', '.join(known)}")
