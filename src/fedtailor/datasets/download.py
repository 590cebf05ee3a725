"""Files fetched from their owners: checked by md5, then kept whole or not at all."""

from __future__ import annotations

import hashlib
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.errors import BadInput
from fedtailor.datasets.cache import store
from fedtailor.datasets.wording import quoted, reason

LARGEST = 50_000_000  # bytes; those that are known have less than a million
TIMEOUT = 60.0  # seconds without an answer


class PublishedFile(NamedTuple):
    """A file as its owner publishes it."""

    name: str  # what it is called in the data folder
    url: str  # where it is fetched
    md5: str  # of its bytes; no guard against malice, but against another version and a broken line


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
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise BadInput(
            f"{quoted(file.url)} has md5 {found}, not {file.md5} as published: fetch it again "
            f"later, or {yourself}"
        )
    store(folder / file.name, lambda out: out.write(data), file.url)
