"""What a person is told when the input cannot be used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """The input is at fault, not the program: one line that names culprit, value and cure.

    The command line prints it without a traceback and exits with code 2.
    """


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is most likely a slip of, if any."""
    lowered = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[found[0]] if found else None


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for a name that is not among the `known` ones."""
    known = list(known)
    guess = nearest(name, known)
    hint = f"did you mean '{guess}'? " if guess else ""
    return BadInput(f"unknown {kind} '{name}': {hint}known: {', '.join(known)}")
