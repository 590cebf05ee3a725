"""A run's state on disk: safetensors and JSON, written so that a crash never leaves half of it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.errors import BadInput
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientStates, Simulation

LATEST = "latest.json"
PART = ".part"  # how the names of half-written files end


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place in the end, or goes where that fails.

    Its name is its own: of two processes that write the same file each puts a whole one there.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # what went wrong is to be told, not this
            part.unlink()
        raise


def remove_parts(folder: Path) -> None:
    """Removes what a process that was killed had half written into a run's folder.

    Only for whoever holds the folder, and before the run has a result: others write there later.
    """
    for part in folder.rglob(f"*{PART}"):
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Puts a text (or bytes) at `path`, wholly or not at all."""
    with _part_of(path) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Puts tensors at `path` as safetensors, wholly or not at all."""
    # safetensors wants plain memory: no views, no shared storage
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    with _part_of(path) as part:
        save_file(plain, part)
        sync(part)


def sync(path: Path) -> None:
    """Sees that a file is on the disk before anything is written that relies on it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
      BadInput: the file is missing or broken.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise BadInput(f"'{path}' does not exist: the run may not have got that far") from None
    except (SafetensorError, OSError) as error:
        raise BadInput(f"'{path}' is broken ({error}): it cannot be used") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(folder: Path, simulation: Simulation, meta: dict[str, Any]) -> None:
    """Writes the simulation's state and what else is needed to go on.

    The tensors get a file of their own per checkpoint; the JSON that names it is replaced last, so
    whatever moment the process dies at, the old or the new checkpoint is whole.
    """
    folder.mkdir(exist_ok=True)
    tensors = tree.flatten({"server": simulation.server})
    for number, (ids, rows) in enumerate(simulation.client_states()):
        met = simulation.groups[number].rows(ids)
        tensors |= tree.flatten({f"group{number}": {"met": met, "clients": rows}})
    path = folder / f"state-{simulation.round:06d}.safetensors"
    save_tensors(path, tensors)
    latest = {
        "round": simulation.round,
        "chunk": simulation.chunk,
        "file": path.name,
        "sha256": _sha256(path),
        **meta,
    }
    write_atomically(folder / LATEST, json.dumps(latest, indent=1))
    for old in folder.glob("state-*"):
        if old.name != path.name:
            old.unlink()


def read_meta(folder: Path) -> dict[str, Any]:
    """What the latest checkpoint says of itself.

    Raises:
      BadInput: there is none, or it is broken.
    """
    path = folder / LATEST
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"'{folder.parent}' has no checkpoint: nothing to resume") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): the run cannot be resumed") from None
    if not isinstance(meta, dict) or not {"round", "chunk", "file", "sha256"} <= meta.keys():
        raise BadInput(f"'{path}' is no checkpoint of FedTailor: the run cannot be resumed")
    return meta


def _shapes(values: Tree) -> dict[str, Any]:
    return {k: (tuple(v.shape), v.dtype) for k, v in tree.flatten(values).items()}


def restore(folder: Path, simulation: Simulation) -> dict[str, Any]:
    """Puts the simulation where the latest checkpoint left it; returns what else was saved.

    Raises:
      BadInput: the checkpoint is broken or belongs to another kind of run.
    """
    meta = read_meta(folder)
    path = folder / Path(str(meta["file"])).name  # a name, never a path that leads elsewhere
    if not path.exists() or _sha256(path) != meta["sha256"]:
        raise BadInput(f"checkpoint '{path}' is missing or changed: the run cannot be resumed")
    tensors = load_tensors(path)
    device = simulation.device
    found = tree.unflatten(tensors)
    if _shapes(found.get("server", {})) != _shapes(simulation.server):
        raise BadInput(f"checkpoint '{path}' holds another server state: was the method changed?")
    simulation.server = tree.map(lambda p: p.to(device), found.get("server", {}))
    states = []
    for number, like in enumerate(simulation.clients.like()):
        kept = found.get(f"group{number}", {})
        clients = kept.get("clients", {})
        met = len(kept.get("met", ()))
        expected = {
            k: (shape if k.endswith("/") else (met, *shape[1:]), kind)
            for k, (shape, kind) in _shapes(like).items()
        }
        if _shapes(clients) != expected:
            raise BadInput(
                f"checkpoint '{path}' holds other client states: was the method changed?"
            )
        states.append(ClientStates(simulation.groups[number].members[kept["met"]], clients))
    simulation.clients.restore_states(states)
    simulation.round = int(meta["round"])
    simulation.chunk = int(meta["chunk"])
    torch.manual_seed(0)  # nothing may draw from it; if something does, it is the same each time
    return meta
