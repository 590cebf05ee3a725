"""A run's state on disk: safetensors and JSON, written so that a crash never leaves half of it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedtailor.core import __version__, tree
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import replacing, sha256_of, sync, write_atomically
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.core.tree import Tree
from fedtailor.engine import ClientStates, Simulation
from fedtailor.results.folder import CONFIG, LATEST

# whose checkpoints can be read, if the method still keeps its states in the same way
READABLE_VERSIONS = ("0.1.0", "0.2.0", __version__)


@contextmanager
def reading_plan(path: Path, what: str) -> Iterator[Any]:
    """What a folder was made with, for whoever makes a plan of it within.

    Raises:
      BadInput: it is broken, or of a version that is not read here.
    """
    try:
        kept = parse_json(path.read_text(encoding="utf-8"))
        yield kept
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise BadInput(f"'{path}' is broken ({error}): start the {what} anew") from None
    if kept.get("version") not in READABLE_VERSIONS:
        raise BadInput(f"'{path}' was made by FedTailor {kept.get('version')}: use that version")


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the host, in plain memory as safetensors wants it: no views, no shared storage."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Puts tensors at `path` as safetensors, wholly or not at all."""
    _write(path, _copied(tensors))


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with replacing(path) as part:
        try:
            save_file(tensors, part)
        except SafetensorError as error:  # it has only words for what the disk said
            number = ENOSPC if f"os error {ENOSPC}" in str(error) else EIO
            raise OSError(number, os.strerror(number), str(path)) from None
        sync(part)


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


class OtherState(BadInput):
    """A checkpoint whose states are laid out in another way than the run's."""


class Snapshot(NamedTuple):
    """A simulation's state at a moment, copied: rounds may go on while it is written."""

    round: int
    chunk: int
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, simulation: Simulation) -> Snapshot:
        """Of now."""
        tensors = tree.flatten({"server": simulation.server})
        for number, (ids, rows) in enumerate(simulation.client_states()):
            met = simulation.groups[number].rows(ids)
            tensors |= tree.flatten({f"group{number}": {"met": met, "clients": rows}})
        return cls(simulation.round, simulation.chunk, _copied(tensors))


def save_checkpoint(folder: Path, snapshot: Snapshot, meta: dict[str, Any]) -> None:
    """Writes a simulation's state and what else is needed to go on.

    The tensors get a file of their own per checkpoint; the JSON that names it is replaced last, so
    whatever moment the process dies at, the old or the new checkpoint is whole.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"state-{snapshot.round:06d}.safetensors"
    _write(path, snapshot.tensors)
    latest = {
        "round": snapshot.round,
        "chunk": snapshot.chunk,
        "file": path.name,
        "sha256": sha256_of(path),
        **meta,
    }
    write_atomically(folder / LATEST, json.dumps(latest, indent=1))
    for old in folder.glob("state-*"):
        if old.name != path.name:
            old.unlink()


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """What the latest checkpoint says of itself.

    Raises:
      BadInput: there is none, or it is broken.
    """
    path = folder / LATEST
    try:
        meta = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        run = folder.parent
        again = shlex.join(["--config", f"{run / CONFIG}", "--out", f"{run}"])
        raise BadInput(
            f"'{run}' has no checkpoint: nothing to resume; start it anew, as with "
            f"fedtailor run {again} --overwrite"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"'{path}' cannot be read ({error}): the run cannot be resumed") from None
    if not isinstance(meta, dict) or not {"round", "chunk", "file", "sha256"} <= meta.keys():
        raise BadInput(f"'{path}' is no checkpoint of FedTailor: the run cannot be resumed")
    return meta


def _shapes(values: Tree) -> dict[str, Any]:
    return {k: (tuple(v.shape), v.dtype) for k, v in tree.flatten(values).items()}


def restore_checkpoint(folder: Path, simulation: Simulation) -> dict[str, Any]:
    """Puts the simulation where the latest checkpoint left it; returns what else was saved.

    Raises:
      BadInput: the checkpoint is broken or belongs to another kind of run.
    """
    meta = read_checkpoint(folder)
    path = folder / Path(str(meta["file"])).name  # a name, never a path that leads elsewhere
    if not path.exists() or sha256_of(path) != meta["sha256"]:
        raise BadInput(f"checkpoint '{path}' is missing or changed: the run cannot be resumed")
    tensors = load_tensors(path)
    device = simulation.device
    found = tree.unflatten(tensors)
    if _shapes(found.get("server", {})) != _shapes(simulation.server):
        raise OtherState(f"checkpoint '{path}' holds another server state: was the method changed?")
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
            raise OtherState(
                f"checkpoint '{path}' holds other client states: was the method changed?"
            )
        states.append(ClientStates(simulation.groups[number].members[kept["met"]], clients))
    simulation.clients.restore_states(states)
    simulation.round = int(meta["round"])
    simulation.chunk = int(meta["chunk"])
    torch.manual_seed(0)  # nothing may draw from it; if something does, it is the same each time
    return meta
