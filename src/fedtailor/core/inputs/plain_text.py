"""Text of strangers, made harmless: it neither moves a terminal's cursor nor breaks a line.

JSON is read within bounds, names are checked where they enter, everything else where it is shown.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput

# control characters, separators of lines, marks that turn the direction of writing, half characters
_HARMFUL = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
DIGITS = 300  # of a whole number in JSON: more would not fit a float either


def printable(text: str, keep: str = "") -> str:
    r"""The text with harmful characters spelt out, except those in `keep`.

    Example:
      >>> print(printable("a\x1b[2J\nb"))
      a\x1b[2J\nb
    """

    def spelt(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else found[0].encode("unicode_escape").decode()

    return _HARMFUL.sub(spelt, text)


def counted(number: int, thing: str) -> str:
    """A number of things, in words that fit one of them, too.

    Example:
      >>> counted(1, "site"), counted(1200, "row")
      ('1 site', '1,200 rows')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def check_name(name: str, what: str) -> str:
    r"""The name of a client or a site, if it is one line of plain text.

    Example:
      >>> check_name("St. Mary's", "client")
      "St. Mary's"
      >>> check_name("a\x1b[2J", "client")
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: client 'a\x1b[2J': a name is one line of text: remove '\x1b'
    """
    if found := _HARMFUL.search(name):
        raise BadInput(
            f"{what} '{printable(name)[:80]}': a name is one line of text: remove "
            f"'{printable(found[0])}'"
        )
    return name


class AbsurdJson(json.JSONDecodeError):
    """JSON that no program of ours writes."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "", 0)
        self.args = (why,)


def parse_json(text: str | bytes) -> Any:
    """JSON as Python has it.

    Raises:
      JSONDecodeError: it is none, is nested too deeply, or holds an absurd number.

    Example:
      >>> parse_json('{"a": 1}')
      {'a': 1}
      >>> parse_json("[" * 100_000)
      Traceback (most recent call last):
      fedtailor.core.inputs.plain_text.AbsurdJson: nested too deeply
      >>> parse_json("[1e999]")
      Traceback (most recent call last):
      fedtailor.core.inputs.plain_text.AbsurdJson: the number 1e999 is too large
    """
    try:
        return json.loads(text, parse_int=_whole, parse_float=_real)
    except RecursionError:
        raise AbsurdJson("nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise AbsurdJson(f"the number {digits[:8]}... has {len(digits)} digits")
    return int(digits)


def _real(text: str) -> float:
    if (found := float(text)) in (float("inf"), float("-inf")):
        raise AbsurdJson(f"the number {text[:20]} is too large")
    return found


class LogLine(logging.Formatter):
    """A line of a log stays one line, whoever's words are in it; only tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        """The message, harmless."""
        return printable(super().formatMessage(record))


def start_log(form: str = "%(message)s", file: Path | None = None) -> None:
    """Sends this process's log to a file, or else to stderr, a line for each message."""
    handler = logging.FileHandler(file) if file else logging.StreamHandler()
    handler.setFormatter(LogLine(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
