"""A partition on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.files import replacing, sync
from fedtailor.core.inputs.plain_text import parse_json
from fedtailor.partition.draws import Rows, sorted_rows
from fedtailor.partition.parts import PARTS, Partition

_FORMAT = "fedtailor-partition-1"


def save_partition(partition: Partition, path: Path) -> None:
    """Writes an npz file of plain arrays; a file of that name is replaced in one step."""
    about = {
        "format": _FORMAT,
        "names": partition.names,
        "scheme": partition.scheme,
        "seed": partition.seed,
    }
    arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for part in PARTS:
        rows: tuple[Rows, ...] = getattr(partition, part)
        arrays[part] = np.concatenate([np.empty(0, np.int64), *rows])
        arrays[f"{part}_ends"] = np.cumsum([r.size for r in rows], dtype=np.int64)
    try:
        with replacing(path) as made:
            with made.open("wb") as file:
                np.savez_compressed(file, **arrays)
            sync(made)
    except OSError as error:
        raise BadInput(
            f"cannot write the partition '{path}' ({error.strerror}): choose a folder that exists "
            "and may be written to"
        ) from error


def load_partition(path: Path, *, rows: int) -> Partition:
    """Reads what `save_partition` wrote, for data with that many rows.

    Raises:
      BadInput: the file is missing, broken, or not a partition of these data.
    """
    try:
        # numpy would leave a broken file open
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            partition = _read(file)
    except OSError as error:
        cure = (
            f"give a file, e.g. '{path / 'partition.npz'}'" if path.is_dir() else "check the path"
        )
        raise BadInput(
            f"cannot read the partition '{path}' ({error.strerror or error}): {cure}"
        ) from error
    except (
        Exception
    ) as error:  # numpy, zipfile, zlib and json each have their own for foreign bytes
        raise BadInput(
            f"'{path}' is not an intact partition file: make it anew with the command that wrote it"
        ) from error
    partition.check(rows, f"partition '{path}'")
    return partition


def _read(file: Any) -> Partition:
    """The content as it is; any exception means that the file is not one of ours."""
    about = parse_json(file["about"].tobytes().decode())
    names = about["names"]
    if (
        about["format"] != _FORMAT
        or not isinstance(names, list)
        or not all(isinstance(name, str) and name for name in names)
        or not 0 < len(set(names)) == len(names)
    ):
        raise ValueError("not this format, or names that are not distinct texts")
    parts = {}
    for part in PARTS:
        flat, ends = file[part], file[f"{part}_ends"]
        if (
            any(a.ndim != 1 or a.dtype != np.int64 for a in (flat, ends))
            or ends.size != len(names)
            or (np.diff(ends, prepend=0) < 0).any()
            or ends[-1] != flat.size
        ):
            raise ValueError(f"rows and offsets of {part} do not fit together")
        parts[part] = tuple(sorted_rows(np.split(flat, ends[:-1])))
    return Partition(tuple(names), **parts, scheme=str(about["scheme"]), seed=int(about["seed"]))
