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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx

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
