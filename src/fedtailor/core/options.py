"""What a setting or hyper-parameter may be: said once, in its type, checked and explained so.

Nothing here needs torch, so that the command line can explain itself at once.
"""

from __future__ import annotations

import typing
from math import inf, isfinite
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from fedtailor.core.errors import BadInput

NonNegative = Annotated[float, (0.0, inf)]
Above = Annotated[float, (1e-12, inf)]
AboveOne = Annotated[float, (1.000001, inf)]
BelowOne = Annotated[float, (0.0, 0.999999)]
Share = Annotated[float, (0.0, 1.0)]
Percent = Annotated[float, (0.0, 100.0)]
Count = Annotated[int, (1, inf)]
Whole = Annotated[int, (0, inf)]
Limit = Annotated[float, (0.0, inf, "infinite")]
BlocksOrAuto = Annotated[int, (-1, inf)]
Weighting = Literal["data", "uniform"]


MOST = 1_000_000  # of anything that is counted: more would only fill the memory


class Search(NamedTuple):
    """What is tried of an option when it is tuned; stands beside its type, in `Annotated`.

    Without numbers, everything that it takes: of a truth value or a choice of words.

    Attributes:
      low: the least number that is tried.
      high: the largest.
      log: whether numbers are spread evenly by their logarithm: for what spans powers of ten.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False


class Option(NamedTuple):
    """One hyper-parameter of a method.

    Attributes:
      name: as in `--set name=value`.
      kind: `int`, `float`, `bool` or `str`.
      default: its default.
      meaning: its line in the docstring.
      low: least value (numbers).
      high: largest value (numbers).
      choices: what it may be (words).
      infinite: whether a number may be infinite.
      search: what is tried of it when the method is tuned; None if it stays as it is.
    """

    name: str
    kind: type
    default: Any
    meaning: str
    low: float
    high: float
    choices: tuple[str, ...]
    infinite: bool = False
    search: Search | None = None

    @property
    def tried(self) -> str:
        """What is tried of it when the method is tuned, in words; empty if nothing is."""
        if self.search is None:
            return ""
        if self.choices or self.kind is bool:
            return "all"
        low, high, log = self.search
        return f"{low:g} to {high:g}{', by logarithm' if log else ''}"

    @property
    def values(self) -> str:
        """What the option takes, in words."""
        if self.choices:
            return " | ".join(self.choices)
        if self.kind is bool:
            return "true | false"
        if self.kind is str:
            return "text"
        whole = "whole number" if self.kind is int else "number"
        if self.high < inf:
            return f"{whole} from {self.low:g} to {self.high:g}"
        return f"{whole}, at least {self.low:g}" if self.low > -inf else whole

    def parse(self, text: Any) -> Any:
        """The value that a person wrote."""
        try:
            value = self._convert(text)
        except (ValueError, TypeError, OverflowError):
            value = None
        if value is None or not self.holds(value) or (self.choices and value not in self.choices):
            raise BadInput(f"option '{self.name}' is {shortened(text)}: it takes {self.values}")
        if self.kind is int and self.high == inf and value > MOST:
            raise BadInput(f"option '{self.name}' is {shortened(text)}: give at most {MOST:,}")
        return value

    def holds(self, value: Any) -> bool:
        """Whether a value of its kind is within its range."""
        if self.kind in (bool, str):
            return True
        finite = self.kind is int or self.infinite or isfinite(value)
        return bool(self.low <= value <= self.high and finite)

    def _convert(self, text: Any) -> Any:
        if self.kind is bool:
            word = str(text).lower()
            if word not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
                raise ValueError
            return word in ("true", "1", "yes", "on")
        if isinstance(text, bool) or (self.kind is int and isinstance(text, float)):
            raise ValueError
        if self.kind is str and not isinstance(text, str):
            raise ValueError
        return self.kind(text)


def how_many(name: str, value: Any, most: int) -> int:
    """How many of something a person asked for: from 1 to `most`.

    Raises:
      BadInput: it is no whole number, or out of range.

    Example:
      >>> how_many("seeds", 3, 1000)
      3
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 1 <= int(value) <= most:
        raise BadInput(f"{name} is {shortened(value)}: give a number from 1 to {most:,}")
    return int(value)


def shortened(value: Any, limit: int = 60) -> str:
    """A value as Python writes it, and not a page of it.

    Example:
      >>> shortened("a"), shortened("1" * 100, 8)
      ("'a'", "'1111...")
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def option_of(name: str, hint: Any, default: Any, meaning: str) -> Option | None:
    """An option from its type: a number with a range, a truth value, or a choice of words.

    Example:
      >>> option_of("mu", Annotated[NonNegative, Search(0.001, 10, log=True)], 0.1, "pull").tried
      '0.001 to 10, by logarithm'
    """
    low, high, choices, more, search = -inf, inf, (), [], None
    if get_origin(hint) is typing.Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, Search):
                search = note
            else:
                low, high, *more = note
    if get_origin(hint) is Literal:
        choices, hint = get_args(hint), str
    if hint not in (int, float, bool, str):
        return None
    return Option(name, hint, default, meaning, low, high, choices, "infinite" in more, search)


def in_short(value: Any) -> str:
    """An option's value in few letters."""
    return f"{value:g}" if isinstance(value, float) else str(value)
