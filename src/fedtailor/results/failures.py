"""Why a run could not go on, kept in its folder for whoever looks at it later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, Interrupted
from fedtailor.core.version import __version__
from fedtailor.engine import Diverged
from fedtailor.engine.memory import is_out_of_memory
from fedtailor.results.storage import write_atomically

FAILED = "failed.json"


def reason_of(error: Exception) -> str:
    """Why a run failed, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, BadInput | Diverged):
        return text
    if is_out_of_memory(error):
        return f"out of memory: use fewer --jobs or a larger machine ({text[:150]})"
    return f"{type(error).__name__}: {text[:300]}"


@contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Writes down what ends a run in a folder; an earlier note goes, since it is tried again."""
    note = folder / FAILED
    note.unlink(missing_ok=True)
    try:
        yield
    except Interrupted:
        raise  # it can go on
    except Exception as error:
        kept = {"reason": reason_of(error), "kind": type(error).__name__, "version": __version__}
        with suppress(OSError):  # a full disk may be what ended it
            write_atomically(note, json.dumps(kept, indent=1) + "\n")
        raise


def read_note(path: Path) -> dict[str, Any]:
    """What a run said of itself in a file; empty if it has not said it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def failure(folder: Path) -> dict[str, Any]:
    """`reason`, `kind` (of error) and `version` of a run that could not go on; empty for others."""
    found = read_note(folder / FAILED)
    whole = isinstance(found.get("reason"), str)
    return found if whole and not (folder / "result.json").exists() else {}
