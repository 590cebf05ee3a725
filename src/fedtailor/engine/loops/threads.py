"""Clients on the CPU: each worker thread takes a few and trains them to the end.

Operators of small networks are too short to share between threads, and all clients' parameters at
once do not fit into any cache. So a worker keeps to one client with convolutions (mapped ones are
slow), or to a block of clients without, and uses a single thread for each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.steps.scan import Loop
from fedtailor.engine.loops.operators import ChannelsLast, MatmulConvolutions, SeesConvolutions
from fedtailor.engine.loops.program_files import ProgramFiles, kept_program, step_known_by
from fedtailor.engine.loops.tracing import CompileLimit, Program, one_thread, trace
from fedtailor.engine.memory import keep_freed_memory

# bytes of parameters per block of clients: calls from Python cost more than missed caches
CACHE = 16 << 20
AT_MOST = 32  # clients per worker at a time
BLOCKS = 8  # at least, where there are so many clients
SMALL, TOGETHER = 1 << 18, 5  # bytes of a client, up to which so many share a block at least


class ThreadedLoops:
    """Runs loops on a pool of threads.

    `program`: (loop, what else tells programs apart, tensors, maker) -> program; remembers them.
    """

    def __init__(
        self,
        compiled: bool,
        program: Callable[..., Program],
        threads: int,
        limit: CompileLimit | None = None,
        files: ProgramFiles | None = None,
    ) -> None:
        keep_freed_memory()
        self._files = files
        self._compiled, self._program, self._limit = compiled, program, limit
        self._pool = ThreadPoolExecutor(threads, "fedtailor", torch.set_num_threads, (1,))
        self._alone: dict[Any, bool] = {}  # whether a step is best run for single clients

    def run(self, loop: Loop, tensors: Sequence[Tensor], key: Any) -> Sequence[Tensor]:
        """All steps of all clients."""
        begun = tensors[: loop.carried]
        out = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in begun]
        rest = [t.contiguous() for t in tensors[loop.carried :]]  # as programs expect it
        active = loop.had(tensors)
        with one_thread():
            jobs = []
            for low, high in self._blocks(loop, begun, rest, key):
                jobs.append(self._prepare(loop, begun, out, rest, active, key, low, high))
            for job in [self._pool.submit(job) for job in jobs]:
                job.result()
        return out

    def _blocks(
        self, loop: Loop, begun: Sequence[Tensor], rest: list[Tensor], key: Any
    ) -> list[tuple[int, int]]:
        clients = len(begun[0])
        if key not in self._alone:
            self._alone[key] = self._has_convolutions(loop, begun, rest)
        size = sum(t.numel() * t.element_size() for t in begun) // clients
        together = 1 if self._alone[key] else max(1, min(AT_MOST, CACHE // max(size, 1)))
        # enough blocks for all workers, but the same ones with any number of workers; steps of very
        # small models take as long as it takes to ask for them, whoever shares them
        least = TOGETHER if size <= SMALL else 1
        together = min(together, max(least, -(-clients // BLOCKS)))
        count = -(-clients // together)
        # sizes differ by one at most: two programs serve all
        edges = [clients * i // count for i in range(count + 1)]
        return list(pairwise(edges))

    def _has_convolutions(self, loop: Loop, begun: Sequence[Tensor], rest: list[Tensor]) -> bool:
        with SeesConvolutions() as look:
            loop.for_all(False, len(loop.axes) - 1)(*_slice(loop, [*begun, *rest], 0, 1, 0))
        return bool(look.seen)

    def _prepare(
        self,
        loop: Loop,
        begun: Sequence[Tensor],
        out: list[Tensor],
        rest: list[Tensor],
        active: Tensor,
        key: Any,
        low: int,
        high: int,
    ) -> Callable[[], None]:
        """The work of one block: programs are made here, work is done by whoever calls it."""
        mine = active[low:high]
        need = mine.any(0).nonzero()[:, 0].tolist()
        # one program for the block, with a mask if ever one is needed: tracing takes its time
        masked = not bool(mine[:, need].all())
        levels = len(loop.axes) - (high - low == 1)
        block = _slice(loop, [*begun, *rest], low, high, 0)

        def make() -> Program:
            step, compiled = loop.for_all(masked, levels), self._compiled and loop.compiles
            example = [t.contiguous() for t in block]

            def traced() -> Program:
                # what is still mapped (candidates of one client) has no order of axes to choose
                with MatmulConvolutions(sliced=compiled) if levels else ChannelsLast(compiled):
                    return trace(step, example, loop.carried, compiled=compiled, limit=self._limit)

            if compiled or self._files is None:
                return traced()
            known_by = step_known_by(loop, example, ("threads", masked, levels))
            return kept_program(self._files, loop, known_by, traced)

        program = self._program(loop, (key, masked, high - low), block, make)

        @torch.no_grad()
        def work() -> None:
            for new, old in zip(out, begun, strict=True):
                new[low:high].copy_(old[low:high])
            fixed = _slice(loop, [*out, *rest], low, high, None)
            first = len(fixed) - 4
            moments = [
                t.movedim(_depth(loop, first + i, high - low), 0).contiguous().unbind()
                for i, t in enumerate(fixed[first:])
            ]
            program.replay(fixed[:-4], ([each[number] for each in moments] for number in need))

        return work

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def _depth(loop: Loop, i: int, together: int) -> int:
    """How many mapped axes tensor `i` has in a block."""
    return loop.depth(i) - (together == 1 and loop.axes[-1][i])


def _slice(
    loop: Loop, tensors: Sequence[Tensor], low: int, high: int, number: int | None
) -> list[Tensor]:
    """A block's tensors; a single client without its axis. With a step's number, of that step."""
    cut = [
        t if not has else (t[low] if high - low == 1 else t[low:high])
        for t, has in zip(tensors, loop.axes[-1], strict=True)
    ]
    if number is None:
        return cut
    first = len(tensors) - 4
    moment = [
        t.select(_depth(loop, first + i, high - low), number) for i, t in enumerate(cut[first:])
    ]
    return [*cut[:first], *moment]
