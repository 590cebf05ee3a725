"""What goes wrong in a method, in words: its line of code, and what it is likely about."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedtailor.engine.culprit import culprit

# (what an error says, what is likely wrong)
CAUSES = (
    (".item()", "a tensor is made a number of the host: keep it a tensor, and use torch.where"),
    ("data-dependent control flow", "an `if` or `while` on a tensor: use torch.where"),
    ("dynamic shape", "a shape that depends on values (a mask as index, nonzero): use a weight"),
    ("in-place", "a tensor is changed in place: make a new one"),
    ("inplace", "a tensor is changed in place: make a new one"),
    ("has no attribute", "a host number or a list where a tree of tensors is expected"),
    ("must match the size", "shapes that differ: is padding (rows after `data.n`) in one of them?"),
    ("shapes cannot be multiplied", "shapes that differ: is an axis of clients or rows missing?"),
    ("expected scalar type", "types that differ: take the type of a leaf, not a fixed one"),
)


def explained(error: Exception) -> str:
    """One line: what was raised, where in the method's own code, and the likely cause."""
    return f"{type(error).__name__}: {with_cause(culprit(error), str(error))}"


def with_cause(told: str, said: str) -> str:
    """What is told of an error, with the likely cause of what it said.

    Example:
      >>> with_cause("line 3", "the inplace operator")
      'line 3 (likely: a tensor is changed in place: make a new one)'
    """
    cause = next((why for words, why in CAUSES if words in said), "")
    return told + (f" (likely: {cause})" if cause else "")


class _Kept(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@contextmanager
def listening(heard: list[str]) -> Iterator[None]:
    """Within, engines' warnings go into a list, and nowhere else."""
    log, kept = logging.getLogger("fedtailor"), _Kept(heard)
    before = log.propagate, log.handlers
    log.propagate, log.handlers = False, [kept]
    try:
        yield
    finally:
        log.propagate, log.handlers = before
