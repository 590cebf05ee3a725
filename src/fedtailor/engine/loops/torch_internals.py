"""All that this package uses of torch beyond its public interface, and what is done without it.

A release of torch may change any of this. Whatever is missing, or no longer does what is needed
here, is reported once, and runs go on the plain way: slower, with the same results.
"""

from __future__ import annotations

import functools
import importlib
import logging
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap

from fedtailor.core.objectives import UNMAPPED
from fedtailor.core.steps.scan import RUNNER, Loop, left_by_torch, with_mapping

log = logging.getLogger("fedtailor")


def _interface(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_COMPILER = "torch._dynamo"  # it takes seconds to load


class _NoCompiledAutograd:
    """Stands for the compiler's part that `grad` switches off; it is off as long as not loaded."""

    _name = f"{_COMPILER}.compiled_autograd"

    def _disable(self) -> AbstractContextManager[None]:
        if self._name not in sys.modules:
            return nullcontext()
        off: AbstractContextManager[None] = _interface(self._name, "_disable")()
        return off

    def __getattr__(self, name: str) -> Any:
        return _interface(self._name, name)


class _CompilerNotLoaded:
    """Stands for the compiler until something imports it, or asks it for more than to be off."""

    compiled_autograd = _NoCompiledAutograd()

    def __getattr__(self, name: str) -> Any:
        return _interface(_COMPILER, name)


def put_off_compiler() -> None:
    """Lets gradients do without the compiler: they load it only to tell it that it is not wanted.

    Whatever else asks for it gets it; importing it puts the real one in its place.
    """
    name = _COMPILER.partition(".")[2]
    if _COMPILER not in sys.modules and name not in vars(torch):
        setattr(torch, name, _CompilerNotLoaded())


def compile_graph(graph: fx.GraphModule, tensors: list[Tensor]) -> Callable[..., Any]:
    """Code that TorchInductor makes of a graph."""
    compiled: Callable[..., Any] = _interface("torch._inductor", "compile")(graph, tensors)
    return compiled


def is_view(node: fx.Node) -> bool:
    """Whether a node of a graph is a view of its first argument, or one of several views."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        found.alias_info is not None and not found.alias_info.is_write for found in schema.returns
    )


def changes_tensors(target: Any) -> bool:
    """Whether one of torch's operators changes what it is given."""
    return bool(target._schema.is_mutable)


def changes_of(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How often each tensor was changed in place; 0 where torch does not count."""
    return {
        name: 0 if tensor.is_inference() else getattr(tensor, "_version", 0)
        for name, tensor in tensors.items()
    }


def operator_name(value: Any) -> str | None:
    """What one of torch's operators is called, e.g. `aten::add.Tensor`; None if it is none."""
    return str(value.name()) if isinstance(value, torch._ops.OpOverload) else None  # type: ignore[no-untyped-call]


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for one client's of several, within `vmap`."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def nothing_is_mapped() -> bool:
    """Whether no mapping and no gradient is under way; False if nobody knows."""
    level = getattr(torch._C._functorch, "maybe_current_level", lambda: 0)
    return not torch.is_grad_enabled() and level() is None


@contextmanager
def one_client() -> Iterator[None]:
    """Within, clients are played one at a time: gradients are taken in the quickest way for one."""
    token = UNMAPPED.set(nothing_is_mapped)
    try:
        yield
    finally:
        UNMAPPED.reset(token)


def map_rows(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """`vmap` of a function of flat tensors, over the first axis of all of them.

    Torch's own takes ten times as long, half a millisecond in every round, to find out that they
    are flat.
    """
    if can_leave_mappings():
        return _map_rows(fn, tensors)
    return vmap(fn, randomness="different")(*tensors)


def _map_rows(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    parts, size = torch._C._functorch, len(tensors[0])
    level = parts._vmap_increment_nesting(size, "different")
    try:
        found = fn(*[parts._add_batch_dim(tensor, 0, level) for tensor in tensors])
        return [parts._remove_batch_dim(tensor, level, size, 0) for tensor in found]
    finally:
        parts._vmap_decrement_nesting()


def leave_mappings(loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """As `left_by_torch`, without what torch does for functions of any kind: a millisecond."""
    parts: Any = torch._C._functorch
    around = parts.peek_interpreter_stack()
    if torch.is_grad_enabled() or (around and around.key() != parts.TransformType.Vmap):
        return left_by_torch(loop, tensors)
    if around is None:
        return RUNNER.get()(loop, tensors)
    level, size = around.level(), parts.CVmapInterpreterPtr(around).batchSize()
    bare, axes = zip(*[parts._unwrap_batched(tensor, level) for tensor in tensors], strict=True)
    mapped = any(axis is not None for axis in axes)
    layer = parts.pop_dynamic_layer_stack()
    try:
        outer, moved = with_mapping(loop, bare, axes, size) if mapped else (loop, bare)
        found = leave_mappings(outer, moved)
    finally:
        parts.push_dynamic_layer_stack(layer)
    return [parts._add_batch_dim(tensor, 0, level) for tensor in found] if mapped else found


@functools.cache
def can_leave_mappings() -> bool:
    """Whether this release of torch has what the shorter ways are made of, and they do the same."""
    return works(_leave_some_mappings, "clients are mapped as torch does it, which takes longer")


def _leave_some_mappings() -> None:
    x, y, rest = torch.arange(6.0).reshape(2, 3), torch.tensor([10.0, 20.0]), [torch.zeros(1)] * 4
    loop, seen = Loop(lambda *given: {}, {"x": None}, {"y": None}, (), 1, None), []

    def run(loop: Loop, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        seen.append((loop.axes, [t.shape for t in tensors]))
        return [tensors[0] + 1]

    def mapped_twice(leave: Any) -> Callable[..., Sequence[Tensor]]:
        return lambda a, b: [vmap(lambda one: leave(loop, (one, b, *rest))[0])(a)]

    token = RUNNER.set(run)
    try:
        with torch.no_grad():
            (expected,) = vmap(mapped_twice(left_by_torch))(x, y)
            (found,) = _map_rows(mapped_twice(leave_mappings), [x, y])
    finally:
        RUNNER.reset(token)
    if not torch.equal(found, expected) or seen[0] != seen[1]:
        raise RuntimeError("mappings have other parts")


@functools.cache
def has_compiler() -> bool:
    """Whether this release of torch has the compiler that is used here."""
    return works(
        lambda: _interface("torch._inductor", "compile"), "steps are traced, and not compiled"
    )


def works(trial: Callable[[], Any], instead: str) -> bool:
    """Whether what torch changed does not matter here; if it does, people are told what is done."""
    try:
        trial()
    except Exception as error:  # a changed interface may fail in any way
        log.warning(
            "torch %s has changed what fast steps are made with (%s): %s; results are the same",
            torch.__version__,
            str(error).strip().partition("\n")[0] or type(error).__name__,
            instead,
        )
        return False
    return True


try:
    from torch.utils._python_dispatch import TorchDispatchMode as _Mode
except ImportError:

    class _Mode:  # type: ignore[no-redef]
        """Sees no operators: whoever counts with it, counts none."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None: ...


class OperatorMode(_Mode):  # type: ignore[no-untyped-call]
    """Within, `__torch_dispatch__` sees every operator, below gradients and mappings."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Says no: the compiler would be loaded, to be told to stay away."""
        return False
