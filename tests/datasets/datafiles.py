"""Writes small files in the true formats, for the tests beside it."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import BadInput


def refusal(call: Callable[[], Any], *named: str) -> str:
    """The message of the `BadInput` that the call raises: one line that names these."""
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and message
    for word in named:
        assert word in message, f"{word!r} is not in: {message}"
    return message


def images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(folder: Path, *, ending: str = "", prefix: str = "", test: str = "t10k") -> dict:
    arrays = {}
    for split, n, seed in (("train", 20, 1), (test, 10, 2)):
        x, y = images(n, 28, 28, seed=seed), np.arange(n) % 10
        write_idx(folder / f"{prefix}{split}-images-idx3-ubyte{ending}", x)
        write_idx(folder / f"{prefix}{split}-labels-idx1-ubyte{ending}", y)
        arrays[split] = (x, y)
    return arrays


def batch(n: int, seed: int, key: bytes = b"labels") -> dict[bytes, Any]:
    return {
        b"batch_label": b"a batch",
        key: [i % 10 for i in range(n)],
        b"data": images(n, 3072, seed=seed),
        b"filenames": [b"x.png"] * n,
    }


def cifar10_files() -> dict[str, bytes]:
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {n: pickle.dumps(batch(10, i), protocol=2) for i, n in enumerate(names)}


def write_tar(path: Path, files: dict[str, bytes], folder: str = "cifar-10-batches-py") -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_text(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)
    return path


def png_bytes(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()
