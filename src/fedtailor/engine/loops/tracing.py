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
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx

from fedtailor.engine.loops.shorten import shorten_graph
from fedtailor.engine.loops.torch_internals import compile_graph, is_view, make_graph

Found = TypeVar("Found")
COMPILE_LIMIT = 600.0  # seconds

log = logging.getLogger("fedtailor")
aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.reshape.default)
_FLIPS = (aten.transpose.int, aten.t.default)
_PRODUCTS = {aten.bmm.default: "baddbmm_", aten.mm.default: "addmm_"}


@dataclass(frozen=True)
class Update:
    """An update `leaf += scale (left @ right)` that is left to one matrix product in place.

    The gradient itself never exists.
    """

    leaf: int  # which tensor
    name: str  # of the operator
    scale: float = 1.0


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
    ready: Callable[[fx.GraphModule], Any] | None = None,
) -> Program:
    """A program for a step, which gives new values of the first `carried` of its tensors.

    The step is run once, on copies of `tensors`; if `compiled`, TorchInductor makes code of it,
    as far as `limit` allows. `ready` is shown what was traced, to make what it needs.
    """
    began = time.perf_counter()
    copies = [t.clone() for t in tensors]  # no two the same: tracing knows tensors by identity
    graph = make_graph(lambda *a: list(step(*a)), copies)
    shorten_graph(graph)
    updates = _in_place(graph, carried)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    if ready is not None:
        ready(graph)
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


def _in_place(graph: fx.GraphModule, carried: int) -> tuple[Update, ...]:
    """Lets the graph write its results into its first inputs; returns what it leaves to others.

    What is read while they are written must be none of them: it may be changed by then.
    """
    nodes = list(graph.graph.nodes)
    changed = [node for node in nodes if node.op == "placeholder"][:carried]
    output = nodes[-1]
    new = list(output.args[0])
    updates: list[Update] = []
    factors: list[fx.Node] = []
    writes: list[tuple[fx.Node, fx.Node]] = []
    with graph.graph.inserting_before(output):
        for i, (old, value) in enumerate(zip(changed, new, strict=True)):
            if value is old:
                continue
            found = _product(old, value)
            if found is not None:
                scale = found.scale if isinstance(found.scale, float) else 1.0
                updates.append(Update(i, found.operator, scale))
                factors += [_apart(graph.graph, f, changed) for f in _factors(graph.graph, found)]
                continue
            writes.append((old, value))
        ready = [_write(graph.graph, old, value, changed) for old, value in writes]
        for write in _together(ready):  # when all values are made
            graph.graph.call_function(*write)
    output.args = (factors,)
    return tuple(updates)


def _write(
    graph: fx.Graph, old: fx.Node, value: fx.Node, changed: Sequence[fx.Node]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What puts a value into its place: `old + number * change` is one operator."""
    change = value.args[1] if len(value.args) > 1 else None
    adds = value.target is aten.add.Tensor and value.args[0] is old and not value.kwargs
    if adds and isinstance(change, fx.Node) and change.target is aten.mul.Tensor:
        what, number = change.args
        if isinstance(number, float) and isinstance(what, fx.Node) and _shape(what) == _shape(old):
            return aten.add_.Tensor, (old, _apart(graph, what, changed)), {"alpha": number}
    return aten.copy_.default, (old, _apart(graph, value, changed)), {}


def _together(
    writes: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]],
) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Additions of the same multiple as one operator: a launch instead of one for each."""
    sums: dict[float, list[tuple[Any, ...]]] = {}
    others = []
    for operator, args, named in writes:
        if operator is aten.add_.Tensor:
            sums.setdefault(named["alpha"], []).append(args)
        else:
            others.append((operator, args, named))
    for number, pairs in sums.items():
        both: tuple[Any, ...] = tuple(list(part) for part in zip(*pairs, strict=True))
        others.append((aten._foreach_add_.List, both, {"alpha": number}))
    return others


def _apart(graph: fx.Graph, node: fx.Node, changed: Sequence[fx.Node]) -> fx.Node:
    """A node, copied where it is an input that changes or a view of one."""
    return graph.call_function(aten.clone.default, (node,)) if _root(node) in changed else node


def _root(node: Any) -> Any:
    """What a node is a view of."""
    while isinstance(node, fx.Node) and (node.target in _VIEWS or is_view(node)):
        node = node.args[0]
    return node


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["val"].shape
    return shape


class _Product(NamedTuple):
    """A new value `old + scale (left @ right)`, where `active`."""

    operator: str
    left: fx.Node
    right: fx.Node
    scale: Any
    active: fx.Node | None


def _factors(graph: fx.Graph, product: _Product) -> list[fx.Node]:
    """What is left to multiply.

    Where nothing is to change both are zero: zero times a number that is not finite would not be.
    """
    left = product.left
    if not isinstance(product.scale, float):
        times = aten.mul.Tensor if isinstance(product.scale, fx.Node) else aten.mul.Scalar
        left = graph.call_function(times, (left, product.scale))
    if product.active is None:
        return [left, product.right]
    return [
        graph.call_function(aten.where.ScalarOther, (product.active, factor, 0.0))
        for factor in (left, product.right)
    ]


def _product(old: fx.Node, value: fx.Node) -> _Product | None:
    """What a new value is the product of, if it is one."""
    active: Any = None
    if value.target is aten.where.self and value.args[2] is old:
        active, value = value.args[0], value.args[1]  # type: ignore[assignment]
        if any(size != 1 for size in _shape(active)[-2:]):
            return None
    if value.target is not aten.add.Tensor or value.kwargs or value.args[0] is not old:
        return None
    change = value.args[1]
    if not isinstance(change, fx.Node) or change.target is not aten.mul.Tensor:
        return None
    gradient, scale = change.args
    if isinstance(scale, fx.Node) and _shape(scale).numel() != 1:
        gradient, scale = scale, gradient
    if isinstance(scale, fx.Node) and _shape(scale).numel() != 1:
        return None
    if not isinstance(gradient, fx.Node) or _shape(gradient) != _shape(old):
        return None
    product = _through(gradient)
    if product is None or product.target not in _PRODUCTS or _shape(product) != _shape(old):
        return None
    return _Product(_PRODUCTS[product.target], product.args[0], product.args[1], scale, active)


def _through(node: Any) -> Any:
    """The node behind views that change nothing and transpositions that undo each other."""
    flips = 0
    while node.target in (*_VIEWS, *_FLIPS):
        before = node.args[0]
        if node.target in _FLIPS:
            axes = [axis % len(_shape(node)) for axis in node.args[1:]] or [0, 1]
            if sorted(axes) != [len(_shape(node)) - 2, len(_shape(node)) - 1]:
                return None
            flips += 1
        elif _shape(node) != _shape(before):
            return None
        node = before
    return node if flips % 2 == 0 else None


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
