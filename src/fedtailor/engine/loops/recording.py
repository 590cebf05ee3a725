"""Writes down which operators reach the device while a function runs.

torch's own tracer does the same, and more: it loads its compiler, which takes seconds in every
process, and keeps shapes of numbers unknown, of which there are none here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import vmap
from torch.utils.weak import WeakTensorKeyDictionary

from fedtailor.engine.kernels.outline import Outline, tensors_in
from fedtailor.engine.loops.torch_internals import (
    OperatorMode,
    changes_tensors,
    is_mapped,
    works,
)

aten = torch.ops.aten
# of tensors to numbers, from sizes alone
_OF_SIZES = (aten.is_same_size.default,)
_INDEX = aten.index.Tensor


class DependsOnNumbers(RuntimeError):
    """What happens next depends on a tensor's numbers, which differ from step to step."""

    def __init__(self, what: Any) -> None:
        super().__init__(f"{what} asks for numbers that differ from step to step")


class Recording(NamedTuple):
    """What was recorded, which may be changed before it is written as code."""

    graph: fx.Graph
    constants: torch.nn.Module

    def written(self) -> fx.GraphModule:
        """The graph as Python code, which takes a while to make: once nothing changes any more."""
        return fx.GraphModule(self.constants, self.graph)


def record(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Recording:
    """The operators that reach the device when `fn` is called with `tensors`, each another.

    Every value has its `Outline` in `node.meta["outline"]`. Tensors that `fn` finds elsewhere are
    attributes of the graph.

    Raises:
      DependsOnNumbers: `fn` decides by the numbers of a tensor, or makes one of their size.

    Example:
      >>> found = record(lambda x: [x * 2 + 1], [torch.zeros(2)])
      >>> [str(n.target) for n in found.graph.nodes if n.op == "call_function"]
      ['aten.mul.Tensor', 'aten.add.Tensor']
      >>> found.written()(torch.ones(2))[0].tolist()
      [3.0, 3.0]
    """
    recorder = _Recorder(tensors)
    with _casts_not_shared(), recorder:
        results = fn(*tensors)
    recorder.graph.output([recorder.node(t) for t in results])
    return Recording(recorder.graph, recorder.constants)


@functools.cache
def can_trace() -> bool:
    """Whether steps can be traced with this release of torch; tried out once, on a small one."""
    return works(_try_tracing, "loops over batches run step by step, which is slower")


def _try_tracing() -> None:
    """A mapped step is recorded, and its tensors are told from others; fails if that fails."""
    seen: list[bool] = []

    def step(x: Tensor) -> Tensor:
        seen.append(is_mapped(x))
        return x * 2 + 1

    example = torch.arange(3.0)
    found = record(lambda x: [vmap(step)(x)], [example.clone()])
    targets = [node.target for node in found.graph.nodes if node.op == "call_function"]
    if aten.add.Tensor not in targets or not torch.equal(
        found.written()(example)[0], step(example)
    ):
        raise RuntimeError("a traced step does something else")
    if seen != [True, False]:
        raise RuntimeError("mapped tensors cannot be told from others")


@contextmanager
def _casts_not_shared() -> Iterator[None]:
    """Within, what autocast has cast is not kept: it may be of a step before."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Recorder(OperatorMode):  # type: ignore[no-untyped-call]
    """Sees every operator below gradients and mappings."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants = torch.nn.Module()
        self._nodes: Any = WeakTensorKeyDictionary()
        # results that are the same in every step; by these `fn` may decide
        self._settled: Any = WeakTensorKeyDictionary()
        self._held: dict[int, tuple[Tensor, fx.Node]] = {}  # constants
        for i, tensor in enumerate(tensors):
            self._note(tensor, self.graph.placeholder(f"arg{i}"))

    def _note(self, tensor: Tensor, node: fx.Node) -> None:
        node.meta["outline"] = Outline.of(tensor)
        self._nodes[tensor] = node

    def node(self, tensor: Tensor) -> fx.Node:
        """What a tensor is in the graph: a result, or a constant."""
        if tensor in self._nodes:
            found: fx.Node = self._nodes[tensor]
            return found
        if id(tensor) not in self._held:
            name = f"_tensor_constant{len(self._held)}"
            setattr(self.constants, name, tensor)
            node = self.graph.get_attr(name)
            node.meta["outline"] = Outline.of(tensor)
            self._held[id(tensor)] = tensor, node
        return self._held[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is aten.lift_fresh.default:  # a constant, which may be changed in place later
            func = aten.lift_fresh_copy.default
        with self:  # an operator that is made of others is these
            found = func.decompose(*args, **given)
        if found is not NotImplemented:
            return found
        changed = changes_tensors(func)
        if changed:
            self._settled.clear()  # what was changed, and all views of it
        settled = not changed and self._is_settled(func, (args, given))
        if not settled and _looks_at_numbers(func, args):
            raise DependsOnNumbers(func)
        found = func(*args, **given)
        results = tensors_in(found)
        if not results and found is not None:
            if not settled and func not in _OF_SIZES:
                raise DependsOnNumbers(func)
            return found
        node = self.graph.call_function(func, self._told(args), self._told(given))
        self._note_results(node, found)
        if settled:
            self._settled.update((t, True) for t in results)
        return found

    def _is_settled(self, func: Any, given: Any) -> bool:
        """Whether an operator that changes nothing gives the same in every step."""
        if torch.Tag.nondeterministic_seeded in func.tags:
            return False
        return all(t in self._settled or t not in self._nodes for t in tensors_in(given))

    def _note_results(self, node: fx.Node, found: Any) -> None:
        if isinstance(found, Tensor):
            self._note(found, node)
        elif isinstance(found, (tuple, list)):
            for i, part in enumerate(found):
                if tensors_in(part):
                    self._note_results(self.graph.call_function(operator.getitem, (node, i)), part)

    def _told(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.node(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self._told(part) for part in value)
        if isinstance(value, dict):
            return {k: self._told(v) for k, v in value.items()}
        return value


def _looks_at_numbers(func: Any, args: Any) -> bool:
    """Whether the size of an operator's result depends on numbers."""
    if func is _INDEX:
        return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_in(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags
