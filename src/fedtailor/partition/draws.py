"""Random numbers by purpose, so that no recipe disturbs another one or anybody's global state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


def draws(seed: int, *purpose: str | int) -> np.random.Generator:
    """The random numbers of one purpose, e.g. `draws(seed, "split", client)`."""
    text = "/".join(map(str, (int(seed), *purpose)))
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))


def sorted_rows(shares: Sequence[Array]) -> list[Rows]:
    """Row numbers in ascending order, client by client."""
    return [np.sort(share).astype(np.int64) for share in shares]
