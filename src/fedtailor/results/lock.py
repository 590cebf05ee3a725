"""A run's folder belongs to one process at a time: two would mix their rounds in one history."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtailor.core.errors import BadInput

LOCK = "playing.lock"
TRIES, PAUSE = 5, 0.02  # who only asks has the lock for less than that
_ours: set[Path] = set()  # folders that this process holds


class Occupied(BadInput):
    """Another process plays the run in a folder."""

    def __init__(self, folder: Path, who: str) -> None:
        self.folder, self.who = folder, who
        super().__init__(f"'{folder}' is being played by {who}: wait until it ends, or stop it")


def _lock(file: int) -> bool:
    """Whether a file could be locked; the lock goes when its process ends, however that is."""
    if sys.platform == "win32":  # has no such locks
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nothing can be known there
        return True
    return True


def _try(path: Path) -> int | None:
    """The locked file; None if another process has it."""
    refused = 0
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(file):
            os.close(file)
            refused += 1
            if refused == TRIES:
                return None
            time.sleep(PAUSE)
            continue
        try:
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:
            pass
        os.close(file)  # its last owner has removed it meanwhile: not the one others will see


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:100] or "another process"
    except OSError:
        return "another process"


@contextmanager
def occupy(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which is made if need be. Within it, the same process may do so again.

    Raises:
      Occupied: another process holds it.
      BadInput: it cannot be written to.
    """
    place = folder.resolve()
    if place in _ours:
        yield
        return
    path = place / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _try(path)
    except OSError as error:
        raise BadInput(f"folder '{folder}' cannot be written to: {error.strerror}") from None
    if file is None:
        raise Occupied(folder, _owner(path))
    _ours.add(place)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        _ours.discard(place)
        with suppress(OSError):  # somebody may have removed the folder
            path.unlink()  # while it is locked: whoever waits for it looks again
            place.rmdir()  # only if nothing came of it: any file keeps it
        os.close(file)


def is_held(folder: Path) -> bool | None:
    """Whether a process, this one or another, plays the run in a folder.

    Returns:
      None where that cannot be known: without locks, or if the file may not be read.
    """
    if folder.resolve() in _ours:
        return True
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    try:
        if sys.platform == "win32":
            return None
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may ask as well
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


def check_free(folder: Path) -> None:
    """Looks whether a folder, or one inside it, is another process's.

    Raises:
      Occupied: one is.
    """
    for path in folder.rglob(LOCK):
        file = _try(path)
        if file is None:
            raise Occupied(path.parent, _owner(path))
        os.close(file)
