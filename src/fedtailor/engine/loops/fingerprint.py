"""What a function does, as a short text that is the same in every process.

It stands for the code of a function and of all that it calls, and for every value that these close
over or find in their modules. A traced step may be used again by another process if the text is the
same; whatever cannot be told has none, and is traced anew.

`identity` answers a smaller question, in microseconds: are two functions of this process the same?
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core.network.made import ONE_DRAWS
from fedtailor.core.objectives import UNMAPPED
from fedtailor.core.steps.run_numbers import RUN_NUMBERS
from fedtailor.engine.loops.torch_internals import is_mapped, operator_name

LARGE = 16 << 20  # bytes of a tensor from which on looking at them takes longer than tracing
OURS = __name__.partition(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_NUMBERS: tuple[Any, ...] = (int, float, complex, str, bytes)  # what others may be made of
_WORDS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_IN_C = (
    BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType,
    MethodWrapperType, WrapperDescriptorType,
)  # fmt: skip
_FIELD = "_tuplegetter"  # of a named tuple
_OF_EVERY_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__abstractmethods__", "_abc_impl",
    "__firstlineno__", "__static_attributes__", "__annotations__", "__annotate_func__",
    "__annotations_cache__", "__orig_bases__", "__parameters__",
}  # fmt: skip


class CannotTell(TypeError):
    """Something has no description that another process would find the same."""


def fingerprint(*values: Any) -> str:
    """The text for functions and what belongs to them.

    Of network parameters the shape counts alone: whoever calls a network hands them in.

    Raises:
      CannotTell: there is something among them that only this process knows.

    Example:
      >>> def times(k):
      ...     return lambda x: k * x
      >>> fingerprint(times(2)) == fingerprint(times(2))
      True
      >>> fingerprint(times(2)) == fingerprint(times(3))
      False
    """
    walk = _Walk()
    walk.add(values)
    return walk.hash.hexdigest()


def environment_fingerprint(device: torch.device) -> str:
    """The same for this package's sources, all installed packages, Python and the device."""
    where = (
        (torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
        if device.type == "cuda"
        else device.type
    )
    told = repr((_installed(), sys.version, torch.version.__version__, where))
    return hashlib.blake2b(told.encode(), digest_size=12).hexdigest()


@functools.cache
def _installed() -> str:
    """This package's sources, and which others there are; read once, whatever the device."""
    here = hashlib.blake2b(digest_size=20)
    package = _package()
    for file in sorted(package.rglob("*.py")):
        here.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    found = {entry.name for path in _libraries() for entry in _entries(path)}
    here.update(repr(sorted(found)).encode())
    return here.hexdigest()


def _package() -> Path:
    return Path(sys.modules[OURS].__file__ or "").resolve().parent


def _entries(path: Path) -> Iterator[Path]:
    return path.glob("*.dist-info") if path.is_dir() else iter(())


@functools.cache
def _libraries() -> tuple[Path, ...]:
    """Where installed packages are; what is there changes with its version."""
    named = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    listed = (p for p in sys.path if Path(p).name in ("site-packages", "dist-packages"))
    return tuple(sorted({Path(p).resolve() for p in (*named, *listed)}))


@functools.cache
def _is_library(file: str) -> bool:
    """Whether a file is Python's or an installed package's, and not this one's."""
    if file.startswith("<frozen"):
        return True
    path = Path(file).resolve()
    if path.is_relative_to(_package()):
        return False
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    return any(path.is_relative_to(place) for place in (stdlib, *_libraries()))


def _is_library_module(name: str) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return name != "__main__"
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # what C calls a module may be part of one
        parent = name.rpartition(".")[0]
        return bool(parent) and _is_library_module(parent)
    return _is_library(file)


class _Walk:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=20)
        self.seen: dict[int, int] = {}
        self.held: list[Any] = []  # an address tells things apart only while they live

    def say(self, *words: Any) -> None:
        for word in words:
            text = str(word).encode(errors="surrogatepass")
            self.hash.update(len(text).to_bytes(8, "little") + text)

    def add(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.say(type(value).__name__, repr(value))
        elif isinstance(value, _WORDS):
            self.say(type(value).__name__, value)
        elif id(value) in self.seen:
            self.say("seen", self.seen[id(value)])
        else:
            self.seen[id(value)] = len(self.seen)
            self.held.append(value)
            self.add(type(value))
            self._new(value)

    def _new(self, value: Any) -> None:
        if isinstance(value, (Tensor, np.ndarray)):
            self._array(value)
        elif isinstance(value, enum.Enum):
            self.say(value.name)
        elif isinstance(value, _NUMBERS):  # of a class of its own
            self.say(*(repr(kind(value)) for kind in _NUMBERS if isinstance(value, kind)))
        elif isinstance(value, CodeType):
            self._code(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self.add((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, ModuleType):
            self.say(value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, (dict, MappingProxyType)):
            self._mapping(value)
        elif isinstance(value, (tuple, list)):
            self.say(len(value))
            for part in value:
                self.add(part)
        elif isinstance(value, (set, frozenset)):
            self._set(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__)
        elif isinstance(value, property):
            self.add((value.fget, value.fset, value.fdel))
        elif isinstance(value, _IN_C):
            self._in_c(value)
        else:
            self._object(value)

    def _array(self, value: Any) -> None:
        self.say(tuple(value.shape), value.dtype)
        if isinstance(value, Tensor):
            if is_mapped(value) or value.layout is not torch.strided:
                raise CannotTell("a client's tensor")
            self.say(value.device, value.stride(), value.requires_grad)
            if isinstance(value, nn.Parameter):
                return
            if value.numel() * value.element_size() > LARGE:
                raise CannotTell(f"a tensor of {tuple(value.shape)}")
            value = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        if value.dtype.hasobject or value.nbytes > LARGE:
            raise CannotTell(f"an array of {value.shape}")
        self.hash.update(np.ascontiguousarray(value).tobytes())

    def _code(self, code: CodeType) -> None:
        self.say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        self.say(code.co_flags, code.co_exceptiontable.hex())
        for constant in code.co_consts:
            self.add(constant)

    def _function(self, fn: FunctionType) -> None:
        self.say(fn.__module__, fn.__qualname__)
        for cell in fn.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # a name that was never given a value
                self.say("nothing")
        self.add((fn.__defaults__, fn.__kwdefaults__))
        if not _is_library(fn.__code__.co_filename):
            self._code(fn.__code__)
            self._looked_up(fn)

    def _looked_up(self, fn: FunctionType) -> None:
        """What the function finds in its module under the names that it uses."""
        names = sorted(set(_names(fn.__code__)))
        for name in names:
            if name not in fn.__globals__:
                continue
            value = fn.__globals__[name]
            self.say(name)
            self.add(value)
            if isinstance(value, ModuleType) and not _is_library_module(value.__name__):
                for part in names:  # module.part, as far as names tell
                    if part in vars(value):
                        self.say(part)
                        self.add(vars(value)[part])

    def _class(self, kind: type) -> None:
        self.say(kind.__module__, kind.__qualname__)
        if _is_library_module(kind.__module__):
            return
        for parent in kind.__bases__:
            self.add(parent)
        self._mapping({k: v for k, v in vars(kind).items() if k not in _OF_EVERY_CLASS})

    def _mapping(self, values: Mapping[Any, Any]) -> None:
        self.say(len(values))
        for key, value in values.items():
            self.add(key)
            self.add(value)

    def _set(self, values: Any) -> None:
        if not all(type(value) in _PLAIN for value in values):
            raise CannotTell("a set of other things than words and numbers")
        self.say(*sorted(repr(value) for value in values))

    def _in_c(self, value: Any) -> None:
        self.say(value.__qualname__)
        owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
        if isinstance(owner, ModuleType):
            module = owner.__name__
        else:
            self.add(owner)
            module = getattr(value, "__module__", None) or "builtins"
        if not _is_library_module(module):
            raise CannotTell(f"{value.__qualname__}, whose code is not Python's")

    def _object(self, value: Any) -> None:
        """A library's operator by its name, anything else by what it holds."""
        operator = operator_name(value)
        if operator is not None:
            self.say(operator)
            return
        if type(value).__qualname__ == _FIELD:  # its class has the names
            return
        # what the first holds is among a step's arguments; nobody traces where the second holds
        # anything; the third is a lock, and who waits for whom changes no result
        if value is RUN_NUMBERS or value is UNMAPPED or value is ONE_DRAWS:
            return
        if hasattr(value, "cache_info"):  # what `functools.cache` makes of a function
            self.add(value.__wrapped__)
            return
        slots = [
            name
            for kind in type(value).__mro__
            for name in _as_tuple(vars(kind).get("__slots__", ()))
            if name not in ("__dict__", "__weakref__")
        ]
        if not slots and not hasattr(value, "__dict__"):
            raise CannotTell(f"a {type(value).__qualname__}")
        for name in slots:
            if hasattr(value, name):
                self.say(name)
                self.add(getattr(value, name))
        self._mapping(getattr(value, "__dict__", {}))


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _names(code: CodeType) -> Iterator[str]:
    """All names that code and the functions within it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
