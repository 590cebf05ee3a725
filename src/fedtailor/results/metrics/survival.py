"""How well models rank times until an event: outputs [..., R, 1] = log risk, labels [..., R, 2]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.results.metrics.real_rows import real_rows


def concordance(outputs: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """How often the row whose event came first was given the higher risk, ties counting half.

    Harrell's C, as `lifelines.utils.concordance_index(time, -risk, event)`. Two rows can be
    compared if one had its event before the other's time ended, or at the very time at which the
    other was last seen without it; two events at the same time cannot. Nan where no two rows can be
    compared.

    Labels are (time, event): 1 where the event was seen, 0 where it had not come by that time.

    Example (event at 1; seen without until 2; event at 3: pairs (1, 2) right, (1, 3) a tie):
      >>> labels = torch.tensor([[1.0, 1], [2, 0], [3, 1]])
      >>> float(concordance(torch.tensor([[0.5], [0.1], [0.5]]), labels, torch.ones(3)))
      0.75
    """
    rows = real_rows(outputs, labels[..., 0], weight)
    count, real = rows.labels.shape[-1], rows.weight > 0
    # whole numbers from here on; padding has the latest time and the highest risk
    risk = _ranks(torch.where(real, rows.outputs[..., 0], math.inf))
    event = (labels[..., 1] > 0) & real
    # who was followed until a time comes after those with an event at it
    key = torch.where(real, 2 * _ranks(rows.labels.double()) + ~event, 2 * count)
    by_time, order = key.sort(-1)
    after = torch.searchsorted(by_time, by_time, right=True)  # where the comparable ones start
    event = event.gather(-1, order)
    pairs = (event * (real.sum(-1, keepdim=True) - after)).sum(-1)
    twice = (event * _lower_from(after, risk.gather(-1, order))).sum(-1)
    return rows.known(twice.double() / (2 * pairs))


def comparable(labels: Tensor, weight: Tensor) -> Tensor:
    """Whether any two rows can be compared: an event, and a row that was followed for longer.

    Example:
      >>> bool(comparable(torch.tensor([[5.0, 1], [4.0, 0]]), torch.ones(2)))
      False
    """
    level = torch.zeros_like(labels[..., :1])
    return ~concordance(level, labels, weight).isnan()


def _ranks(values: Tensor) -> Tensor:
    """How many are lower, of each."""
    return torch.searchsorted(values.sort(-1).values, values.contiguous())


def _lower_from(place: Tensor, rank: Tensor) -> Tensor:
    """For each place, twice how many ranks from there to the end are lower than its owner's.

    Ties count once. Places to the end are cut into blocks of 1, 2, 4, ... places, at most one of
    each size, in which ranks are sorted and can be looked up: n log² n steps instead of n² pairs.
    """
    count = rank.shape[-1]
    levels = max(0, count - 1).bit_length()
    filled = torch.nn.functional.pad(rank, (0, 2**levels - count), value=count)
    found = torch.zeros_like(rank)
    for level in range(levels):
        block = place >> level
        ranks = filled.view(*rank.shape[:-1], 2 ** (levels - level), 2**level).sort(-1).values
        # a block's number before the rank: one sorted row, in which all blocks are looked up
        first = torch.arange(ranks.shape[-2], device=rank.device)[:, None] * (count + 1)
        line, sought = (ranks + first).flatten(-2), block * (count + 1) + rank
        lower = torch.searchsorted(line, sought) + torch.searchsorted(line, sought, right=True)
        mine = block % 2
        found += mine * (lower - 2 * (block << level))
        place = place + (mine << level)
    return found
