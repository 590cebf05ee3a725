"""A step as a flat list of operators that work in place, ready to be replayed or compiled.

Tracing runs the step once, mapped or not, and writes down what reaches the device. What is left has
no Python in it that could cost time or differ from call to call, and threads can share it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from fedtailor.engine.loops.in_place import Update, write_in_place
from fedtailor.engine.loops.recording import record
from fedtailor.engine.loops.shorten import shorten_graph
from fedtailor.engine.loops.torch_internals import compile_graph

Found = TypeVar("Found")
COMPILE_LIMIT = 600.0  # seconds

log = logging.getLogger("fedtailor")


@dataclass
class CompileLimit:
    """How many seconds a run may still compile; all its steps share them."""

    left: float = COMPILE_LIMIT


@dataclass
class Program:
    """A traced step. Called with all its tensors, it changes the carried ones in place."""

    body: Callable[..., Any]  # does everything but the updates, and returns their factors
    updates: tuple[Update, ...]  # what is left to do
    seconds: float  # what tracing and compiling took

    def __call__(self, *tensors: Tensor) -> None:
        """One step."""
        self.replay(tensors, [()])

    def replay(self, fixed: Sequence[Tensor], moments: Iterable[Sequence[Tensor]]) -> None:
        """Plays several steps.

        `fixed` are the tensors that stay in place, `moments` what each step has of its own.
        """
        body = self.body
        updates = [
            (getattr(fixed[u.leaf], u.name), 2 * i, u.scale) for i, u in enumerate(self.updates)
        ]
        for moment in moments:
            factors = body(*fixed, *moment)
            for update, i, scale in updates:
                update(factors[i], factors[i + 1], alpha=scale)


def trace(
    step: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Tensor],
    carried: int,
    *,
    compiled: bool = False,
    limit: CompileLimit | None = None,
) -> Program:
    """A program for a step, which gives new values of the first `carried` of its tensors.

    The step is run once, on copies of `tensors`; if `compiled`, TorchInductor makes code of it,
    as far as `limit` allows.
    """
    began = time.perf_counter()
    copies = [t.clone() for t in tensors]  # no two the same: tracing knows tensors by identity
    recording = record(step, copies)
    shorten_graph(recording.graph)
    updates = write_in_place(recording.graph, carried)
    recording.graph.eliminate_dead_code()
    graph = recording.written()
    body: Callable[..., Any] = graph
    limit = limit or CompileLimit()
    if compiled and limit.left > 0:
        before = time.perf_counter()
        try:
            body = within(limit.left, lambda: _compiled(graph, copies))
        except Exception as error:  # a compiler may fail in any way; what was traced still runs
            reason = str(error).strip().splitlines()[:1]
            log.warning("a step could not be compiled and is replayed as it is: %s", *reason or "?")
        limit.left -= time.perf_counter() - before
    return Program(body, updates, time.perf_counter() - began)


def _compiled(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Callable[..., Any]:
    if tensors[0].is_cuda:  # what a new thread does not know
        torch.cuda.set_device(tensors[0].device)
    with torch.no_grad():
        body = compile_graph(graph, list(tensors))
        body(*tensors)  # kernels are made at the first call
    return body


def within(limit: float, work: Callable[[], Found]) -> Found:
    """What the work comes to, unless it takes longer than `limit` seconds.

    It is done by a thread that is told to stop then, and left behind.

    Raises:
      TimeoutError: it took longer.

    Example:
      >>> within(9, lambda: 1 + 1)
      2
    """
    done: Future[Found] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=do, name="fedtailor-compile", daemon=True)
    thread.start()
    try:
        return done.result(limit)
    except TimeoutError:
        if done.done():  # the work's own
            raise
        stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
        stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError("the time for compiling is over (--compile-limit)") from None


def can_compile(device: torch.device) -> bool:
    """Whether code can be made for a device here."""
    if device.type == "cuda":
        try:
            import triton  # noqa: F401
        except ImportError:
            return False
        if not torch.cuda.is_available():  # the workers' device, not this machine's
            return True
        return torch.cuda.get_device_capability(device) >= (7, 0)
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Operators, and code that is made meanwhile, use a single thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cache_folder() -> Path:
    """Where the user's programs keep what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedtailor"


def keep_compiled_code() -> None:
    """Lets compiled code survive the process, in the user's cache."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "triton"))
