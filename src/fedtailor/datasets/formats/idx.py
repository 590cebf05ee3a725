"""The idx format of MNIST and its kin, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.datasets.formats.images import Pixels
from fedtailor.datasets.parts import SourcePart
from fedtailor.datasets.wording import quoted, reason

UNSIGNED_BYTES = 0x08
IMAGES = re.compile(
    r"(?:emnist-(?P<variant>[a-z]+)-)?(?P<split>train|test|t10k)-images[-.]idx3-ubyte(?:\.gz)?"
)


def read_idx(path: Path, dimensions: int) -> Pixels:
    """The array in an idx file of unsigned bytes with that many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(
            f"{quoted(path)} cannot be read ({reason(error)}): fetch the file again"
        ) from error
    head = 4 + 4 * dimensions
    if data[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)) or len(data) < head:
        raise BadInput(
            f"{quoted(path)} starts with 0x{data[:4].hex()}, not as an idx file of bytes in "
            f"{dimensions} dimensions does: fetch the file again"
        )
    shape = tuple(int(d) for d in np.frombuffer(data, ">u4", dimensions, 4))
    # Python's integers: a forged header must not overflow its way past the check.
    expected = head + math.prod(shape)
    if len(data) != expected:
        raise BadInput(
            f"{quoted(path)} has {len(data)} bytes but its header asks for {expected}: "
            "fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def variants_in(folder: Path) -> set[str]:
    """Which idx sets the folder holds: EMNIST's variants by name, plain MNIST names as ''."""
    found = (IMAGES.fullmatch(p.name.lower()) for p in folder.iterdir() if p.is_file())
    return {m["variant"] or "" for m in found if m and m["split"] == "train"}


def idx_parts(folder: Path, variant: str = "") -> list[SourcePart]:
    """Training and test rows of one set of idx files.

    EMNIST stores each image transposed and counts its letters from 1; both are put right.
    """
    parts = []
    for path in sorted(folder.iterdir()):
        match = IMAGES.fullmatch(path.name.lower())
        if not match or (match["variant"] or "") != variant:
            continue
        images = read_idx(path, 3)
        labels = read_idx(_labels_beside(path), 1).astype(np.int64)
        if variant:
            images = np.ascontiguousarray(images.transpose(0, 2, 1))
        if variant == "letters":
            labels -= 1
        parts.append(SourcePart(images[:, None], labels, quoted(path), match["split"] != "train"))
    return sorted(parts, key=lambda p: p.test)


def _labels_beside(path: Path) -> Path:
    name = path.name.replace("images", "labels").replace("idx3", "idx1").removesuffix(".gz")
    for candidate in (path.with_name(name), path.with_name(name + ".gz")):
        if candidate.is_file():
            return candidate
    raise BadInput(f"{quoted(path)} has no labels: put '{name}' or '{name}.gz' beside it")
