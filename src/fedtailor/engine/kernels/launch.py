"""When kernels run, and when they only say what shape their results have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx

from fedtailor.engine.kernels.ahead import make_ahead
from fedtailor.engine.kernels.outline import Outline, outline_of

_within = 0  # how often `shapes_only`
OURS = "fedtailor"  # the library that the operators are in
_FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # that the operators are made of
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
    operator = getattr(getattr(torch.ops, OURS), name).default
    _FUNCTIONS[operator] = fn
    return operator


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
    global _within  # for all threads: gradients on a GPU are computed by one of torch's own
    _within += 1
    try:
        yield
    finally:
        _within -= 1


def gives_shapes() -> bool:
    """Whether operators give shapes only."""
    return _within > 0


def make_ready(*graphs: fx.GraphModule) -> int:
    """Makes all kernels that traced steps need, several at a time; returns how many calls.

    Each operator is called once with zeros: whatever it makes, it makes at its first call. In one
    thread: Triton loads all that starts kernels as modules of one name, and of two threads one gets
    what starts the other's kernel.
    """
    calls = _calls_of(graphs)
    _make_in_copies(calls)
    for call in calls:
        call.here()
    return len(calls)


def make_early(*graphs: fx.GraphModule) -> int:
    """Makes the same kernels for the disk alone; who calls them finds them there."""
    calls = _calls_of(graphs)
    _make_in_copies(calls)
    return len(calls)


def _calls_of(graphs: Iterable[fx.GraphModule]) -> list[_Call]:
    """All calls of operators with kernels that differ."""
    calls: dict[str, _Call] = {}
    for node in (node for graph in graphs for node in graph.graph.nodes):
        if node.op == "call_function" and getattr(node.target, "namespace", "") == OURS:
            call = _Call(
                node.target, [outline_of(a) if isinstance(a, fx.Node) else a for a in node.args]
            )
            calls.setdefault(str(call), call)
    return list(calls.values())


def _make_in_copies(calls: Sequence[_Call]) -> None:
    if calls and calls[0].device.type == "cuda":
        from fedtailor.engine.kernels.triton_start import make_for_this_gpu, start_driver

        todo = [call.without_device for call in calls]
        make_ahead(todo, make_for_this_gpu(calls[0].device), start_driver)


class _Call(NamedTuple):
    """An operator and what it is given: outlines of tensors, and numbers."""

    operator: Any
    given: list[Any]

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return next(outline.device for outline in self.given if isinstance(outline, Outline))

    def here(self) -> None:
        """Calls it with zeros on the device."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        with torch.no_grad():
            self.operator(*(_made(part) for part in self.given))

    def without_device(self) -> None:
        """Does what it does with tensors that are nowhere."""
        nowhere = torch.device("meta")
        _FUNCTIONS[self.operator](*(_made(part, nowhere) for part in self.given))


def _made(given: Any, device: torch.device | None = None) -> Any:
    """A tensor of zeros of an outline, on its device or another one; anything else as it is."""
    if not isinstance(given, Outline):
        return given
    device = device or given.device
    return torch.empty_strided(given.shape, given.strides, dtype=given.dtype, device=device).zero_()
