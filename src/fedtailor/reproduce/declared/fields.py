"""Reads tables of a declaration strictly: nothing unknown, nothing of the wrong kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.errors import BadInput, unknown

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
WORDS |= {list: "a list", dict: "a table"}


class Fields:
    """One TOML table; every entry must be asked for.

    Args:
      found: the table as read.
      where: what messages call it.
      known: the entries that it may have.
    """

    def __init__(self, found: Any, where: str, known: Sequence[str]) -> None:
        self.where = where
        if not isinstance(found, dict):
            raise BadInput(f"{where}: is {found!r}: write a table")
        self._found = found
        for name in found:
            if name not in known:
                raise BadInput(f"{where}: {unknown('entry', name, known)}")

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """An entry, or the default if it is not there."""
        if name not in self._found:
            return default
        value = self._found[name]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise BadInput(f"{self.where}: {name} is {value!r}: give {WORDS[kind]}")
        return value

    def need(self, name: str, kind: type) -> Any:
        """An entry that must be there, and hold something."""
        value = self.get(name, kind)
        if value is None or value in ("", [], {}):
            raise BadInput(f"{self.where}: {name} is missing: give {WORDS[kind]}")
        return value

    def count(self, name: str, default: int | None = None) -> int | None:
        """A whole number, at least 1."""
        value: int | None = self.get(name, int, default)
        if value is not None and value < 1:
            raise BadInput(f"{self.where}: {name} is {value}: give at least 1")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not there."""
        values = self.get(name, list, [])
        for value in values:
            if not isinstance(value, str):
                raise BadInput(f"{self.where}: {name} holds {value!r}: give text in quotes")
        return tuple(values)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if it is not there."""
        values = self.get(name, list, [])
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"{self.where}: {name} holds {value!r}: give whole numbers above 0")
        return tuple(values)
