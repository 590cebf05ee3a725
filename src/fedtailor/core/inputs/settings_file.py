"""Settings files: a dataclass declares what a TOML table may hold, and is what comes of it.

A field's type says what an entry takes: a number (with limits, see `core.options`), text, a truth
value, a choice of words, a path, a list, a table, or another declaration. It may say that in words
of its own: `Annotated[float, (0.0, 9.9), "metres"]`. What no type can say is checked in the
dataclass's `__post_init__`. Whatever does not fit is one line that names the file, the entry, its
value and, for a slip, the nearest known entry.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.options import option_of, shortened

T = TypeVar("T")
_ENTRY, _REST = "entry", "rest"  # keys of a field's metadata
_TABLE, _TEXT = "a table", "text"
LARGEST = 2**63 - 1  # whole number


def setting(meaning: str = "", default: Any = MISSING) -> Any:
    """Declares a field of a dataclass as an entry of a settings file.

    Args:
      meaning: what it is; said where it is missing.
      default: its value where it is missing; without one it must be there.
    """
    metadata = {_ENTRY: meaning}
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def remaining(known: Callable[[], Collection[str]]) -> Any:
    """Declares a field that takes all other entries of the table, if their names are `known`."""
    return field(default_factory=dict, metadata={_REST: known})


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Within, a message about bad input begins with where it was found.

    Example:
      >>> with naming("w.toml"):
      ...     raise BadInput("beds is 0: give at least one")
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: w.toml: beds is 0: give at least one
    """
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The entries of a TOML file.

    Args:
      path: of the file.
      what: messages call it, e.g. `site file`.

    Raises:
      BadInput: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{what} '{path}' does not exist: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{what} '{path}' cannot be read: {error}") from None
    except ValueError as error:  # a number of thousands of digits is no TOMLDecodeError
        raise BadInput(f"{what} '{path}' is not valid TOML: {error}") from None
    except RecursionError:
        raise BadInput(f"{what} '{path}' is not valid TOML: nested too deeply") from None


def check_table(
    found: Any, kind: type[T], where: str, *, base: Path | None = None, **others: Any
) -> T:
    """A table of a settings file as the dataclass that declares it.

    Args:
      found: the table as read.
      kind: the dataclass; its fields that are no settings are given in `others`.
      where: what messages call the table, e.g. `site file 'a.toml'`.
      base: folder that paths are relative to; None leaves them as they are.
      **others: values of fields that are not read from the file.

    Raises:
      BadInput: an entry is unknown, missing, of the wrong kind or out of range.

    Example:
      >>> from dataclasses import dataclass
      >>> @dataclass(frozen=True, kw_only=True)
      ... class Ward:
      ...     beds: int = setting("how many beds it has")
      ...     name: str = setting("what people call it", "ward")
      >>> check_table({"beds": 12}, Ward, "w.toml")
      Ward(beds=12, name='ward')
      >>> check_table({"beds": "many"}, Ward, "w.toml")
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: w.toml: beds is 'many': give a whole number
      >>> check_table({"bed": 1}, Ward, "w.toml")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      fedtailor.core.errors.BadInput: w.toml: unknown setting 'bed': did you mean 'beds'? known: ...
    """
    if not isinstance(found, dict):
        raise BadInput(f"{where}: is {found!r}: write {_TABLE}")
    declared = dataclasses.fields(kind)  # type: ignore[arg-type]
    entries = {f.name: f for f in declared if _ENTRY in f.metadata}
    rest = next((f for f in declared if _REST in f.metadata), None)
    more = rest.metadata[_REST]() if rest else ()
    for name in found:
        if name not in entries and name not in more:
            raise BadInput(f"{where}: {unknown('setting', name, [*entries, *more])}")
    values = dict(others)
    if rest:
        values[rest.name] = {k: v for k, v in found.items() if k not in entries}
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, entry in entries.items():
        hint, meaning = hints[name], entry.metadata[_ENTRY]
        needed = entry.default is MISSING and entry.default_factory is MISSING
        value = found.get(name)
        if needed and (value is None or value in ("", [], {})):
            raise BadInput(f"{where}: {name} is missing: give {meaning or _words(hint)}")
        if name not in found:
            continue
        # where the usual text is empty, an empty one stands for it
        if isinstance(value, str) and not value.strip() and entry.default != "":
            raise BadInput(f"{where}: {name} is {value!r}: give {_words(hint)}")
        values[name] = _Entry(name, where, _words(hint), base).read(value, hint)
    with naming(where):  # what the dataclass itself finds
        return kind(**values)


class _Entry(typing.NamedTuple):
    """An entry that is being read."""

    name: str
    where: str
    takes: str
    base: Path | None

    def _fault(self, value: Any) -> BadInput:
        return BadInput(f"{self.where}: {self.name} is {shortened(value)}: give {self.takes}")

    def read(self, value: Any, hint: Any) -> Any:
        """The value, checked, as its type has it."""
        hint, _ = _plain_type(hint)
        if dataclasses.is_dataclass(hint):
            where = f"{self.where}, {self.name}"
            return check_table(value, typing.cast(type, hint), where, base=self.base)
        if get_origin(hint) in (tuple, list):
            if not isinstance(value, list):
                raise self._fault(value)
            if get_origin(hint) is list:  # as it is
                return value
            return tuple(self._item(i, v, get_args(hint)[0]) for i, v in enumerate(value))
        if get_origin(hint) is dict:
            if not isinstance(value, dict):
                raise self._fault(value)
            each = get_args(hint)[1]
            return value if each is Any else {k: self._named(k, v, each) for k, v in value.items()}
        if hint is Path:
            text = self.read(value, str)
            return Path(text) if self.base is None else (self.base / text).resolve()
        return self._plain(value, hint)

    def _item(self, number: int, value: Any, hint: Any) -> Any:
        if not dataclasses.is_dataclass(hint):
            return self.read(value, hint)
        name = value.get("name") if isinstance(value, dict) else None
        return self._named(name if isinstance(name, str) else str(number + 1), value, hint)

    def _named(self, name: str, value: Any, hint: Any) -> Any:
        return self._replace(name=f"{self.name} '{name}'", takes=_words(hint)).read(value, hint)

    def _plain(self, value: Any, hint: Any) -> Any:
        """A number, text or truth value: of the very type that was declared, and within limits."""
        option = option_of(self.name, hint, None, "")
        assert option is not None, f"{hint} cannot be declared"
        kind: Any = option.kind
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self._fault(value)
        if option.choices and value not in option.choices:
            raise BadInput(f"{self.where}: {unknown(self.name, value, option.choices)}")
        if not option.holds(value) or (kind is int and abs(value) > LARGEST):
            raise self._fault(value)
        return value


def _plain_type(hint: Any) -> tuple[Any, str]:
    """A type that may be left out as the type itself, and what was said of it in words."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(a for a in get_args(hint) if a is not type(None))
    if get_origin(hint) is Annotated and isinstance(get_args(hint)[-1], str):
        kind, *limits, words = get_args(hint)
        return (Annotated[kind, limits[0]] if limits else kind), words
    return hint, ""


def _words(hint: Any) -> str:
    """What an entry of this type takes."""
    hint, words = _plain_type(hint)
    if words:
        return words
    if dataclasses.is_dataclass(hint) or get_origin(hint) is dict:
        return _TABLE
    if get_origin(hint) is list:
        return "a list"
    if get_origin(hint) is tuple:
        return f"a list, each {_words(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return " or ".join(get_args(hint))
    option = option_of("", hint, None, "")
    if option is None or option.kind is str:
        return _TEXT
    return "true or false" if option.kind is bool else f"a {option.values}"
