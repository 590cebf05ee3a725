"""What an option takes, and what it says to the rest."""

from __future__ import annotations

from math import inf
from typing import Annotated, Any, Literal

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.core.options import (
    Count,
    NonNegative,
    Percent,
    Search,
    Share,
    Weighting,
    Whole,
    option_of,
)

KINDS: dict[str, Any] = {
    "share": Share,
    "percent": Percent,
    "count": Count,
    "whole": Whole,
    "size": NonNegative,
    "flag": bool,
    "word": str,
    "weighting": Weighting,
    "free": float,
    "between": Annotated[int, (2, 5)],
}


def parse(kind: str, text: Any) -> Any:
    option = option_of(kind, KINDS[kind], None, "")
    assert option is not None
    return option.parse(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("share", "0.5", 0.5),
        ("share", 1, 1.0),
        ("share", "0", 0.0),
        ("count", "3", 3),
        ("whole", 0, 0),
        ("size", "1e-3", 0.001),
        ("flag", "yes", True),
        ("flag", "OFF", False),
        ("flag", True, True),
        ("flag", 0, False),
        ("word", "a b", "a b"),
        ("weighting", "uniform", "uniform"),
        ("free", "-2", -2.0),
        ("between", "5", 5),
    ],
)
def test_takes(kind: str, text: Any, value: Any) -> None:
    found = parse(kind, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("share", "1.01"),
        ("share", "-0.01"),
        ("share", "nan"),
        ("share", "half"),
        ("share", True),
        ("count", 0),
        ("count", "2.0"),
        ("count", 2.0),
        ("count", ""),
        ("whole", -1),
        ("whole", "1e3"),
        ("percent", 101),
        ("flag", "maybe"),
        ("flag", 2),
        ("weighting", "size"),
        ("weighting", ""),
        ("between", 6),
    ],
)
def test_refuses(kind: str, text: Any) -> None:
    with pytest.raises(BadInput) as caught:
        parse(kind, text)
    said = str(caught.value)
    assert f"'{kind}'" in said
    assert repr(text) in said
    assert "it takes" in said


@pytest.mark.parametrize("text", [[3], None, {"a": 1}])
@pytest.mark.parametrize("kind", ["count", "share"])
def test_refuses_what_is_no_scalar(kind: str, text: Any) -> None:
    """TOML has arrays: `rounds = [3]` is a slip like any other."""
    with pytest.raises(BadInput):
        parse(kind, text)


@pytest.mark.parametrize("text", [3, 2.5, ["digits"]])
def test_text_is_text(text: Any) -> None:
    """`data = 3` in a file is no name of a data set."""
    with pytest.raises(BadInput):
        parse("word", text)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("share", "number from 0 to 1"),
        ("count", "whole number, at least 1"),
        ("flag", "true | false"),
        ("weighting", "data | uniform"),
        ("free", "number"),
        ("between", "whole number from 2 to 5"),
    ],
)
def test_says_what_it_takes(kind: str, words: str) -> None:
    option = option_of(kind, KINDS[kind], None, "")
    assert option is not None
    assert option.values == words


def test_ranges_and_choices_come_from_the_type() -> None:
    option = option_of("mu", NonNegative, 0.1, "how much")
    assert option is not None
    assert (option.low, option.high, option.kind, option.default) == (0.0, inf, float, 0.1)
    words = option_of("way", Literal["up", "down"], "up", "")
    assert words is not None
    assert words.choices == ("up", "down")


@pytest.mark.parametrize("hint", [list, dict[str, int], int | None, None])
def test_what_cannot_be_written_on_a_command_line_is_no_option(hint: Any) -> None:
    assert option_of("x", hint, None, "") is None


def test_what_is_tried_stands_beside_the_type() -> None:
    option = option_of("mu", Annotated[NonNegative, Search(0.01, 1, log=True)], 0.1, "")
    assert option is not None
    assert (option.low, option.high, option.search) == (0.0, inf, Search(0.01, 1, log=True))
    words = option_of("how", Annotated[Literal["a", "b"], Search()], "a", "")
    assert words is not None
    assert (words.choices, words.tried) == (("a", "b"), "all")
    plain = option_of("mu", NonNegative, 0.1, "")
    assert plain is not None
    assert (plain.search, plain.tried) == (None, "")
