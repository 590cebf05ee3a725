"""A run's folder belongs to one process at a time: two would mix their rounds in one history."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from fedtailor.core.errors import BadInput

LOCK = "playing.lock"
TRIES, PAUSE = 5, 0.02  # who only asks has the lock for less than that
_ours: set[Path] = set()  # folders that this process holds


class FolderLocked(BadInput):
    """Another process plays the run in a folder."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder, self.who = folder, who
        super().__init__(f"'{folder}' is being played by {who}: wait until it ends, or stop it")


def try_lock(file: int) -> bool | None:
    """Whether an open file could be locked; the lock goes when its process ends, however that is.

    Returns:
      None on a file system without locks: nothing can be known there.
    """
    for attempt in range(TRIES):
        time.sleep(PAUSE if attempt else 0)
        try:
            if lock_descriptor(file, blocking=False):
                return True
        except OSError:
            return None
    return False


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock of a file; None where that cannot be known."""
    try:
        file = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        taken = try_lock(file)
        return None if taken is None else not taken
    finally:
        os.close(file)


def _open_locked(path: Path) -> int | None:
    """The opened and locked file; None if another process has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if try_lock(file) is False:
            os.close(file)
            return None
        try:
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # its last owner has removed it meanwhile: not the one others will see


def _owner(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(1)  # Windows keeps the first byte, which is locked, from others
            return file.read(100).decode(errors="replace").strip() or "another process"
    except OSError:
        return "another process"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which is made if need be. Within it, the same process may do so again.

    Raises:
      FolderLocked: another process holds it.
      BadInput: it cannot be written to.
    """
    place = folder.resolve()
    if place in _ours:
        yield
        return
    path = place / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _open_locked(path)
    except OSError as error:
        raise BadInput(f"folder '{folder}' cannot be written to: {error.strerror}") from None
    if file is None:
        raise FolderLocked(folder, _owner(path))
    _ours.add(place)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        os.ftruncate(file, 0)
        os.write(file, f"\nprocess {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        _ours.discard(place)
        if os.name == "nt":  # which removes no open file, not even for its owner
            os.close(file)
        with suppress(OSError):  # somebody may have removed the folder
            path.unlink()  # while it is locked: whoever waits for it looks again
            place.rmdir()  # only if nothing came of it: any file keeps it
        if os.name != "nt":
            os.close(file)


def is_held(folder: Path) -> bool | None:
    """Whether a process, this one or another, plays the run in a folder.

    Returns:
      None where that cannot be known: without locks, or if the file may not be read.
    """
    return folder.resolve() in _ours or is_locked(folder / LOCK)


def check_free(folder: Path) -> None:
    """Looks whether a folder, or one inside it, is another process's.

    Raises:
      FolderLocked: one is.
    """
    for path in folder.rglob(LOCK):
        if is_locked(path):
            raise FolderLocked(path.parent, _owner(path))
