"""Files that were fetched once: written whole or not at all, and checked by sha256 later."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import replacing, sha256_of, sync, write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.datasets.wording import one_line, quoted, reason


def note_of(path: Path) -> Path:
    """The JSON file beside a fetched file that holds its sha256."""
    return path.with_name(path.name + ".json")


def verify(path: Path) -> None:
    """Raise `BadInput` if the file is not what was fetched; one without a note is the user's."""
    note = note_of(path)
    if not note.exists():
        return
    try:
        stated = parse_json(note.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{quoted(note)} cannot be read ({reason(error)}): delete it and {quoted(path)} "
            "to fetch them again"
        ) from error
    actual = sha256_of(path)
    if actual != stated:
        raise BadInput(
            f"{quoted(path)} has sha256 {actual[:12]}..., not {one_line(stated, 15)} as when it "
            "was fetched: delete the file to fetch it again"
        )


def store(path: Path, write: Callable[[BinaryIO], object], origin: str) -> None:
    """Write the file and its note, each under a passing name first.

    The note comes first: a crash in between then leaves a note without a file, which is harmless,
    and never a file that is used unchecked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with part.open("wb") as file:
                write(file)
            sync(part)
            facts = {"file": path.name, "sha256": sha256_of(part), "origin": origin}
            write_atomically(note_of(path), json.dumps(facts, indent=2) + "\n")
    except OSError as error:
        raise BadInput(
            f"{quoted(path)} cannot be written ({reason(error)}): choose another --data-dir"
        ) from error
