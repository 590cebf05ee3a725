"""Folders and file names of runs: nothing of anybody else's is ever overwritten."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtailor.core.errors import BadInput
from fedtailor.results.lock import check_free

COMPARISON = "comparison.json"  # what was planned; it marks a comparison's folder


def run_folder(folder: Path, method: str, seed: int) -> Path:
    """Where one run of a comparison lies."""
    return folder / "runs" / f"{method.replace(':', '.')}-seed{seed}"


def file_name(client: str) -> str:
    """A client's name as a file name of its own: what could lead elsewhere is replaced, and a name
    that had to be changed gets a mark, so that no two clients share a file."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", client).lstrip(".")[:80]
    if safe and safe == client:
        return safe
    return f"{safe or 'client'}-{hashlib.sha256(client.encode()).hexdigest()[:10]}"


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """Makes a folder if need be; what cannot be written there is bad input, no error of ours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise BadInput(
            f"folder '{folder}' cannot be written to ({error.strerror}): choose another --out"
        ) from None


def _is_ours(mark: Path) -> bool:
    """Whether a file was written by FedTailor: a stranger's config.toml is not ours to remove."""
    try:
        return "FedTailor" in mark.read_text(encoding="utf-8", errors="replace")[:2000]
    except OSError:
        return False


def open_folder(
    path: Path,
    *,
    overwrite: bool = False,
    marks: tuple[str, ...] = ("config.toml",),
    what: str = "run",
) -> Path:
    """A folder that is there, can be written to, and holds nothing that would be lost.

    Args:
      path: of the folder.
      overwrite: remove what an earlier run left there.
      marks: files by which an earlier run is known; anything else is never removed.
      what: is kept there; only a run can be resumed.
    """
    try:
        if path.is_symlink() and not path.exists():
            raise BadInput(
                f"'{path}' is a link to '{path.readlink()}', which is not there: make that folder, "
                "or choose another --out"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            known = path.is_dir() and any(_is_ours(path / mark) for mark in marks)
            if not known:
                raise BadInput(f"'{path}' is not empty and no earlier {what}: choose another --out")
            if not overwrite:
                resume = f"resume it (fedtailor resume {path}), " if what == "run" else ""
                raise BadInput(
                    f"'{path}' holds an earlier {what}: {resume}choose another --out, or say "
                    "--overwrite"
                )
            if path.is_symlink():  # what is removed lies where it was named, nowhere else
                raise BadInput(
                    f"'{path}' is a link, and --overwrite removes no folder through a link: say "
                    f"--out {path.resolve()}"
                )
            check_free(path)
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(f"folder '{path}' cannot be written to: {error.strerror or error}") from None
    return path


def free_folder(stem: str) -> Path:
    """A new folder under ./runs."""
    number = 1
    while (path := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return path
