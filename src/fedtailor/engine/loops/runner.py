"""How loops over batches are run: step by step, traced, captured or compiled.

Which it is depends on the device and on how much work a run has: the same run takes the same way
again, also when it is resumed. Only where compiling would not end does a clock decide, and says so.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, fx

from fedtailor.core.steps.scan import LEAVER, RUNNER, Loop, left_by_torch, plainly, with_mapping
from fedtailor.engine.culprit import culprit, may_go_plainer
from fedtailor.engine.kernels.launch import make_early
from fedtailor.engine.kernels.support import has_kernels
from fedtailor.engine.loops.cuda_graph import CapturedLoop, CapturePool
from fedtailor.engine.loops.identity import ClosesOverClient, TaskNumbers, identity
from fedtailor.engine.loops.program_files import ProgramFiles
from fedtailor.engine.loops.recording import can_trace
from fedtailor.engine.loops.threads import ThreadedLoops
from fedtailor.engine.loops.torch_internals import (
    can_leave_mappings,
    has_compiler,
    leave_mappings,
    one_client,
    put_off_compiler,
)
from fedtailor.engine.loops.tracing import (
    COMPILE_LIMIT,
    CompileLimit,
    Program,
    can_compile,
    keep_compiled_code,
)
from fedtailor.engine.memory import release_gpu_memory

Compile = Literal["auto", "never", "always", "fused"]
LoopMode = Literal["plain", "traced", "compiled", "fused"]

log = logging.getLogger("fedtailor")

# from where preparing pays, measured on two cores and on one H200. Tracing on a GPU saves launches,
# which ten clients that step together need as many of as a hundred do
TRACE_FROM = {"cpu": 3_000}  # steps of all clients
TRACE_CONVOLUTIONS_FROM = {"cpu": 500}  # a mapped one takes four times as long as a traced one
TRACE_FROM_IN_A_ROW = {"cuda": 1_000}
COMPILE_FROM = {"cpu": 100_000, "cuda": 1_500_000}  # steps of all clients
# of a network with convolutions: own kernels take seconds to be made, once on a machine
FUSE_FROM_IN_A_ROW = {"cuda": 2_000}
# steps of a server's loop in one round; how much a run's clients have to do says nothing of it
TRACE_ALONE_FROM = {"cpu": 100, "cuda": 100}
NOTABLE = 3.0  # seconds of preparing that people are told about
NEVER = 1 << 62


class Workload(NamedTuple):
    """How much a whole run has to compute."""

    steps: int  # of all clients
    in_a_row: int  # how many these are when the clients of a round step together
    convolutions: bool = False  # whether the network has some


def use_precision(precision: str) -> None:
    """Lets matrix products and convolutions on GPUs use TF32, or not (for `fp32`)."""
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


def choose_loop_mode(work: Workload, device: torch.device, compile: Compile) -> LoopMode:
    """The way for a run, from how much there is to do, where, and what the user wants."""
    return possible(_wanted(work, device, compile))


def _wanted(work: Workload, device: torch.device, compile: Compile) -> LoopMode:
    if compile == "always" and not can_compile(device):
        log.warning("nothing here compiles code for %s: steps are traced only", device)
    if compile == "fused":
        if has_kernels(device):
            return "fused"
        log.warning("there are no kernels for %s here: steps are traced only", device)
        return "traced"
    fuses = compile == "auto" and work.convolutions and has_kernels(device)
    if fuses and work.in_a_row >= FUSE_FROM_IN_A_ROW.get(device.type, NEVER):
        return "fused"
    compiles = compile != "never" and can_compile(device)
    if compiles and (compile == "always" or work.steps >= COMPILE_FROM.get(device.type, NEVER)):
        return "compiled"
    steps = TRACE_CONVOLUTIONS_FROM if work.convolutions else TRACE_FROM
    pays = (
        work.steps >= steps.get(device.type, NEVER)
        or work.in_a_row >= TRACE_FROM_IN_A_ROW.get(device.type, NEVER)
    )  # fmt: skip
    return "traced" if pays else "plain"


def possible(loop_mode: LoopMode) -> LoopMode:
    """A mode, or the next plainer one that this release of torch allows."""
    if loop_mode == "plain" or not can_trace():
        return "plain"
    return "traced" if loop_mode == "compiled" and not has_compiler() else loop_mode


class LoopRunner:
    """Runs loops in one way, and remembers their programs.

    `plain`, `traced` (replayed by threads on a CPU, captured on a GPU), `compiled`, or `fused`:
    captured, with this package's own kernels for convolutions and losses; where there is no GPU
    these are plain torch, for tests. A step that cannot be prepared so goes the next plainer way;
    so do those that are left when compiling has taken `compile_limit` seconds. With `keep_programs`
    traced steps are kept on disk, and those that an earlier process has traced are read.
    """

    def __init__(
        self,
        loop_mode: LoopMode,
        device: torch.device,
        compile_limit: float = COMPILE_LIMIT,
        *,
        keep_programs: bool = False,
    ) -> None:
        self._files = ProgramFiles(device) if keep_programs else None
        self.loop_mode, self.device = possible(loop_mode), device
        self._limit = CompileLimit(compile_limit)
        self._programs: dict[Hashable, Any] = {}
        # a number for each kind of loop, and what it is known by, which must stay alive. A number
        # is looked up in no time, and none is given twice: others may remember it
        self._known: dict[Hashable, tuple[int, list[Any]]] = {}
        self._numbers = itertools.count()
        self._tasks = TaskNumbers()
        self._plain: set[int] = set()  # loops whose steps cannot be prepared
        self._warned = False
        self._capture_pool: CapturePool | None = None
        self._workers: ThreadedLoops | None = None
        self._threads = torch.get_num_threads()
        self._foreseen: list[fx.GraphModule] | None = None
        # whether it pays to show it early which loops will come: kernels take seconds to be made
        self.foresees = self.loop_mode == "fused" and device.type == "cuda"
        self.seconds = 0.0
        if self.loop_mode in ("compiled", "fused"):
            keep_compiled_code()
        if self.loop_mode != "compiled":
            put_off_compiler()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Loops that are met meanwhile are run in this way."""
        token = RUNNER.set(plainly if self.loop_mode == "plain" else self.run)
        leaver = LEAVER.set(leave_mappings if can_leave_mappings() else left_by_torch)
        try:
            yield
        finally:
            LEAVER.reset(leaver)
            RUNNER.reset(token)

    @contextmanager
    def running_alone(self) -> Iterator[None]:
        """The same where nothing is mapped, as at a server: its loops are as one client's.

        Long ones are traced also where clients' loops are too short for that.
        """
        with self.running():
            token = RUNNER.set(self._run_alone)
            try:
                yield
            finally:
                RUNNER.reset(token)

    @contextmanager
    def foreseeing(self) -> Iterator[None]:
        """Loops that are met meanwhile are traced and not run; then their kernels are made.

        All at once, by as many copies of this process as there are processors.
        """
        self._foreseen, self.foresees = [], False  # once is enough
        try:
            yield
            began = time.perf_counter()
            if make_early(*self._foreseen):
                self._tell(time.perf_counter() - began)
        finally:
            self._foreseen = None

    def run(self, loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """All steps of a loop."""
        if not loop.axes:
            return plainly(loop, tensors)
        return self._run(loop, tensors, lambda: plainly(loop, tensors))

    def _run_alone(self, loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if loop.axes:
            return self.run(loop, tensors)

        def plain() -> Sequence[Tensor]:
            with one_client():
                return plainly(loop, tensors)

        few = loop.count < TRACE_ALONE_FROM.get(self.device.type, NEVER)
        if self.loop_mode == "plain" and (few or not can_trace()):
            return plain()
        one, of_one = with_mapping(loop, [t[None] for t in tensors], [0] * len(tensors), 1)
        return [t[0] for t in self._run(one, of_one, lambda: [t[None] for t in plain()])]

    def _run(
        self, loop: Loop, tensors: Sequence[Tensor], plain: Callable[[], Sequence[Tensor]]
    ) -> Sequence[Tensor]:
        """All steps of a mapped loop: prepared, or else as `plain` has them."""
        held: list[Any] = []
        try:
            kind = self._key(loop, tensors, held)
        except ClosesOverClient:
            if not self._warned:
                log.warning("a step closes over a client's tensor: it is run as it is, slowly")
            self._warned = True
            return plain()
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = next(self._numbers), held
        key = known[0]
        if key in self._plain:
            return plain()
        try:
            return self._prepared(loop, tensors, key)
        except Exception as error:  # tracing may fail in any way; a step still runs as it is
            if not may_go_plainer(error):
                raise
            reason = culprit(error)
        found = plain()  # fails in the same way if it is nobody's tracing
        self._plain.add(key)
        log.warning("a step cannot be %s and is run as it is, slower: %s", self._done, reason)
        return found

    def _prepared(self, loop: Loop, tensors: Sequence[Tensor], key: int) -> Sequence[Tensor]:
        """With a step that is prepared, now or before."""
        if self.device.type == "cpu" and self.loop_mode != "fused":
            if self._workers is None:
                self._workers = ThreadedLoops(
                    self.loop_mode == "compiled",
                    self._program,
                    self._threads,
                    self._limit,
                    self._files,
                )
            return self._workers.run(loop, tensors, key)
        return self._captured(loop, tensors, key)

    def _captured(self, loop: Loop, tensors: Sequence[Tensor], key: int) -> Sequence[Tensor]:
        kind = key, len(tensors[0])
        if kind not in self._programs:
            if self.device.type == "cuda" and self._capture_pool is None:
                self._capture_pool = CapturePool.open()
            self._programs[kind] = CapturedLoop(
                loop,
                tensors,
                self.loop_mode == "compiled",
                self._capture_pool,
                self._limit,
                fused=self.loop_mode == "fused",
                files=self._files,
            )
        captured: CapturedLoop = self._programs[kind]
        before = captured.seconds
        found = captured.run(loop, tensors, self._foreseen)
        if captured.seconds > before:
            self._tell(captured.seconds - before)
        loop.notes.update(captured.loop.notes)
        return found

    def _program(
        self, loop: Loop, key: Hashable, tensors: Sequence[Tensor], make: Callable[[], Program]
    ) -> Program:
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)  # workers lay them out alike
        kind = key, shapes
        if kind not in self._programs:
            program = make()
            self._programs[kind] = program, loop.notes
            self._tell(program.seconds)
        found: Program
        found, notes = self._programs[kind]
        loop.notes.update(notes)
        return found

    def _key(self, loop: Loop, tensors: Sequence[Tensor], held: list[Any]) -> Hashable:
        first = len(tensors) - 4
        shapes = tuple((tuple(t.shape[1:]), t.dtype) for t in tensors[:first])
        batch = tuple(tensors[first].shape[-1:])
        return (
            identity(loop.step, held, self._tasks),
            identity(loop.store, held),
            str(loop.carry),
            str(loop.given),
            loop.axes,
            shapes,
            batch,
            torch.get_default_dtype(),
        )

    @property
    def _done(self) -> str:
        """What is done to a step that is prepared, in a word; plain runs prepare a server's."""
        return "traced" if self.loop_mode == "plain" else self.loop_mode

    def _tell(self, seconds: float) -> None:
        self.seconds += seconds
        level = logging.INFO if seconds > NOTABLE else logging.DEBUG
        log.log(level, "a step was %s in %.1f s", self._done, seconds)

    def forget(self) -> None:
        """Frees all programs and their buffers."""
        self._programs.clear()
        self._plain.clear()
        self._known.clear()
        self._capture_pool = None
        release_gpu_memory(self.device)

    def close(self) -> None:
        """Ends worker threads and frees everything."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        self.forget()
