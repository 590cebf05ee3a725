"""CSV that a spreadsheet may open: no cell is run, and every text comes back as it was."""

from __future__ import annotations

import pytest

from fedtailor.core.inputs.spreadsheet import csv_cells, csv_text, quoted_cell

RUN = ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "\t=1", "\r=1"]


@pytest.mark.parametrize("text", RUN)
def test_what_a_spreadsheet_would_run_is_quoted(text: str) -> None:
    assert quoted_cell(text) == "'" + text


@pytest.mark.parametrize(
    "value", ["-0.5", "+3", "-inf", "1e-5", -0.5, 3, None, "ward", "a=b", "'tis"]
)
def test_numbers_and_words_are_left_alone(value: object) -> None:
    assert quoted_cell(value) == value


def test_there_and_back() -> None:
    texts = [*RUN[:-1], "'=1", "''=1", "'tis", "a,b", 'say "x"', "", "-", "="]
    head, rows = csv_cells(csv_text(["client"], [[t] for t in texts]))
    assert head == ["client"] and [row[0] for row in rows] == texts


@pytest.mark.parametrize("text", ["", "a,b\n1\n"])
def test_what_is_no_table_is_said_so(text: str) -> None:
    with pytest.raises(ValueError, match="not a table"):
        csv_cells(text)
