"""When kernels run, and when they only say what shape their results have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from fedtailor.engine.loops.recording import Form

_state = threading.local()
OURS = "fedtailor"  # the library that the operators are in
_library: Any = torch.library.Library(OURS, "DEF")  # type: ignore[no-untyped-call]


def as_operator(fn: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """A function of tensors and numbers as one of torch's operators.

    Tracing writes it down as one, whatever it does; `shapes` gives its results without numbers.
    `torch.library.custom_op` would do the same, but loads the compiler to tell it to stay away.
    """
    name = fn.__name__.strip("_")
    _library.define(name + torch.library.infer_schema(fn, mutates_args=()))
    _library.impl(name, fn, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{OURS}::{name}", shapes, lib=_library)
    return getattr(getattr(torch.ops, OURS), name).default


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within, operators with kernels give zeros of the right shape.

    Tracing writes down operators and looks at no number, so nothing has to be computed, and no
    kernel made for what is fused in the end.

    Example:
      >>> with shapes_only():
      ...     gives_shapes()
      True
    """
    before = gives_shapes()
    _state.on = True
    try:
        yield
    finally:
        _state.on = before


def gives_shapes() -> bool:
    """Whether operators give shapes only, in this thread."""
    return getattr(_state, "on", False)


def make_ready(graph: fx.GraphModule, threads: int = 8) -> int:
    """Makes all kernels that a traced step needs, several at a time; returns how many calls.

    Each operator is called once with zeros: whatever it makes, it makes at its first call.
    """
    calls: dict[Hashable, Callable[[], Any]] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "namespace", "") == OURS:
            known = [_form(argument) for argument in node.args]
            calls.setdefault((str(node.target), str(known)), _call(node.target, known))
    if calls:
        with ThreadPoolExecutor(min(threads, len(calls)), "fedtailor-kernels") as pool:
            list(pool.map(lambda call: call(), calls.values()))
    return len(calls)


def _call(operator: Any, arguments: list[Any]) -> Callable[[], Any]:
    def call() -> Any:
        made = [zeros(a) if isinstance(a, Form) else a for a in arguments]
        if any(isinstance(t, Tensor) and t.is_cuda for t in made):
            torch.cuda.set_device(next(t.device for t in made if isinstance(t, Tensor)))
        with torch.no_grad():
            return operator(*made)

    return call


def _form(argument: Any) -> Any:
    return argument.meta["form"] if isinstance(argument, fx.Node) else argument


def zeros(form: Form) -> Tensor:
    """A tensor of zeros of such a form."""
    return torch.empty_strided(
        form.shape, form.strides, dtype=form.dtype, device=form.device
    ).zero_()
