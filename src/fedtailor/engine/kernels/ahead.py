"""Does things in copies of this process, which leave what they make on disk.

Triton makes a kernel in a second or two, mostly in Python, where threads wait for each other. What
a process has made lies in Triton's folder, where the others find it.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

WAIT = 60.0  # seconds; what has not been made by then is made when it is needed


def make_ahead(
    calls: Sequence[Callable[[], Any]],
    begin: Callable[[], None],
    meanwhile: Callable[[], None],
    processes: int = 0,
    wait: float = WAIT,
) -> int:
    """Does calls in copies of this process, which have no GPU; returns how many did all of theirs.

    Whatever goes wrong there is left to whoever needs what they should have made.

    Args:
      calls: what is done; no result comes back.
      begin: what each copy does first.
      meanwhile: what this process does, once they have begun.
      processes: at most so many; 0: one for each processor.
      wait: seconds until those that have not ended are ended.
    """
    room = processes or processors()
    if room < 2 or len(calls) < 2 or not hasattr(os, "fork"):
        return 0  # threads do as well
    workers = min(room, len(calls))
    with warnings.catch_warnings():
        # of other threads: none of what they hold is used, and who waits for ever is ended
        warnings.simplefilter("ignore", DeprecationWarning)
        started = {_started([begin, *calls[i::workers]]) for i in range(workers)}
    until = time.monotonic() + wait
    try:
        meanwhile()
    finally:
        well = _ended(started, until)
    return well


def processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _started(calls: Sequence[Callable[[], Any]]) -> int:
    """A copy of this process that does these calls; it has its modules, and no GPU."""
    child = os.fork()
    if child:
        return child
    failed = 1
    try:
        gc.disable()  # it must not give back what lies on the GPU
        for call in calls:
            call()
        failed = 0
    finally:
        os._exit(failed)  # without what is done at the end of a process: that is the first one's


def _ended(left: set[int], until: float) -> int:
    """Waits for processes, at most until then; how many of them ended well."""
    well = 0
    while left:
        for child in list(left):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                left.discard(child)
                well += os.waitstatus_to_exitcode(status) == 0
        if left and time.monotonic() > until:
            for child in left:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return well
        time.sleep(0.005)
    return well
