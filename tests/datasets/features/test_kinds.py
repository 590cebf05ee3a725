"""What a column looks like."""

from __future__ import annotations

import pytest

from fedtailor.datasets.features.dates import as_days
from fedtailor.datasets.features.kinds import kind_of_texts

CODES = [f"x{i}" for i in range(30)]


@pytest.mark.parametrize(
    ("name", "cells", "typed", "kind"),
    [
        ("a", ["1", "2", ""], False, "number"),
        ("a", ["1", "2", ""], True, "category"),
        ("a", ["", "NA"], False, "number"),
        ("a", ["TRUE", "false", "1"], False, "truth"),
        ("a", ["yes", "no"], False, "category"),
        ("sample", CODES, False, "identifier"),
        ("ward", CODES * 3, False, "category"),
        ("PatientID", CODES * 3, False, "identifier"),
        ("humid", ["a", "b", "c"], False, "category"),
        ("id", ["a", "b", "c"], False, "identifier"),
        ("when", ["2024-01-01T10:00:00Z", "2024-01-02"], True, "date"),
        ("when", ["2024-01-01"] * 3 + ["never"], False, "category"),
        ("n", ["1_000", "2_000"], False, "category"),
    ],
)
def test_kinds(name, cells, typed, kind):
    assert kind_of_texts(name, cells, typed).kind == kind


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([f"{i},000.5" for i in range(30)], "numbers such as '0,000.5' without separators"),
        ([f"{i / 4} mg/l" for i in range(30)], "numbers such as '0.0 mg/l' without"),
        ([str(i) for i in range(30)] + ["high", "low"] * 5, "--types crp=number takes the words"),
    ],
)
def test_numbers_that_are_left_out_say_how_to_be_read(cells, why):
    found = kind_of_texts("crp", cells, typed=False)
    assert found.kind == "identifier" and why in found.why


def test_codes_are_no_numbers():
    for cells in (CODES, [f"2023-{i:04}" for i in range(30)], [f"{i}A{i}" for i in range(30)]):
        assert kind_of_texts("sample", cells, typed=False).why == "30 values in 30 rows"


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("1970-01-01T00:00:00+01:00", -1 / 24),
        ("1970-01-01 00:00:30,5", 30.5 / 86400),
        ("1969/12/31", -1.0),
        ("2024-13-01", None),
        ("1970-01-01 25:00", None),
        ("5", None),
    ],
)
def test_days(text, days):
    assert as_days(text) == (None if days is None else pytest.approx(days))
