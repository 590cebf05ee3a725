"""What is done to images of a training batch before a network sees them, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core import rng
from fedtailor.core.rng import Key

Augment = Callable[[Tensor, Key], Tensor]


def crop_and_flip(x: Tensor, key: Key, pad: int = 4) -> Tensor:
    """Shifts each image by up to `pad` pixels and mirrors half of them, keyed."""
    n, _, height, width = x.shape
    for_y, for_x, for_flip = rng.split(key, 3)
    down = rng.bits(for_y, n) % (2 * pad + 1)
    right = rng.bits(for_x, n) % (2 * pad + 1)
    mirrored = (rng.bits(for_flip, n) % 2 == 0)[:, None]
    rows = torch.arange(height, device=x.device) + down[:, None]
    columns = torch.arange(width, device=x.device)
    columns = torch.where(mirrored, columns.flip(0), columns) + right[:, None]
    padded = F.pad(x, (pad, pad, pad, pad))
    which = torch.arange(n, device=x.device)[:, None, None]
    # indices around the slice put their axes first: (n, height, width, channels)
    return padded[which, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


AUGMENTATIONS: dict[str, Augment | None] = {"none": None, "crop-flip": crop_and_flip}
