"""Dates as numbers: days since the beginning of 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from fedtailor.datasets.formats.cells import is_missing
from fedtailor.datasets.source import Array

DateOrder = Literal["date", "date-mdy"]  # where both could be: day first, or month first
_TIME = r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,]\d+)?))?\s*(Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){_TIME}")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})[-/.](\d{{1,2}})[-/.](\d{{4}}){_TIME}")
_EPOCH, _DAY = datetime(1970, 1, 1, tzinfo=UTC), 86400.0


def as_days(text: str, order: DateOrder = "date") -> float | None:
    """A date, perhaps with a time, as days since 1970; None where it is no date.

    Example:
      >>> as_days("1970-01-02"), as_days("02.01.1970 12:00"), as_days("01/02/1970", "date-mdy")
      (1.0, 1.5, 1.0)
      >>> as_days("soon") is None, as_days("31.02.2020") is None
      (True, True)
    """
    text = text.strip()
    if found := _YEAR_FIRST.fullmatch(text):
        year, month, day, *time = found.groups()
    elif found := _YEAR_LAST.fullmatch(text):
        day, month, year, *time = found.groups()
        if order == "date-mdy":
            day, month = month, day
    else:
        return None
    hour, minute, second, zone = time
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0))
    except ValueError:
        return None
    days = (moment.replace(tzinfo=UTC) - _EPOCH).total_seconds() / _DAY
    seconds = float((second or "0").replace(",", "."))
    if zone and zone != "Z":
        digits = zone.replace(":", "")
        away = 3600 * int(digits[1:3]) + 60 * int(digits[3:5])
        seconds -= away if digits[0] == "+" else -away
    return days + seconds / _DAY


def date_order(cells: Sequence[str]) -> tuple[DateOrder, bool]:
    """Whether the day or the month comes first, and whether the cells show it.

    Example:
      >>> date_order(["01/02/2020", "01/31/2020"]), date_order(["01/02/2020"])
      (('date-mdy', True), ('date', False))
    """
    found = [m for m in (_YEAR_LAST.fullmatch(c.strip()) for c in cells) if m]
    if not found or any(int(m[1]) > 12 for m in found):
        return "date", True
    if any(int(m[2]) > 12 for m in found):
        return "date-mdy", True
    # with points between them, the day comes first everywhere
    return "date", all("." in m[0][:5] for m in found)


def date_numbers(cells: Sequence[str], order: DateOrder) -> Array:
    """The cells as days; nan where one is missing or no date."""
    found = [None if is_missing(c) else as_days(c, order) for c in cells]
    return np.array([np.nan if days is None else days for days in found], dtype=np.float64)
