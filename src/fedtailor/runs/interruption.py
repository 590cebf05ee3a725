"""Ctrl-C between rounds, so that nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Interrupted(Exception):
    """Somebody pressed Ctrl-C; everything up to `round` is in the folder."""

    def __init__(self, folder: Path | None, round: int) -> None:
        self.folder, self.round = folder, round
        super().__init__(f"interrupted after round {round}")


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag that is read between rounds; the second one is real."""
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
