"""Clients that were drawn for a round and were not in it, in words."""

from __future__ import annotations

from collections.abc import Sequence

from fedtailor.datasets.wording import listed


def times_in_words(count: int) -> str:
    """How often something was."""
    return "once" if count == 1 else f"{count:,} times"


def absent_in_words(dropped: int, late: int, never: Sequence[str]) -> str:
    """How often clients that were drawn for a round were not in it; empty if always.

    `never` are those that met no deadline in a run.

    Example:
      >>> absent_in_words(0, 2, ["north"]).split("; ")[::2]
      ['clients missed the deadline 2 times (--deadline)', 'never in time: north']
    """
    told = [f"dropped out {times_in_words(dropped)} (--dropout)"] if dropped else []
    told += [f"missed the deadline {times_in_words(late)} (--deadline)"] if late else []
    if not told:
        return ""
    words = f"clients {' and '.join(told)}; those rounds went on without them"
    return f"{words}; never in time: {listed(never)}" if never else words
