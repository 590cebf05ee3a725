"""How near rows that an attack came to are to the client's own, beside what knows nothing of them.

Images by PSNR, tables column by column, both beside noise, a constant, and the nearest other
training row: an attack that does not come nearer than that has shown nothing of this row.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used
import torch
from torch import Tensor

from fedtailor.core import rng
from fedtailor.datasets.encoding.columns import Categorical, Column

FLOOR = 1e-12  # of a mean squared error: a perfect copy has 120 dB, not infinitely many
MOST_SHOWN, PIXELS = 8, 64  # rows in a picture, and how wide one is drawn at least
AT_A_TIME = 4096  # rows of the training set that are looked at together


def psnr(mse: Tensor) -> Tensor:
    """10 log₁₀(1 / mean squared error), pixels from 0 to 1, at most 120 dB.

    Example:
      >>> psnr(torch.tensor([0.0, 0.01, 0.1])).round(decimals=3).tolist()
      [120.0, 20.0, 10.0]
    """
    return -10 * mse.double().clamp(min=FLOOR).log10()


def to_pixels(x: Tensor) -> Tensor:
    """Images as a network takes them (−1 to 1), from 0 to 1 again."""
    return (x.double() + 1) / 2


def errors(rows: Tensor, others: Tensor) -> Tensor:
    """[rows, others] mean squared errors over all numbers of an example."""
    flat, there = rows.double().flatten(1), others.double().flatten(1)
    parts = [((flat[:, None] - some[None]) ** 2).mean(-1) for some in torch.split(there, AT_A_TIME)]
    return torch.cat(parts, 1)


def in_true_order(found: Tensor, true: Tensor) -> Tensor:
    """The found rows in the order of the true ones: the assignment with the least error.

    Example:
      >>> in_true_order(torch.tensor([[5.0], [1.0]]), torch.tensor([[1.0], [4.0]])).tolist()
      [[1.0], [5.0]]
    """
    cost = torch.nan_to_num(errors(true, found), nan=1e30, posinf=1e30)
    _, chosen = scipy.optimize.linear_sum_assignment(cost.cpu().numpy())
    return found[torch.from_numpy(chosen).to(found.device)]


def guesses(true: Tensor, others: Tensor, *, image: bool, seed: int) -> dict[str, Tensor]:
    """What somebody would say of rows without having seen anything of them.

    Args:
      true: the rows, which only decide what lies nearest.
      others: all other training rows.
      image: pixels from 0 to 1; else features of a table.
      seed: of the noise.
    """
    key = rng.key(seed, 1, device=true.device)
    if image:
        noise = rng.uniform(key, *true.shape, dtype=true.dtype)
        constant = torch.full_like(true, 0.5)
    else:
        noise = rng.normal(key, *true.shape, dtype=true.dtype)
        constant = others.mean(0, keepdim=True).expand_as(true).to(true.dtype)
    nearest = others[errors(true, others).argmin(1)].to(true.dtype)
    return {"noise": in_true_order(noise, true), "constant": constant, "nearest": nearest}


def judged_images(found: Tensor, true: Tensor, others: Tensor, seed: int = 0) -> dict[str, Any]:
    """PSNR of each recovered image and of what knows nothing, all from 0 to 1."""
    said = {"recovered": in_true_order(found, true)} | guesses(true, others, image=True, seed=seed)
    each = {k: psnr(((v - true) ** 2).flatten(1).mean(1)) for k, v in said.items()}
    return {
        "psnr": {k: round(float(v.mean()), 3) for k, v in each.items()},
        "each": [round(v, 3) for v in each["recovered"].tolist()],
        "nearer": int((each["recovered"] > each["nearest"]).sum()),
    }


def judged_table(
    found: Tensor, true: Tensor, others: Tensor, columns: Sequence[Column], seed: int = 0
) -> dict[str, Any]:
    """Errors of recovered rows, over all features (scaled) and column by column.

    A column of numbers has its root mean squared error in its own unit, one of categories the share
    of wrong ones.
    """
    said = {"recovered": in_true_order(found, true)} | guesses(true, others, image=False, seed=seed)
    each = {k: ((v - true) ** 2).mean(1).sqrt() for k, v in said.items()}
    told, start = [], 0
    for column in columns:
        part = slice(start, start + column.width)
        start += column.width
        told.append(
            {
                "name": column.name,
                "measure": "wrong" if isinstance(column, Categorical) else "rmse",
                **{k: round(_off(v[:, part], true[:, part], column), 6) for k, v in said.items()},
            }
        )
    return {
        "rmse": {k: round(float(v.mean()), 6) for k, v in each.items()},
        "each": [round(v, 6) for v in each["recovered"].tolist()],
        "nearer": int((each["recovered"] < each["nearest"]).sum()),
        "columns": told,
    }


def _off(found: Tensor, true: Tensor, column: Column) -> float:
    if isinstance(column, Categorical):
        return float((found.argmax(1) != true.argmax(1)).double().mean())
    # an input that tells a missing value has no unit
    return float(((found - true)[:, :1] ** 2).mean().sqrt()) * column.scale


def judged_words(moved: Tensor, true: Tensor) -> dict[str, Any]:
    """Which words an embedding's update names: those whose vectors moved.

    Args:
      moved: [vocabulary, width], what was seen of the embedding.
      true: the client's tokens; 0 is padding.
    """
    found = set(moved.abs().sum(1).nonzero()[:, 0].tolist()) - {0}
    real = set(true.flatten().tolist()) - {0}
    both = len(found & real)
    return {
        "words": {
            "named": len(found),
            "true": len(real),
            "right": round(both / max(len(found), 1), 6),
            "found": round(both / max(len(real), 1), 6),
            "vocabulary": len(moved),
        }
    }


def picture(found: Tensor, true: Tensor) -> str:
    """Originals above, what was recovered below, as a data URI of a PNG.

    Args:
      found: [n, channels, height, width], from 0 to 1.
      true: the same of the originals.
    """
    from PIL import Image

    rows = [
        torch.cat(list(part[:MOST_SHOWN]), dim=2) for part in (true, in_true_order(found, true))
    ]
    times = max(1, -(-PIXELS // true.shape[-1]))
    line = torch.full_like(rows[0][:, :1], 0.5)
    whole = torch.cat([rows[0], line, rows[1]], dim=1).clamp(0, 1).mul(255).round().to(torch.uint8)
    drawn = whole.repeat_interleave(times, 1).repeat_interleave(times, 2).cpu().numpy()
    if drawn.shape[0] not in (1, 3):  # more channels than eyes have
        drawn = drawn[:1]
    plain = drawn[0] if drawn.shape[0] == 1 else np.moveaxis(drawn, 0, -1)
    out = io.BytesIO()
    Image.fromarray(plain).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
