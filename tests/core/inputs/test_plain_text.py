"""Words of strangers neither move the cursor nor break a line; JSON is read within bounds."""

from __future__ import annotations

import io
import logging

import pytest

from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import AbsurdJson, LogLine, check_name, parse_json, printable

HARMFUL = ["\x1b[2J", "\n", "\r", "\x07", "\x9b2J", "\u2028", "\u202e", "\u2066", "\x00", "\ud800"]


@pytest.mark.parametrize("harm", HARMFUL)
def test_no_name_holds_what_a_terminal_obeys(harm: str) -> None:
    with pytest.raises(BadInput, match="remove") as found:
        check_name(f"ward {harm}", "client")
    assert str(found.value).isprintable()
    assert printable(f"ward {harm}").isprintable()


@pytest.mark.parametrize("name", ["St. Mary's", "Größe 7", "病院", "ward\u00a03", "[/bold]", "क्‍ष"])
def test_names_of_people_are_left_alone(name: str) -> None:
    assert check_name(name, "client") == printable(name) == name


def test_a_log_keeps_one_line_for_one_message() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LogLine("%(levelname)s %(message)s"))
    record = logging.LogRecord("a", logging.WARNING, "", 0, "%s left", ("x\nERROR all lost",), None)
    handler.emit(record)
    assert out.getvalue() == "WARNING x\\nERROR all lost left\n"


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a":' * 200_000, "[1" + "0" * 5000 + "]", "[1" + "0" * 300 + "]", "[-1e999]"],
)
def test_absurd_json_is_told_from_json(text: str) -> None:
    with pytest.raises(AbsurdJson) as found:
        parse_json(text)
    assert len(str(found.value)) < 60


def test_json_is_read_as_ever() -> None:
    assert parse_json('{"a": [1, -2.5e-3, null, true, "x"], "n": 18446744073709551615}') == {
        "a": [1, -0.0025, None, True, "x"],
        "n": 2**64 - 1,
    }
