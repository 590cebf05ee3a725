"""How long each upload's move is, and how far from the others': what poisoning shows itself by.

The others' median would need all uploads at once. Each is boiled down to 256 sums of its numbers
with random signs instead, as it arrives; their distances are those of the uploads to about 6 %.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.method import Upload
from fedtailor.core.tree import Tree
from fedtailor.core.uploads.moves import averaged, moved, trained_leaves

SUMS = 256
FEWEST = 4  # uploads, of which one may stand out
FAR, LEAST_SPREAD = 3.5, 0.2  # of logarithms: chosen on honest rounds, see `standing_out`


class UploadWatch:
    """Boils uploads down; `seed` is a secret where clients could otherwise hide from its signs."""

    def __init__(self, buffers: Collection[str], seed: int = 0) -> None:
        self._buffers, self._seed = frozenset(buffers), seed
        self._signs: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}

    def _signs_like(self, rows: Tensor) -> Tensor:
        key = rows.shape, rows.dtype, rows.device
        if key not in self._signs:
            draw = np.random.Generator(np.random.Philox(key=self._seed))
            signs = torch.from_numpy(2.0 * draw.integers(0, 2, tuple(rows.shape)) - 1)
            self._signs[key] = signs.to(rows.device, rows.dtype)
        return self._signs[key]

    def look(self, sent: Tree, upload: Upload, sums: int = SUMS) -> Tensor:
        """The norm of what an upload moves, and so many signed sums of it."""
        values = averaged(upload) or upload.each
        leaves = trained_leaves(moved(sent, values), self._buffers)
        if not leaves:
            return torch.zeros(1 + sums, dtype=torch.float32)
        blank = leaves[0].new_zeros(-sum(leaf.numel() for leaf in leaves) % sums)
        rows = torch.cat([*(leaf.reshape(-1) for leaf in leaves), blank]).reshape(-1, sums)
        norm = torch.linalg.vector_norm(rows)
        signed = rows.mul_(self._signs_like(rows)).sum(0)  # nobody else has these rows
        return torch.cat([norm[None], signed]).float()


def sums_for(clients: int) -> int:
    """How many sums of each upload are kept: fewer of many clients' uploads, to bound memory.

    Example:
      >>> sums_for(20), sums_for(10_000)
      (256, 13)
    """
    return max(8, min(SUMS, (1 << 17) // clients))


class SeenUploads(NamedTuple):
    """What a round's uploads look like, one number each."""

    norm: Tensor  # of what it moves
    distance: Tensor  # to the median of all
    odd: Tensor  # whether it stands out


def compare_uploads(watched: Tensor) -> SeenUploads:
    """What a cohort's rows of `UploadWatch.look` say of each client."""
    watched = watched.cpu()
    norm, sums = watched[:, 0], watched[:, 1:]
    distance = (sums - torch.from_numpy(_median(sums.numpy()))).norm(dim=1)
    odd = standing_out(torch.stack([norm, distance], dim=1)).any(1)
    return SeenUploads(norm, distance, odd)


def _median(rows: np.ndarray) -> np.ndarray:
    """Of each column; of an even number of rows it lies between the two in the middle."""
    # in every round: a fifth of the time of numpy's `partition`, and of torch's `quantile`
    ordered = np.sort(rows, axis=0)
    low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
    middle: np.ndarray = (low + high) / 2
    return middle


def standing_out(values: Tensor) -> Tensor:
    """Which of some lengths are far above the others': modified z-scores of their logarithms.

    Of several columns each is looked at by itself.

    Of 10,800 honest uploads (80 federations of 5 to 40 clients, equal and very unequal ones, by
    FedAvg, Ditto, FedRep and SCAFFOLD) 0.5 % stand out. Where all are alike, twice the median does.

    Example:
      >>> standing_out(torch.tensor([1.0, 1.1, 0.9, 1.2, 4.0])).tolist()
      [False, False, False, False, True]
    """
    if len(values) < FEWEST:
        return torch.zeros(values.shape, dtype=torch.bool)
    size = values.double().clamp(min=torch.finfo(torch.float64).tiny).log().numpy()
    with np.errstate(invalid="ignore"):  # an infinite one, as far from itself as from others
        apart = size - _median(size)
        spread = 1.4826 * _median(np.abs(apart))
        return torch.from_numpy(apart / np.maximum(spread, LEAST_SPREAD) > FAR)
