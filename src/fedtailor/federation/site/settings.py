"""A site's own file of settings: its data, its folder, and what it agrees to.

    client = 2                      # the site's number in the federation, from 0
    data = "ward.csv"               # anything that `fedtailor run --data` takes
    folder = "site"                 # where state and model are kept
    allow = ["fedala", "fedavg"]    # methods it takes part in; left out: all that come with us

Paths are relative to the file. For a trial on data that come with FedTailor, `clients` and
`partition` say how they are divided, and the site takes the share of its number.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.core.errors import BadInput, unknown
from fedtailor.federation.protocol.packet import Limits
from fedtailor.results.config import settings

# Of a run's settings, those that say where rows come from and how they are cut.
OF_DATA = (
    "data", "data_dir", "label", "client_column", "text_column", "image_size", "partition",
    "clients", "partition_seed", "min_samples", "test", "val", "official_test",
)  # fmt: skip
PATHS = ("data", "data_dir")
SCORES, BASELINE = "scores", "baseline"
METRICS = (SCORES, BASELINE)  # what a site may tell of its test rows: counts and losses, no rows


@dataclass(frozen=True)
class SiteSettings:
    """What a site's file says.

    Attributes:
      path: of the file.
      client: the site's number in the federation.
      name: what people call it.
      folder: where state, answers and models are kept.
      data: settings of the data layer.
      allow: methods that it takes part in; None: all that come with FedTailor.
      allow_models: networks beside those that come with FedTailor (`package.module:factory`).
      share: metrics that may leave.
      max_rounds: refuse after so many rounds; 0: no limit.
      limits: of a message.
      begin_again: start anew where the site's state is lost, if the method can.
      idle: seconds after which its warm process ends.
      threads: of torch; 0 leaves torch its choice.
    """

    path: Path
    client: int
    name: str
    folder: Path
    data: dict[str, Any]
    allow: tuple[str, ...] | None = None
    allow_models: tuple[str, ...] = ()
    share: tuple[str, ...] = METRICS
    max_rounds: int = 0
    limits: Limits = field(default_factory=Limits)
    begin_again: bool = False
    idle: float = 600.0
    threads: int = 0


_WORDS = ("allow", "allow_models", "share")
_NUMBERS = ("client", "max_rounds", "max_bytes", "max_arrays", "threads")
_OWN = ("name", "folder", "idle", "begin_again", *_WORDS, *_NUMBERS)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The entries of a TOML file.

    Raises:
      BadInput: it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{what} '{path}' does not exist: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{what} '{path}' cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{what} '{path}' is not valid TOML: {error}") from None


def whole_number(found: dict[str, Any], name: str, default: int, least: int, where: str) -> int:
    """A whole number out of a table, at least `least`."""
    value = found.get(name, default)
    if type(value) is not int or value < least:
        raise BadInput(f"{where}: {name} is {value!r}: give a whole number, at least {least}")
    return value


def seconds(found: dict[str, Any], name: str, default: float, where: str) -> float:
    """A time out of a table."""
    value = found.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise BadInput(f"{where}: {name} is {value!r}: give seconds, above 0")
    return float(value)


def _words(found: dict[str, Any], name: str, where: str) -> tuple[str, ...] | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise BadInput(f"{where}: {name} is {value!r}: give a list of names, e.g. ['fedala']")
    return tuple(value)


def _of_data(found: dict[str, Any], base: Path, where: str) -> dict[str, Any]:
    from fedtailor.datasets import KNOWN

    known = settings()
    try:
        values = {name: known[name][0].parse(found[name]) for name in OF_DATA if name in found}
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if not values.get("data"):
        raise BadInput(f'{where}: names no data: give data = "...", a path or a known data set')
    for name in PATHS:
        value = values.get(name)
        if value and not (name == "data" and value in KNOWN):
            values[name] = str((base / value).resolve())
    return values


def read_settings(path: Path) -> SiteSettings:
    """The settings in a site's file.

    Raises:
      BadInput: something in it is unknown, missing or out of range.
    """
    path = path.expanduser().resolve()
    found, where = read_toml(path, "site file"), f"site file '{path}'"
    for name in found:
        if name not in (*_OWN, *OF_DATA):
            raise BadInput(f"{where}: {unknown('setting', name, [*_OWN, *OF_DATA])}")
    if "client" not in found:
        raise BadInput(f"{where}: client is missing: give the site's number, from 0")
    numbers = {
        name: whole_number(found, name, default, least, where)
        for name, default, least in (
            ("client", 0, 0),
            ("max_rounds", 0, 0),
            ("max_bytes", Limits().bytes, 1),
            ("max_arrays", Limits().arrays, 1),
            ("threads", 0, 0),
        )
    }
    name, folder = found.get("name", f"site-{numbers['client']}"), found.get("folder", "site")
    for key, value in (("name", name), ("folder", folder)):
        if not isinstance(value, str) or not value.strip() or "\n" in value:
            raise BadInput(f"{where}: {key} is {value!r}: give text")
    again = found.get("begin_again", False)
    if not isinstance(again, bool):
        raise BadInput(f"{where}: begin_again is {again!r}: give true or false")
    share = _words(found, "share", where)
    for one in share or ():
        if one not in METRICS:
            raise BadInput(f"{where}: {unknown('metric', one, METRICS)}")
    return SiteSettings(
        path,
        numbers["client"],
        name,
        (path.parent / folder).resolve(),
        _of_data(found, path.parent, where),
        _words(found, "allow", where),
        _words(found, "allow_models", where) or (),
        METRICS if share is None else share,
        numbers["max_rounds"],
        Limits(numbers["max_bytes"], numbers["max_arrays"]),
        again,
        seconds(found, "idle", 600.0, where),
        numbers["threads"],
    )
