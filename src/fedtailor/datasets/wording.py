"""How values, files and reasons appear inside a one-line error message."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

from fedtailor.core.errors import BadInput


def one_line(value: object, limit: int = 80) -> str:
    """The value on one line: a file's own words must not break the message.

    Long values are cut, but never a path: its end is what a person needs.
    """
    flat = " ".join(str(value).split())
    flat = "".join(c if c.isprintable() else "?" for c in flat)
    return flat if len(flat) <= limit or isinstance(value, PurePath) else flat[: limit - 3] + "..."


def quoted(value: object, limit: int = 80) -> str:
    """The value on one line, in quotes."""
    return f"'{one_line(value, limit)}'"


def reason(error: BaseException) -> str:
    """Why something failed, on one line."""
    return one_line(error) or type(error).__name__


def listed(values: Iterable[object], limit: int = 12) -> str:
    """Values with commas between them, the tail counted when there are many."""
    names = [one_line(v, 40) for v in values]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "none"


def optional(module: str, purpose: str, extra: str = "hub") -> Any:
    """A module of an extra, imported only now that it is needed."""
    package = module.split(".")[0]
    missing = BadInput(f"{purpose} needs the package '{package}': pip install 'fedtailor[{extra}]'")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise missing from error
    # Any folder of that name in the working directory imports as an empty package.
    if found.__spec__ is not None and found.__spec__.origin is None:
        raise missing
    return found
