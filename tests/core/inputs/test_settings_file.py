"""Settings files: what a declaration takes, and the line that a slip gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.settings_file import check_table, read_toml, remaining, setting
from fedtailor.core.options import Count


@dataclass(frozen=True, kw_only=True)
class Bed:
    name: str = setting("its name")
    width: float = setting("in metres", 0.9)

    def __post_init__(self) -> None:
        if self.name == "floor":
            raise BadInput("name is 'floor': give a bed")


@dataclass(frozen=True, kw_only=True)
class Ward:
    path: str
    beds: Count = setting("how many beds it has")
    name: str = setting("what people call it", "ward")
    note: str = setting("anything", "")
    full: bool = setting("whether it is", False)
    share: Annotated[float, (0.0, 1.0), "a part of 1"] = setting("of the house", 0.5)
    kind: Literal["acute", "day"] = setting("of ward", "acute")
    folder: Path | None = setting("where its files lie", None)
    doctors: tuple[str, ...] = setting("their names", ())
    nurses: Annotated[tuple[str, ...], "names"] | None = setting("their names", None)
    first: Bed | None = setting("the first bed", None)
    all: tuple[Bed, ...] = setting("every bed", ())
    by_door: dict[str, Bed] = setting("beds by door", {})
    free: dict[str, Any] = setting("anything by name", {})
    other: dict[str, Any] = remaining(lambda: ("colour", "smell"))


def read(**found: Any) -> Ward:
    return check_table({"beds": 3} | found, Ward, "w.toml", base=Path("/base"), path="here")


def test_every_kind_of_entry() -> None:
    found = read(
        name="north", full=True, share=1, kind="day", folder="files", doctors=["A", "B"],
        first={"name": "one"}, all=[{"name": "two", "width": 1}], by_door={"left": {"name": "l"}},
        free={"x": [1]}, colour="blue",
    )  # fmt: skip
    assert found == Ward(
        path="here", beds=3, name="north", full=True, share=1.0, kind="day",
        folder=Path("/base/files"), doctors=("A", "B"), first=Bed(name="one"),
        all=(Bed(name="two", width=1.0),), by_door={"left": Bed(name="l")}, free={"x": [1]},
        other={"colour": "blue"},
    )  # fmt: skip
    assert type(found.share) is float
    assert read() == Ward(path="here", beds=3)
    assert read(note="").note == ""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"nam": "x"}, "w.toml: unknown setting 'nam': did you mean 'name'? known: beds, name"),
        ({"smel": 1}, "did you mean 'smell'?"),
        ({"beds": 0}, "w.toml: beds is 0: give a whole number, at least 1"),
        ({"beds": 2.0}, "beds is 2.0: give a whole number"),
        ({"beds": True}, "beds is True"),
        ({"beds": "3"}, "beds is '3'"),
        ({"name": 3}, "name is 3: give text"),
        ({"name": " "}, "name is ' ': give text"),
        ({"full": 1}, "full is 1: give true or false"),
        ({"share": 1.5}, "share is 1.5: give a part of 1"),
        ({"share": float("nan")}, "share is nan"),
        ({"kind": "daily"}, "unknown kind 'daily': did you mean 'day'?"),
        ({"folder": 1}, "folder is 1: give text"),
        ({"doctors": "A"}, "doctors is 'A': give a list, each text"),
        ({"doctors": [1]}, "doctors is 1: give a list, each text"),
        ({"nurses": "A"}, "nurses is 'A': give names"),
        ({"nurses": [1]}, "nurses is 1: give names"),
        ({"first": 1}, "w.toml, first: is 1: write a table"),
        ({"first": {}}, "w.toml, first: name is missing: give its name"),
        ({"all": [{"name": "two", "wide": 1}]}, "w.toml, all 'two': unknown setting 'wide'"),
        ({"all": [{}]}, "w.toml, all '1': name is missing"),
        ({"by_door": {"left": {"name": 1}}}, "w.toml, by_door 'left': name is 1"),
        ({"first": {"name": "floor"}}, "w.toml, first: name is 'floor': give a bed"),
        ({"free": []}, "free is []: give a table"),
    ],
)
def test_a_slip_is_one_line(found: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        read(**found)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_must_be_there() -> None:
    for table in ({}, {"beds": None}):
        with pytest.raises(BadInput, match=r"w.toml: beds is missing: give how many beds it has"):
            check_table(table, Ward, "w.toml", path="here")
    with pytest.raises(BadInput, match=r"w.toml: is 3: write a table"):
        check_table(3, Ward, "w.toml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ward file .*no.toml' does not exist"):
        read_toml(tmp_path / "no.toml", "ward file")
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(BadInput, match=r"bad.toml' is not valid TOML"):
        read_toml(tmp_path / "bad.toml", "ward file")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with pytest.raises(BadInput, match=r"odd.toml' cannot be read"):
        read_toml(tmp_path / "odd.toml", "ward file")
