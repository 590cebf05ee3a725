"""Files that are put in their place wholly or not at all, whatever moment a process dies at."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PART = ".part"  # how the names of half-written files end


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place in the end, or goes where that fails.

    Its name is its own: of two processes that write the same file each puts a whole one there.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        yield part
        part.replace(path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)  # which whoever reads of it knows
        with suppress(OSError):  # what went wrong is to be told, not this
            part.unlink()
        raise


def remove_parts(folder: Path) -> None:
    """Removes what a process that was killed had half written into a run's folder.

    Only for whoever holds the folder, and before the run has a result: others write there later.
    """
    for part in folder.rglob(f"*{PART}"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Puts a text (or bytes) at `path`, wholly or not at all.

    Args:
      path: of the file.
      content: of the file.
      durable: it is there, and not the old one, even if the power fails as soon as this returns.
    """
    with replacing(path) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    if durable and os.name != "nt":  # which has no way to ask for it
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Puts a value at `path` as JSON, wholly or not at all."""
    write_atomically(path, json.dumps(value, indent=1) + "\n")


def sync(path: Path) -> None:
    """Sees that a file is on the disk before anything is written that relies on it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sha256_of(path: Path) -> str:
    """Tells whether a file is what it was."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
