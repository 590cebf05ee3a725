"""What the turns of a cohort come to, chunk by chunk; numbers are asked for only when needed.

A GPU answers when it has done all that it was given. Whoever asks in the middle of a round lets it
run empty: so results are on their way to the host while the next clients are prepared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.tree import Tree
from fedtailor.core.uploads.watch import SeenUploads
from fedtailor.engine.clients import CohortOutcome, Outputs, TurnReport
from fedtailor.engine.fold import Fold, Folded
from fedtailor.engine.mapper import common_notes, concatenate, flat_parts, with_parts
from fedtailor.engine.transfer import land, upload


class RoundReport(NamedTuple):
    """What happened in a round.

    Attributes:
      ids: the cohort, in ascending order.
      skipped: those of it that diverged and were left out.
      down: bytes sent to each client of the cohort.
      up: bytes received from each.
      post: outputs after local training, one entry per client of the cohort; None if not asked for.
      noisy: what noisy gradients (DP-SGD) each took: rows of `privacy.Spent`.
      taken: those of the cohort that count.
      notes: what methods noted of them, one row per client that counts.
      uploads: how long the uploads of those were, how far from the others', and which stand out.
    """

    ids: Tensor
    skipped: Tensor
    down: Tensor
    up: Tensor
    post: Outputs | None
    noisy: Tensor
    taken: Tensor
    notes: Tree
    uploads: SeenUploads | None = None


class ChunkResult(NamedTuple):
    """A chunk's turn: what was measured of all, and the rest of those that count."""

    drawn: Tensor
    taken: Tensor
    state: Tree
    folded: Folded
    each: Tree
    told: Callable[[], tuple[TurnReport, Tree]]  # once it has arrived: measured, and notes


def arriving(
    measured: TurnReport, notes: Tree, stream: torch.cuda.Stream | None
) -> Callable[[], tuple[TurnReport, Tree]]:
    """Both on their way to the host, on a stream; gives them when they are there."""
    both = measured, notes
    landing = land({str(i): leaf for i, leaf in enumerate(flat_parts(both))}, stream)
    return lambda: with_parts(both, iter(landing().values()))


def join_chunks(
    chunks: Sequence[ChunkResult], keep: Callable[[], None], device: torch.device
) -> CohortOutcome:
    """The turns of all chunks as one; `keep` makes their new states count."""
    fold = Fold()
    for chunk in chunks:
        fold.merge(chunk.folded)
    drawn, order = torch.cat([chunk.drawn for chunk in chunks]).sort()
    taken, rows = torch.cat([chunk.taken for chunk in chunks]).sort()
    good = [chunk for chunk in chunks if len(chunk.taken)]

    def each() -> Tree:
        together = tree.cat([chunk.each for chunk in good])
        return tree.index(together, *upload(device, rows)) if tree.leaves(together) else together

    @functools.cache
    def measured() -> TurnReport:
        found: TurnReport = concatenate([chunk.told()[0] for chunk in chunks], order)
        return found

    return CohortOutcome(
        drawn,
        taken,
        fold,
        each,
        keep,
        measured,
        lambda: common_notes([chunk.told()[1] for chunk in good], rows),
    )
