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
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import vmap

log = logging.getLogger("fedtailor")


def _interface(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_COMPILER = "torch._dynamo"  # also what tracing needs; it takes seconds to load


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


def load_compiler_meanwhile() -> Callable[[], None]:
    """Begins to load it in a thread, and returns what waits for that.

    Whatever goes wrong is left to whoever needs it, who tries again and tells.
    """

    def load() -> None:
        with suppress(Exception):
            importlib.import_module(_COMPILER)

    thread = threading.Thread(target=load, name="fedtailor-compiler", daemon=True)
    thread.start()
    return thread.join


def make_graph(fn: Callable[..., Any], tensors: list[Tensor]) -> fx.GraphModule:
    """The operators that reach the device when `fn` is called with `tensors`."""
    make_fx = _interface("torch.fx.experimental.proxy_tensor", "make_fx")
    with _short_notes():
        graph: fx.GraphModule = make_fx(fn)(*tensors)
    return graph


@contextmanager
def _short_notes() -> Iterator[None]:
    """Within, torch notes of a traced value its shape, strides, type and device, and no more.

    It would make each note in a new mode, which reads the whole call stack, and describe the value
    a second time: that is more than half of the time that tracing takes.
    """
    tracer = importlib.import_module("torch.fx.experimental.proxy_tensor")
    names = "extract_val", "set_meta"
    real = [getattr(tracer, name, None) for name in names]
    if None in real:
        yield  # a release that does it in another way
        return
    extract: Any = real[0]

    def note(value: Any, *args: Any, **kwargs: Any) -> Any:
        if type(value) is not Tensor or value.layout != torch.strided:
            return extract(value, *args, **kwargs)
        return _noted(value.shape, value.stride(), value.dtype, value.device)

    def attach(proxy: Any, value: Any) -> Any:
        proxy.node.meta["val"] = note(value)
        return proxy

    try:
        for name, ours in zip(names, (note, attach), strict=True):
            setattr(tracer, name, ours)
        yield
    finally:
        for name, theirs in zip(names, real, strict=True):
            setattr(tracer, name, theirs)


@functools.lru_cache(4096)
def _noted(shape: Any, strides: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A tensor without contents, the same for all values of a form: nobody changes it."""
    with _no_contents():
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)


@functools.cache
def _no_contents() -> Any:
    return _interface("torch._subclasses.fake_tensor", "FakeTensorMode")(
        allow_fallback_kernels=True
    )


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


def operator_name(value: Any) -> str | None:
    """What one of torch's operators is called, e.g. `aten::add.Tensor`; None if it is none."""
    return str(value.name()) if isinstance(value, torch._ops.OpOverload) else None  # type: ignore[no-untyped-call]


def is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor stands for one client's of several, within `vmap`."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


@functools.cache
def can_trace() -> bool:
    """Whether steps can be traced with this release of torch; tried out once, on a small one."""
    return _works(_try_tracing, "loops over batches run step by step, which is slower")


@functools.cache
def has_compiler() -> bool:
    """Whether this release of torch has the compiler that is used here."""
    return _works(
        lambda: _interface("torch._inductor", "compile"), "steps are traced, and not compiled"
    )


def _works(trial: Callable[[], Any], instead: str) -> bool:
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


def _try_tracing() -> None:
    """A mapped step is traced, and its tensors are told from others; fails if that fails."""
    seen: list[bool] = []

    def step(x: Tensor) -> Tensor:
        seen.append(is_mapped(x))
        return x * 2 + 1

    example = torch.arange(3.0)
    graph = make_graph(lambda x: [vmap(step)(x)], [example.clone()])
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    if torch.ops.aten.add.Tensor not in targets or not torch.equal(
        graph(example)[0], step(example)
    ):
        raise RuntimeError("a traced step does something else")
    if seen != [True, False]:
        raise RuntimeError("mapped tensors cannot be told from others")


try:
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
except ImportError:

    class TorchDispatchMode:  # type: ignore[no-redef]
        """Sees no operators: whoever counts with it, counts none."""

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None: ...
