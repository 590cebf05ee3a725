"""Traced steps on disk: what one process has traced, the next one reads.

A file has the name of its fingerprint, so one that is there is right: changed code, another shape,
another release of anything has another name. It holds names of torch's operators and of this
package's, numbers and tensors, and nothing that could run; one that cannot be read is made anew.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedtailor.core.inputs.files import write_atomically
from fedtailor.core.steps.scan import Loop, Notes
from fedtailor.engine.kernels import convolutions, losses, norms  # noqa: F401  of operators
from fedtailor.engine.kernels.support import may_round
from fedtailor.engine.loops.fingerprint import CannotTell, environment_fingerprint, fingerprint
from fedtailor.engine.loops.in_place import Update
from fedtailor.engine.loops.template import Before, Line, NotAlike, PerClient, Template
from fedtailor.engine.loops.torch_internals import operator_name
from fedtailor.engine.loops.tracing import Program, cache_folder

log = logging.getLogger("fedtailor")

KEPT = 400  # files per environment; a file has about 50 kB
DAYS = 30  # after which programs of an environment that nobody used are removed
_SUFFIX = ".safetensors"
_LIBRARIES = ("aten", "prims", "fedtailor")
_WORDS = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_ATTENTION = ("flash", "mem_efficient", "math")  # ways that torch may choose from
_UPDATES = ("baddbmm_", "addmm_")


class CannotSave(ValueError):
    """A program has something that no file can have."""


class ProgramFiles:
    """A folder of traced steps for one device; what is wrong with it stops nobody.

    Example:
      >>> files = ProgramFiles(torch.device("cpu"))
      >>> files.folder.parent.name
      'programs'
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def folder(self) -> Path:
        """Found out when it is needed, which takes a while: runs of plain steps need none."""
        return cache_folder() / "programs" / environment_fingerprint(self._device)

    def found_or_made(
        self,
        known_by: Sequence[Any],
        store: Sequence[Tensor],
        notes: Notes,
        make: Callable[[], Template],
    ) -> tuple[Template, bool]:
        """A step from its file, or newly made and then filed; and whether it was there.

        Args:
          known_by: all that decides what the step does.
          store: tensors that it reads and whose numbers do not matter.
          notes: what a step leaves when it is traced; filled from the file.
          make: traces it.
        """
        try:
            shapes = [(tuple(t.shape), t.stride(), t.dtype, t.device) for t in store]
            path = self.folder / f"{fingerprint(*known_by, shapes, _modes())}{_SUFFIX}"
        except (CannotTell, RecursionError) as reason:
            log.debug("a step is traced in every process: %s", reason)
            return make(), False
        found = _read(path, store, notes)
        if found is not None:
            return found, True
        made = make()
        try:
            raw = _as_bytes(made, store, notes)
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(path, raw)
            self._tidy()
        except (CannotSave, OSError) as reason:
            log.debug("a traced step is not kept: %s", reason)
        return made, False

    def _tidy(self) -> None:
        files = sorted(self.folder.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT]:
            file.unlink(missing_ok=True)
        for other in self.folder.parent.iterdir():
            if other.is_dir() and time.time() - other.stat().st_mtime > DAYS * 86_400:
                for file in other.glob(f"*{_SUFFIX}"):
                    file.unlink(missing_ok=True)
                other.rmdir()


def step_known_by(loop: Loop, tensors: Sequence[Tensor], way: tuple[Any, ...]) -> list[Any]:
    """All that decides what a step of a loop does with such tensors, if it is traced that way."""
    shapes = [(tuple(t.shape), t.stride(), t.dtype, t.device) for t in tensors]
    return [loop.step, str(loop.carry), str(loop.given), loop.axes, shapes, way]


def kept_program(
    files: ProgramFiles, loop: Loop, known_by: Sequence[Any], trace: Callable[[], Program]
) -> Program:
    """A step of a fixed number of clients, from its file or traced."""
    made: list[Program] = []

    def make() -> Template:
        made.append(trace())
        return Template.fixed(made[0])

    began = time.perf_counter()
    try:
        template, there = files.found_or_made(known_by, loop.store, loop.notes, make)
    except NotAlike as reason:  # only of what was just traced
        log.debug("a traced step is not kept: %s", reason)
        return made[0]
    if not there:
        return made[0]
    found = template.written()
    return replace(found, seconds=time.perf_counter() - began)


def _modes() -> tuple[Any, ...]:
    """What torch is set to, as far as operators depend on it."""
    autocast = [(kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")]
    attention = [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in _ATTENTION]
    return (
        torch.get_default_dtype(),
        may_round(),
        attention,
        torch.are_deterministic_algorithms_enabled(),
        autocast,
    )


def _as_bytes(template: Template, store: Sequence[Tensor], notes: Notes) -> bytes:
    shared = {id(t): i for i, t in enumerate(store)}
    tensors: dict[str, Tensor] = {}
    constants: dict[str, dict[str, Any]] = {}
    for name, value in template.constants.items():
        if id(value) in shared:
            constants[name] = {"store": shared[id(value)]}
        elif isinstance(value, nn.Parameter) or not value.is_contiguous():
            raise CannotSave(f"{name} is a network's own parameter, or no plain tensor")
        else:
            tensors[name] = value.detach().cpu().clone()
            constants[name] = {"device": str(value.device)}
    told = {
        "constants": constants,
        "lines": [
            [line.op, line.name, _target(line), _told(line.args), _told(line.kwargs)]
            for line in template.lines
        ],
        "updates": [[u.leaf, u.name, u.scale] for u in template.updates],
        "notes": notes,
    }
    return save(tensors, {"program": json.dumps(told)})


def _target(line: Line) -> str:
    if line.op != "call_function":
        return str(line.target)
    if line.target is operator.getitem:
        return "getitem"
    name = operator_name(line.target)
    if name is None:
        raise CannotSave(f"{line.target} is no operator")
    return name


def _told(value: Any) -> Any:
    """An argument in JSON's words."""
    if isinstance(value, PerClient):
        return {"each": value.each}
    if isinstance(value, Before):
        return {"before": value.number}
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    if isinstance(value, dict):
        return {"dict": {str(k): _told(v) for k, v in value.items()}}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _WORDS.items():
        if isinstance(value, kind):
            return {name: str(value).removeprefix("torch.")}
    raise CannotSave(f"{value!r} is neither a number nor a word")


def _read(path: Path, store: Sequence[Tensor], notes: Notes) -> Template | None:
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()["program"])
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        constants = {
            str(name): store[where["store"]] if "store" in where else kept[name].to(where["device"])
            for name, where in told["constants"].items()
        }
        lines = tuple(
            Line(op, name, _operator(op, target), _meant(args), _meant(kwargs))
            for op, name, target, args, kwargs in told["lines"]
        )
        updates = tuple(Update(int(i), _update(name), float(k)) for i, name, k in told["updates"])
        left = {str(k): int(v) for k, v in told["notes"].items()}
        os.utime(path.parent)  # still in use
    except FileNotFoundError:
        return None
    except (
        OSError, SafetensorError, ValueError, TypeError, KeyError, IndexError, AttributeError,
        RuntimeError,
    ) as reason:  # fmt: skip
        log.debug("%s cannot be read and is made anew: %s", path.name, reason)
        return None
    notes.update(left)
    return Template(constants, lines, updates)


def _operator(op: str, target: str) -> Any:
    if op != "call_function":
        if op not in ("placeholder", "get_attr", "output") or not target.isidentifier():
            raise ValueError(f"{op} {target}")
        return target
    if target == "getitem":
        return operator.getitem
    library, _, name = target.partition("::")
    if library not in _LIBRARIES:
        raise ValueError(f"{target} is no operator of a known library")
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, library), packet), overload or "default")


def _update(name: str) -> str:
    if name not in _UPDATES:
        raise ValueError(f"{name} is no update")
    return name


def _meant(told: Any) -> Any:
    if isinstance(told, list):
        return [_meant(part) for part in told]
    if not isinstance(told, dict):
        return told
    (kind, value), *_ = told.items()
    if kind == "each":
        return PerClient(int(value))
    if kind == "before":
        return Before(int(value))
    if kind == "dict":
        return {k: _meant(v) for k, v in value.items()}
    if kind == "device":
        return torch.device(value)
    found = getattr(torch, str(value))
    if not isinstance(found, _WORDS[kind]):
        raise ValueError(f"{value} is no {kind}")
    return found
