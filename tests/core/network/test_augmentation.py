"""What is done to images of a training batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedtailor.core import rng
from fedtailor.core.network.augmentation import AUGMENTATIONS, crop_and_flip


def plain_crop_and_flip(x: Tensor, key: Tensor, pad: int) -> Tensor:
    """The same with one slice per image."""
    for_y, for_x, for_flip = rng.split(key, 3)
    n, _, height, width = x.shape
    out = []
    for i in range(n):
        down = int(rng.bits(for_y, n)[i]) % (2 * pad + 1)
        right = int(rng.bits(for_x, n)[i]) % (2 * pad + 1)
        image = F.pad(x[i], (pad, pad, pad, pad))[:, down : down + height, right : right + width]
        out.append(image.flip(-1) if int(rng.bits(for_flip, n)[i]) % 2 == 0 else image)
    return torch.stack(out)


@pytest.mark.parametrize(
    ("pad", "shape"), [(4, (12, 3, 8, 8)), (1, (7, 1, 5, 3)), (0, (6, 2, 2, 4))]
)
def test_crop_and_flip_shifts_and_mirrors(pad: int, shape: tuple[int, ...]) -> None:
    x = (rng.bits(rng.key(1), torch.Size(shape).numel()) % 255 + 1).to(torch.uint8).view(shape)
    out = crop_and_flip(x, rng.key(2), pad)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert torch.equal(out, plain_crop_and_flip(x, rng.key(2), pad))
    # found again among all shifts and mirrors, whatever the draws are
    padded = F.pad(x, (pad, pad, pad, pad))
    for i, image in enumerate(out):
        copies = [
            padded[i, :, a : a + shape[2], b : b + shape[3]]
            for a in range(2 * pad + 1)
            for b in range(2 * pad + 1)
        ]
        assert any(torch.equal(image, c) or torch.equal(image.flip(-1), c) for c in copies)


def test_crop_and_flip_is_keyed_and_varies_over_a_batch() -> None:
    x = (rng.bits(rng.key(1), 64) % 255 + 1).to(torch.uint8).view(1, 1, 8, 8).expand(60, 1, 8, 8)
    one = crop_and_flip(x, rng.key(2))
    assert torch.equal(one, crop_and_flip(x, rng.key(2)))
    assert not torch.equal(one, crop_and_flip(x, rng.key(3)))
    assert len(one.unique(dim=0)) > 30
    # more images, the same first ones: padding of a batch changes nothing
    assert torch.equal(crop_and_flip(x[:10], rng.key(2)), one[:10])
    assert AUGMENTATIONS["crop-flip"] is crop_and_flip


def test_crop_and_flip_under_vmap_is_crop_and_flip_in_a_loop() -> None:
    x = rng.normal(rng.key(1), 3, 5, 2, 6, 6)
    keys = rng.fold(rng.key(4), torch.arange(3))
    looped = torch.stack([crop_and_flip(a, k) for a, k in zip(x, keys, strict=True)])
    assert torch.equal(vmap(crop_and_flip)(x, keys), looped)
