"""Where the last states of a worker's clients lie, outside of the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


class StateReplicas:
    """Copies of states, made as they change, by reference.

    A round's copy holds the clients that took part in it. It is let go when all of them have a
    later one; where copies that are half out of date pile up, `overgrown` says so.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[int, Any]] = {}  # serial number: how many clients, reference
        self._latest: dict[int, int] = {}  # client: serial number
        self._current: Counter[int] = Counter()  # serial number: clients that it is the latest of
        self._serial = 0

    def add(self, ids: Iterable[int], reference: Any) -> None:
        """Takes a copy of the states of some clients, later than all before."""
        ids = list(ids)
        if not ids:
            return
        self._serial += 1
        self._copies[self._serial] = len(ids), reference
        for cid in ids:
            before = self._latest.get(cid)
            self._latest[cid] = self._serial
            self._current[self._serial] += 1
            if before is not None:
                self._current[before] -= 1
                if not self._current[before]:
                    del self._copies[before], self._current[before]

    def clear(self) -> None:
        """Forgets all copies."""
        self._copies, self._latest, self._current = {}, {}, Counter()

    @property
    def overgrown(self) -> bool:
        """Whether one copy of everybody would take less than half of what the copies take."""
        return sum(count for count, _ in self._copies.values()) > 2 * len(self._latest)

    def references(self) -> list[Any]:
        """All copies that are needed, oldest first: a later one goes before an earlier one."""
        return [reference for _, (_, reference) in sorted(self._copies.items())]

    def clients(self) -> list[int]:
        """Everybody of whom there is a copy."""
        return list(self._latest)
