"""Files fetched from their owners: checked by md5, then kept whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.datasets.cache import store
from fedtailor.datasets.wording import quoted, reason

LARGEST = 50_000_000  # bytes; those that are known have less than 20 million
TIMEOUT = 60.0  # seconds without an answer


class PublishedFile(NamedTuple):
    """A file as its owner publishes it."""

    name: str  # what it is called in the data folder
    url: str  # where it is fetched
    md5: str  # of its bytes; no guard against malice, but against another version and a broken line
    also: tuple[str, ...] = ()  # what else it may be called in a folder of its own
    packed: bool = False  # whether the address is that of a tar archive that holds it


def download(file: PublishedFile, folder: Path) -> None:
    """Fetch the file into the folder.

    Raises:
      BadInput: it cannot be had, or is not what was published; nothing is written then.
    """
    yourself = f"put {file.name} into {quoted(folder)} yourself"
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT) as answer:
            data = answer.read(LARGEST + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise BadInput(
            f"{quoted(file.url)} cannot be fetched ({reason(error)}): check the connection, or "
            f"{yourself}"
        ) from error
    if file.packed:
        data = _unpacked(data, file, yourself)
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise BadInput(
            f"{quoted(file.url)} has md5 {found}, not {file.md5} as published: fetch it again "
            f"later, or {yourself}"
        )
    store(folder / file.name, lambda out: out.write(data), file.url)


def _unpacked(archive: bytes, file: PublishedFile, yourself: str) -> bytes:
    """The file of that name in a tar archive, in whatever folder; nothing else is unpacked."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                held = opened.extractfile(member) if member.isfile() else None
                if held is not None and PurePosixPath(member.name).name == file.name:
                    return held.read(LARGEST + 1)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BadInput(
            f"{quoted(file.url)} is no tar archive ({reason(error)}): fetch it again later, or "
            f"{yourself}"
        ) from error
    raise BadInput(f"{quoted(file.url)} holds no {file.name}: {yourself}")
