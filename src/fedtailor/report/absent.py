"""Clients that were missing in rounds, or whose models came to nothing, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def diverged_in_words(runs: Mapping[str, int]) -> str:
    """Whose final models diverged, in how many runs, and what that means for the numbers.

    Example:
      >>> diverged_in_words({"north": 2, "south": 1}).split(": ")[0]
      'the final models of north (2 times), south diverged'
    """
    models = "model" if len(runs) == 1 else "models"
    who = listed([f"{name} ({times_in_words(n)})" if n > 1 else name for name, n in runs.items()])
    return (
        f"the final {models} of {who} diverged: outputs that are not finite numbers count as wrong "
        "answers, and metrics that do not count answers leave such a client out"
    )


def never_trained_in_words(runs: Mapping[str, int]) -> str:
    """Who was in no round, or diverged in all, in how many runs; and which means they are in.

    Example:
      >>> never_trained_in_words({"north": 1}).split(": ")[0]
      'in no round that counts, so never trained'
    """
    who = listed([f"{name} ({times_in_words(n)})" if n > 1 else name for name, n in runs.items()])
    return (
        f"in no round that counts, so never trained: {who}; means count them, but those after a "
        "round's training"
    )


def held_out_in_words(names: Sequence[str]) -> str:
    """That some clients never trained, and which means they are in.

    Example:
      >>> held_out_in_words(["north"]).split(": ")
      ['held out, so never trained', "north; means count them, but those after a round's training"]
    """
    return (
        f"held out, so never trained: {listed(names)}; means count them, but those after a round's "
        "training"
    )
