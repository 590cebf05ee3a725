"""Ctrl-C between rounds, so that nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_heard: list[Callable[[], bool]] = []  # the main thread's flags


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag that is read between rounds; the second one is real.

    Only the main thread hears of it. Runs in other threads read the flag that it has raised.
    """
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: any(heard() for heard in _heard)
        return
    before = signal.signal(signal.SIGINT, note)
    heard = lambda: pressed
    _heard.append(heard)
    try:
        yield heard
    finally:
        _heard.remove(heard)
        signal.signal(signal.SIGINT, before)
