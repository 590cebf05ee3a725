"""Rows that stay together in a split, and splits that train on the past."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import BadInput
from fedtailor.partition.draws import Array, Rows


class RowUnits(NamedTuple):
    """What a split never cuts through.

    Rows of one group, or of one moment, are in one part. Groups are drawn by their name, so that
    each client's cut is its own affair; with moments the latest rows (the groups whose last row is
    latest) are for testing, those before for validation, and the earliest for training.
    """

    groups: Array | None = None  # [n] text, whose each row is
    moments: Array | None = None  # [n] numbers, when each row was

    def cut(self, rows: Rows, test: float, val: float, seed: str, client: str) -> tuple[Rows, ...]:
        """A client's rows for training, validation and testing.

        Args:
          rows: of the client.
          test: share of the rows for testing, met as nearly as whole units allow.
          val: share of the other rows for validation.
          seed: what groups are drawn by.
          client: its name, for messages.

        Raises:
          BadInput: it has too few units.

        Example:
          >>> units = RowUnits(moments=np.array([3.0, 1.0, 2.0, 2.0]))
          >>> [part.tolist() for part in units.cut(np.arange(4), 0.25, 0.0, "0", "ann")]
          [[1, 2, 3], [], [0]]
        """
        units = self._in_order(rows, seed)
        needed = 3 if val else 2
        if len(units) < needed:
            what = "groups" if self.groups is not None else "different times"
            raise BadInput(
                f"client '{client}' has {len(units)} {what}, too few for train"
                f"{', val' if val else ''} and test: merge it with another"
            )
        tested = _whole_units([len(u) for u in units], test * len(rows), needed - 1)
        rest = units[tested:]
        kept = sum(len(u) for u in rest)
        checked = _whole_units([len(u) for u in rest], val * kept, 1) if val else 0
        none = rows[:0]
        parts = (rest[checked:], rest[:checked], units[:tested])
        return tuple(np.sort(np.concatenate(part)) if part else none for part in parts)

    def _in_order(self, rows: Rows, seed: str) -> list[Rows]:
        """The client's units, first those for testing."""
        if self.groups is None:
            assert self.moments is not None
            _, unit = np.unique(-self.moments[rows], return_inverse=True)
            return [rows[unit == i] for i in range(unit.max() + 1)]
        names, unit = np.unique(self.groups[rows], return_inverse=True)
        if self.moments is None:
            last = [blake2b(f"{seed}/{name}".encode(), digest_size=8).digest() for name in names]
            order = sorted(range(len(names)), key=lambda i: last[i])
        else:
            latest = np.full(len(names), -np.inf)
            np.maximum.at(latest, unit, self.moments[rows])
            order = np.argsort(-latest, kind="stable").tolist()
        held = np.argsort(unit, kind="stable")
        split = np.split(rows[held], np.cumsum(np.bincount(unit))[:-1])
        return [split[i] for i in order]

    def one_side(self, cuts: Sequence[Sequence[Rows]], names: Sequence[str]) -> list[list[Rows]]:
        """The cuts where a group that several clients have is for the same everywhere.

        What one client tests with, no other trains on or validates with.
        """
        if self.groups is None:
            return [list(cut) for cut in cuts]
        tested = np.unique(np.concatenate([self.groups[test] for _, _, test in cuts]))
        apart = [_moved(cut, self.groups, tested, 2) for cut in cuts]
        checked = np.unique(np.concatenate([self.groups[val] for _, val, _ in apart]))
        apart = [_moved(cut, self.groups, checked, 1) for cut in apart]
        for name, (train, _, test) in zip(names, apart, strict=True):
            if not len(train) or not len(test):
                raise BadInput(
                    f"client '{name}' shares so many groups with others that nothing is left to "
                    "train on: give every group to one client"
                )
        return apart


def _moved(cut: Sequence[Rows], groups: Array, chosen: Array, to: int) -> list[Rows]:
    """The cut with all rows of the chosen groups in one part."""
    parts = list(cut)
    for i in range(to):
        there = np.isin(groups[parts[i]], chosen)
        parts[to] = np.sort(np.concatenate([parts[to], parts[i][there]]))
        parts[i] = parts[i][~there]
    return parts


def _whole_units(sizes: Sequence[int], wanted: float, keep: int) -> int:
    """How many units come nearest to so many rows: at least one, leaving `keep` of them."""
    held = np.cumsum(sizes)[: len(sizes) - keep]
    return int(np.abs(held - wanted).argmin()) + 1
