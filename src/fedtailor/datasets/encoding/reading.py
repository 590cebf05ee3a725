"""Parts of an encoder's JSON, checked one by one: a file may have been written by anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.datasets.wording import listed, one_line


def check_keys(data: Any, keys: Sequence[str], where: str, optional: Sequence[str] = ()) -> None:
    """Raise `BadInput` unless it is a table with these keys, and no others than optional ones."""
    if not isinstance(data, Mapping):
        raise BadInput(f"{where} is {one_line(data)}: give the keys {listed(keys)}")
    absent = [k for k in keys if k not in data]
    if absent:
        raise BadInput(f"{where} lacks the keys {listed(absent)}: save the model again")
    extra = [k for k in data if k not in (*keys, *optional)]
    if extra:
        raise unknown(f"key of the {where}", one_line(extra[0]), (*keys, *optional))


def one_of(value: Any, allowed: Sequence[str], what: str) -> Any:
    """The value, if it is allowed."""
    if value not in allowed:
        raise unknown(f"{what} in the encoder", one_line(value), allowed)
    return value


def number(value: Any, key: str, where: str) -> float:
    """A finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise BadInput(f"{where}: '{key}' is {one_line(value)}: give a finite number")
    return float(value)


def positive(value: Any, key: str, where: str) -> float:
    """A positive number."""
    if number(value, key, where) <= 0:
        raise BadInput(f"{where}: '{key}' is {value:g}: give a positive number")
    return float(value)


def is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(v) is kind for v in value)


def string(value: Any, what: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise BadInput(f"encoder: '{what}' is {one_line(value)}: give text")
    return value


def strings(value: Any, what: str) -> tuple[str, ...]:
    """A list of texts."""
    if not is_list_of(value, str):
        raise BadInput(f"encoder: {what} is {one_line(value)}: give a list of texts")
    return tuple(value)


def strings_or_none(value: Any, what: str) -> tuple[str, ...] | None:
    """A list of texts, or nothing."""
    return None if value is None else strings(value, what)
