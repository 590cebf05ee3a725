"""CIFAR-10 and CIFAR-100 in their python form: pickled batches, in a folder or a tar archive.

A pickle can name any function to be called, so the batches are read by an unpickler that knows
the five names such a batch needs and refuses all others. Archives are read member by member
from the stream; nothing is extracted to disk.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.wording import listed, one_line, quoted, reason

LARGEST_BATCH = 400_000_000  # bytes; CIFAR-100's training batch, the largest, has 155 million
SIDE = 32


class Layout(NamedTuple):
    """The files of one CIFAR set and the key of their labels."""

    train: tuple[str, ...]
    test: str
    key: bytes


LAYOUTS: Mapping[str, Layout] = {
    "cifar10": Layout(tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", b"labels"),
    "cifar100": Layout(("train",), "test", b"fine_labels"),
}


def _latin_bytes(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, in the only way in which batches call it."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


_REBUILD_ARRAY: Any = np.empty(0).__reduce__()[0]  # numpy's _reconstruct, under any version
_ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD_ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD_ARRAY,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin_bytes,
}


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise BadInput(f"it names '{one_line(module)}.{one_line(name)}'")
        return _ALLOWED[module, name]


def read_batch(data: bytes, where: str) -> dict[bytes, Any]:
    """The dictionary in a pickled batch; anything that is not plain data is refused."""
    try:
        batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes").load()
    except BadInput as error:
        raise BadInput(
            f"{where} is refused: {error}, which no CIFAR batch needs: fetch the original file"
        ) from error
    except Exception as error:  # a broken pickle can fail in any way at all
        raise BadInput(
            f"{where} is not a CIFAR batch ({reason(error)}): fetch the file again"
        ) from error
    if not isinstance(batch, dict):
        raise BadInput(f"{where} holds a {type(batch).__name__}: fetch the original CIFAR batch")
    return batch


def holds_batches(folder: Path, name: str) -> bool:
    layout = LAYOUTS.get(name)
    return layout is not None and all(
        (folder / file).is_file() for file in (layout.train[0], layout.test)
    )


def parts_from_folder(folder: Path, name: str) -> list[SourcePart]:
    layout = LAYOUTS[name]
    files = {n: folder / n for n in (*layout.train, layout.test) if (folder / n).is_file()}
    return _parts({n: f.read_bytes() for n, f in files.items()}, layout, folder)


def parts_from_archive(path: Path, name: str) -> list[SourcePart]:
    """The batches of a .tar.gz: regular members with the expected names, straight from it."""
    layout = LAYOUTS[name]
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                wanted = member.name.rsplit("/", 1)[-1]
                if not member.isreg() or wanted not in (*layout.train, layout.test):
                    continue
                if member.size > LARGEST_BATCH:
                    raise BadInput(
                        f"{quoted(path)}: member {quoted(member.name)} has {member.size} bytes, "
                        "too many for a CIFAR batch: fetch the original archive"
                    )
                stream = archive.extractfile(member)
                found[wanted] = stream.read() if stream else b""
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadInput(
            f"{quoted(path)} is not a readable archive ({reason(error)}): fetch it again"
        ) from error
    return _parts(found, layout, path)


def _parts(files: Mapping[str, bytes], layout: Layout, where: Path) -> list[SourcePart]:
    absent = [n for n in (*layout.train, layout.test) if n not in files]
    if absent:
        raise BadInput(f"{quoted(where)} lacks {listed(absent)}: fetch the whole data set")
    return [
        _part(files[n], f"{quoted(where)} file '{n}'", layout, n == layout.test)
        for n in (*layout.train, layout.test)
    ]


def _part(data: bytes, where: str, layout: Layout, test: bool) -> SourcePart:
    batch = read_batch(data, where)
    images, labels = batch.get(b"data"), batch.get(layout.key)
    width = 3 * SIDE * SIDE
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
        raise BadInput(f"{where} has no array of bytes under 'data': fetch the file again")
    if images.shape[1] != width:
        raise BadInput(f"{where} has {images.shape[1]} bytes per image, not {width}: fetch again")
    if not isinstance(labels, list) or not all(type(n) is int for n in labels):
        raise BadInput(f"{where} has no list of numbers under '{layout.key.decode()}': fetch again")
    numbers = np.array(labels, dtype=np.int64)
    return SourcePart(images.reshape(-1, 3, SIDE, SIDE), numbers, where, test)
