"""A cell as a paper prints it: `97.93±0.05`, `97.93`, `64.79 (60.69/68.45)`, `∞`, or `-`."""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from fedtailor.core.errors import BadInput

NONE = "-"
INFINITE = "∞"
_NUMBER = r"-?\d+(?:\.\d+)?"
_FORM = re.compile(
    rf"(?P<mean>{_NUMBER})"
    rf"(?:\s*±\s*(?P<std>{_NUMBER}))?"
    rf"(?:\s*\(\s*(?P<low>{_NUMBER})\s*/\s*(?P<high>{_NUMBER})\s*\))?"
)


class Published(NamedTuple):
    """What a paper prints in a cell."""

    text: str  # as printed
    mean: float  # the main number; it may be infinite
    std: float | None = None  # over the paper's repetitions, if it says so
    low: float | None = None  # mean of the lowest clients (5 %), if it says so
    high: float | None = None  # mean of the highest clients (5 %), if it says so


def read_published(text: str) -> Published | None:
    """A paper's cell; None where the paper has none.

    Example:
      >>> read_published("97.93±0.05").std
      0.05
      >>> read_published("∞").mean
      inf
      >>> read_published("-") is None
      True
    """
    plain = text.strip()
    if plain == NONE:
        return None
    if plain == INFINITE:
        return Published(plain, inf)
    found = _FORM.fullmatch(plain)
    if found is None:
        raise BadInput(
            f"paper cell '{text}': write '97.93±0.05', '97.93', '64.79 (60.69/68.45)', '∞' or '-'"
        )
    numbers = {k: None if v is None else float(v) for k, v in found.groupdict().items()}
    return Published(plain, float(found["mean"]), *(numbers[k] for k in ("std", "low", "high")))
