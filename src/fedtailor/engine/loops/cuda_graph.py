"""Clients on a GPU: one step of all of them, captured once and replayed for every batch.

All tensors of a loop lie in buffers that stay where they are. A step reads its number from the
device, so a replay needs nothing from the host. Clients are in order of their number of batches:
those that have a step are the first ones, and steps that fewer clients have are captured for fewer.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from fedtailor.core.steps.scan import Loop
from fedtailor.engine.culprit import culprit, may_go_plainer
from fedtailor.engine.kernels.fusing import FusedOperators
from fedtailor.engine.kernels.launch import make_ready, shapes_only
from fedtailor.engine.loops.operators import MatmulConvolutions
from fedtailor.engine.loops.program_files import ProgramFiles, kept_program, step_known_by
from fedtailor.engine.loops.template import NotAlike, Template
from fedtailor.engine.loops.tracing import CompileLimit, Program, trace
from fedtailor.engine.transfer import upload

log = logging.getLogger("fedtailor")

SHRINK = 0.5  # each captured size is so much of the next larger one
EXACT = 1024  # clients up to which fused steps are captured for every number of them
COMPILED = 4  # sizes below a fourth of all clients are not worth compiling


def sizes(clients: int) -> list[int]:
    """For how many clients steps are captured, falling.

    Example:
      >>> sizes(20)
      [20, 10, 5, 3, 2, 1]
    """
    found = [clients]
    while found[-1] > 1:
        found.append(max(1, min(found[-1] - 1, int(found[-1] * SHRINK + 0.5))))
    return found


class CapturePool(NamedTuple):
    """Where steps are captured.

    What steps make on their way shares one pool of memory: they never run at the same time, and
    what has to last lies in buffers of its own. All are captured on one stream: memory that was
    freed on another would not be used again.

    Attributes:
      pool: torch's handle of the memory.
      stream: the stream.
      first: a step that does nothing. torch does not capture into a pool whose captured steps are
        all gone, as when a loop gets longer and its own are made anew: this one stays.
    """

    pool: Any
    stream: Any
    first: Callable[[], Any] | None = None

    @classmethod
    def open(cls) -> CapturePool:
        """An empty one, on the current GPU."""
        number = torch.zeros(1, device="cuda")
        found = cls(torch.cuda.graph_pool_handle(), torch.cuda.Stream())  # type: ignore[no-untyped-call]
        found.stream.wait_stream(torch.cuda.current_stream())
        return found._replace(first=_capture(lambda: number.zero_(), found))


class CapturedLoop:
    """The buffers of one kind of loop, and its captured steps.

    Made from the first such loop; later ones have the same structure and sizes. `compiled` compiles
    the steps for large numbers of clients, `fused` writes them with this package's own kernels;
    without a `capture_pool` they run as they are: where there is no GPU, for tests.
    """

    def __init__(
        self,
        loop: Loop,
        tensors: Sequence[Tensor],
        compiled: bool,
        capture_pool: CapturePool | None = None,
        limit: CompileLimit | None = None,
        fused: bool = False,
        files: ProgramFiles | None = None,
    ) -> None:
        self._files = files
        self.loop, self._compiled, self._capture_pool = loop, compiled, capture_pool
        self._limit, self._fused = limit, fused
        self.clients = len(tensors[0])
        self.capacity = 0
        first = len(tensors) - 4
        self._fixed = [
            torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors[:first]
        ]
        self._plan: list[Tensor] = []
        self._number = torch.zeros(1, dtype=torch.int64, device=tensors[0].device)
        self._steps: dict[tuple[int, bool], Callable[[], Any]] = {}
        self._tried: set[bool] = set()  # whether masked: of those steps, one was run before
        self._templates: dict[bool, Template | None] = {}
        self._traced_before: dict[tuple[int, bool], Program] = {}
        self._foreseen: list[fx.GraphModule] | None = None
        self.seconds = 0.0

    def run(
        self,
        loop: Loop,
        tensors: Sequence[Tensor],
        foreseen: list[fx.GraphModule] | None = None,
    ) -> list[Tensor]:
        """All steps of all clients.

        With `foreseen` none is run: the list gets what was traced for them and needs kernels.
        """
        self._foreseen = foreseen
        rows = loop.had(tensors)
        order = self._order(rows)
        if order is not None:
            rows = rows[order]
        device = self._number.device
        place = None if order is None else upload(device, order)[0]
        todo = rows.any(0).nonzero()[:, 0].tolist()
        if not todo:
            return list(tensors[: loop.carried])
        self._take(tensors, todo, loop.count, place)
        last = self.clients - rows.flip(0).int().argmax(0)  # the last client that has a step
        # those before it have it too, but for odd plans: with exact sizes no mask is needed then
        masked = not bool((rows.sum(0) == last)[todo].all())
        captured: Sequence[int] = range(1, self.clients + 1)
        if self._template(masked) is None:
            masked, captured = not bool(rows[:, todo].all()), sizes(self.clients)[::-1]
        asked = [captured[bisect_left(captured, needed)] for needed in last[todo].tolist()]
        if foreseen is not None:
            self._foresee(set(asked), masked)
            return list(tensors[: loop.carried])
        for size in asked:
            self._step(size, masked)()
        found = self._fixed[: loop.carried]
        if place is None:
            return [t.clone() for t in found]
        back = place.argsort()
        return [t[back] for t in found]

    def _order(self, rows: Tensor) -> Tensor | None:
        """Clients with most steps first; None if they are in such an order."""
        count = rows.sum(1)
        if bool((count[1:] <= count[:-1]).all()):
            return None
        return count.argsort(stable=True, descending=True)

    def _take(
        self, tensors: Sequence[Tensor], todo: list[int], count: int, place: Tensor | None
    ) -> None:
        """Copies a loop's tensors into the buffers."""
        first = len(tensors) - 4
        flags = self.loop.axes[-1]
        ordered = [
            t if place is None or not has else t[place]
            for t, has in zip(tensors, flags, strict=True)
        ]
        for buffer, tensor in zip(self._fixed, ordered, strict=False):
            buffer.copy_(tensor)
        plan = [t.movedim(self.loop.depth(first + i), 0) for i, t in enumerate(ordered[first:])]
        if len(todo) < count:
            (chosen,) = upload(self._number.device, torch.tensor(todo))
            plan = [t[chosen] for t in plan]
        if len(todo) > self.capacity:  # room for more: what was captured knows the old buffers
            self.capacity = max(len(todo), 2 * self.capacity)
            self._plan = [t.new_zeros(self.capacity, *t.shape[1:]) for t in plan]
            self._steps.clear()
        for buffer, tensor in zip(self._plan, plan, strict=True):
            buffer[: len(tensor)].copy_(tensor)
        self._number.zero_()

    def _views(self, size: int) -> list[Tensor]:
        """The buffers of the first clients, for a step."""
        flags = self.loop.axes[-1]
        fixed = [t[:size] if has else t for t, has in zip(self._fixed, flags, strict=False)]
        moment = [t.index_select(0, self._number)[0] for t in self._plan]
        return [
            *fixed,
            *(t[:size] if has else t for t, has in zip(moment, flags[-4:], strict=True)),
        ]

    def _foresee(self, wanted: set[int], masked: bool) -> None:
        """Traces the steps of so many clients, where not all numbers of them share one program."""
        if self._template(masked) is None:
            for key in ((size, masked) for size in wanted):
                if key not in self._steps and key not in self._traced_before:
                    self._traced_before[key] = self._trace(*key)

    def _step(self, size: int, masked: bool) -> Callable[[], Any]:
        key = size, masked
        if key not in self._steps:
            self._steps[key] = self._make(size, masked)
        return self._steps[key]

    def _make(self, size: int, masked: bool) -> Callable[[], Any]:
        """A step that can be called again and again."""
        template = self._template(masked)
        if template is not None:
            program = template.program(size)
        else:
            before = self._traced_before.pop((size, masked), None)
            program = before or self._trace(size, masked)

        def step() -> None:
            program(*self._views(size))
            self._number.add_(1)

        if not self._capture_pool:
            return step
        if template is not None and masked in self._tried:
            # the same operators for another number of clients: nothing has to be set up
            with suppress(Exception):  # something has, or memory that lies idle must be freed
                return _capture(step, self._capture_pool)
        try:
            return self._try_and_capture(step, masked, self._capture_pool)
        except Exception as error:  # a graph may refuse any operator; the step runs without
            if not may_go_plainer(error):
                raise
            log.warning("a step cannot be captured and is replayed: %s", culprit(error))
            return step

    def _try_and_capture(
        self, step: Callable[[], None], masked: bool, capture_pool: CapturePool
    ) -> Callable[[], Any]:
        """A replay of a step, which is run once before: libraries set themselves up."""
        changed = (*self._fixed[: self.loop.carried], self._number)
        saved = [t.clone() for t in changed]
        try:
            _try_out(step, self._number, capture_pool.stream)
            self._tried.add(masked)
            return _capture(step, capture_pool)
        finally:
            for buffer, before in zip(changed, saved, strict=True):
                buffer.copy_(before)

    def _template(self, masked: bool) -> Template | None:
        """Fused steps of any number of clients; None if each number must be traced."""
        if not self._fused or not 2 < self.clients <= EXACT:
            return None
        if masked not in self._templates:
            try:
                self._templates[masked] = self._kept_template(masked)
            except NotAlike as difference:
                log.info("a step is captured for few numbers of clients: %s", difference)
                self._templates[masked] = None
        return self._templates[masked]

    def _kept_template(self, masked: bool) -> Template:
        def made() -> Template:
            few, everybody = (self._traced(size, masked) for size in (2, self.clients))
            self._make_kernels(few, everybody)
            return Template.of(few, 2, everybody, self.clients)

        began = time.perf_counter()
        if self._files is None:
            found = made()
        else:
            known_by = step_known_by(self.loop, self._views(self.clients), ("any number", masked))
            found, _ = self._files.found_or_made(known_by, self.loop.store, self.loop.notes, made)
        self.seconds += time.perf_counter() - began
        return found

    def _trace(self, size: int, masked: bool) -> Program:
        """The step of the first clients, as operators, perhaps from disk."""
        compiled = self._compiled and self.loop.compiles and size * COMPILED >= self.clients
        if compiled or self._files is None:
            program = self._ready(size, masked, compiled)
        else:
            way = ("fused" if self._fused else "traced", masked)
            known_by = step_known_by(self.loop, self._views(size), way)
            trace_it = partial(self._ready, size, masked)
            program = kept_program(self._files, self.loop, known_by, trace_it)
        self.seconds += program.seconds
        return program

    def _ready(self, size: int, masked: bool, compiled: bool = False) -> Program:
        program = self._traced(size, masked, compiled)
        began = time.perf_counter()
        self._make_kernels(program)
        program.seconds += time.perf_counter() - began
        return program

    def _make_kernels(self, *programs: Program) -> None:
        """Makes those of all programs at once, or with those of other loops that are foreseen."""
        if self._fused and self._capture_pool:
            bodies = (program.body for program in programs)
            graphs = [body for body in bodies if isinstance(body, fx.GraphModule)]
            if self._foreseen is None:
                make_ready(*graphs)
            else:
                self._foreseen.extend(graphs)

    def _traced(self, size: int, masked: bool, compiled: bool = False) -> Program:
        with ExitStack() as written:
            written.enter_context(MatmulConvolutions(sliced=compiled))
            if self._fused:  # what has no kernel is a matrix product
                written.enter_context(FusedOperators())
                written.enter_context(shapes_only())
            return trace(
                self.loop.for_all(masked),
                self._views(size),
                self.loop.carried,
                compiled=compiled,
                limit=self._limit,
            )


def _try_out(step: Callable[[], None], number: Tensor, stream: torch.cuda.Stream) -> None:
    """Runs a step on the stream that it will be captured on; then frees what lies idle."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        number.zero_()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _capture(step: Callable[[], Any], capture_pool: CapturePool) -> Callable[[], Any]:
    """A replay of a step.

    `torch.cuda.graph` would wait for the GPU and give back idle memory each time. What threads do
    meanwhile, which hash data and write models, is no business of the capture.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(capture_pool.stream):
        graph.capture_begin(capture_pool.pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
    return graph.replay
