"""What the user wants of a table's columns: by option, or in a TOML file beside the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fedtailor.core.errors import BadInput, unknown
from fedtailor.core.inputs.settings_file import check_table, read_toml, setting
from fedtailor.datasets.wording import listed, one_line, quoted

ColumnType = Literal["number", "category", "date", "date-mdy"]
TYPES: tuple[ColumnType, ...] = get_args(ColumnType)
FILLINGS = ("mean", "median", "mean+indicator", "median+indicator")


@dataclass(frozen=True)
class ColumnChoices:
    """Which columns are features, and what they are."""

    drop: tuple[str, ...] = ()  # columns that are left out
    only: tuple[str, ...] = ()  # if any: the columns that are features, no others
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # what a column is
    strict: bool = False  # whether a word among numbers is refused
    missing: Mapping[str, str] = field(default_factory=dict)  # what a missing number becomes
    # whether others than the user chose: then `types` names all features, and whoever uses the
    # table says which of them it lacks
    agreed: bool = False
    # whether a column that a client's table has not counts as missing there, also with `strict`
    lacking: bool = False
    levels: tuple[float, float] | None = None  # of deep images, where others agreed on it

    def refuse(self, why: str) -> None:
        """Raise `BadInput` if columns were chosen: these data have none."""
        for flag, given in self._given():
            if given and not self.agreed:
                raise BadInput(f"--{flag} {quoted(listed(given))} {why}: leave it out")

    def _given(self) -> tuple[tuple[str, Collection[str]], ...]:
        return (
            ("drop", self.drop),
            ("only", self.only),
            ("types", self.types),
            ("missing", self.missing),
        )

    def of(self, features: Sequence[str], columns: Sequence[str], where: str) -> tuple[str, ...]:
        """The features that are left.

        Args:
          features: columns that may be features.
          columns: all of the table.
          where: what messages call the table.
        """
        if self.agreed:
            return tuple(name for name in features if name in self.types) or tuple(features)
        for flag, given in self._given():
            for name in given:
                if name not in columns:
                    raise unknown(
                        f"column in {where} (--{flag})", one_line(name), map(one_line, columns)
                    )
                if name not in features:
                    raise BadInput(
                        f"--{flag} names {quoted(name)}, which is the label, the client or another "
                        f"such column of {where}: leave it out"
                    )
        both = [name for name in self.drop if name in self.only]
        if both:
            raise BadInput(f"{quoted(both[0])} is in --drop and in --only: choose one")
        chosen = self.only or features
        left = tuple(name for name in features if name in chosen and name not in self.drop)
        if not left:
            raise BadInput(f"no feature of {where} is left: drop fewer of {listed(features)}")
        return left


def make_choices(
    drop: str | Sequence[str] = (),
    only: str | Sequence[str] = (),
    types: str | Mapping[str, str] = "",
    strict: bool = False,
    missing: str | Mapping[str, str] = "",
) -> ColumnChoices:
    """Choices from texts with commas, or from lists and a mapping.

    Example:
      >>> make_choices(drop="id, note", types="age=number,ward=category").types
      {'age': 'number', 'ward': 'category'}
    """
    kinds = _pairs(types, "types", "type", TYPES, "age=number")
    gaps = _pairs(missing, "missing", "filling", FILLINGS, "age=median")
    return ColumnChoices(_names(drop), _names(only), kinds, strict, gaps)  # type: ignore[arg-type]


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    found = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in found if name.strip())


def _pairs(
    given: str | Mapping[str, str], flag: str, what: str, known: Sequence[str], example: str
) -> dict[str, str]:
    """What was said of each column: `NAME=VALUE` with commas, or a mapping."""
    pairs = given
    if isinstance(pairs, str):
        cut = [pair.rpartition("=") for pair in pairs.split(",") if pair.strip()]
        for name, equals, value in cut:
            if not name.strip() or not equals:
                wrong = quoted(name + equals + value)
                raise BadInput(f"--{flag} {wrong}: write NAME={what.upper()}, e.g. {example}")
        pairs = {name.strip(): value.strip() for name, _, value in cut}
    for name, value in pairs.items():
        if value not in known:
            raise unknown(f"{what} of column {quoted(name)}", one_line(value), known)
    return dict(pairs)


@dataclass(frozen=True, kw_only=True)
class _File:
    """The file beside the data."""

    drop: list[str] = setting("columns that are left out", [])
    only: list[str] = setting("the columns that are features", [])
    types: dict[str, Any] = setting("what columns are", {})
    strict: bool = setting("whether a word among numbers is refused", False)
    missing: dict[str, Any] = setting("what missing numbers become", {})


def choices_file(data: Path) -> Path:
    """Where choices for the data at a path are looked for.

    Example:
      >>> choices_file(Path("wards/visits.csv.gz")).as_posix()
      'wards/visits.columns.toml'
    """
    name = data.name
    if not data.is_dir():
        name = name.removesuffix(".gz").rpartition(".")[0] or name
    return data.with_name(f"{name}.columns.toml")


def with_file(choices: ColumnChoices, data: Path) -> ColumnChoices:
    """The choices, and for what they leave open those of the file beside the data."""
    path = choices_file(data)
    if choices.agreed or not path.is_file():
        return choices
    where = f"columns file {quoted(path)}"
    found = check_table(read_toml(path, "columns file"), _File, where, base=path.parent)
    try:
        told = make_choices(found.drop, found.only, found.types, found.strict, found.missing)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return replace(
        choices,
        drop=choices.drop or told.drop,
        only=choices.only or told.only,
        types={**told.types, **choices.types},
        strict=choices.strict or told.strict,
        missing={**told.missing, **choices.missing},
    )
