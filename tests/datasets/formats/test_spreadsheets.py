"""Spreadsheets."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from fedtailor.datasets import load
from tests.datasets.datafiles import refusal


def test_the_first_sheet_is_read_as_a_csv_would_be(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("pandas")
    book = openpyxl.Workbook()
    for row in (
        ("age", "seen", "smokes", "ward", "label"),
        (31.5, datetime.datetime(2024, 3, 1), True, "A", "ill"),
        (None, None, None, None, None),
        (64, datetime.datetime(2024, 3, 2, 12), False, None, "well"),
    ):
        book.active.append(row)
    book.create_sheet("notes").append(("x",))
    book.save(tmp_path / "t.xlsx")
    source = load(str(tmp_path / "t.xlsx"))
    columns = source.raw.columns
    assert columns["age"].tolist() == [31.5, 64] and columns["smokes"].tolist() == [1, 0]
    assert np.diff(columns["seen"]).tolist() == [1.5] and columns["ward"].tolist() == ["A", ""]
    assert "has 2 sheets: 'Sheet', the first, is read" in source.notes[0]
    book.active["E4"] = None
    book.save(tmp_path / "t.xlsx")
    refusal(lambda: load(str(tmp_path / "t.xlsx")), "row 4", "no label")
    (tmp_path / "t.xlsx").write_bytes(b"PK no book")
    refusal(lambda: load(str(tmp_path / "t.xlsx")), "t.xlsx", "readable spreadsheet")


def test_ods(tmp_path):
    pytest.importorskip("odf")
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [31.5, 64], "label": ["ill", "well"]})
    frame.to_excel(tmp_path / "t.ods", engine="odf", index=False)
    assert load(str(tmp_path / "t.ods")).raw.columns["age"].tolist() == [31.5, 64]


def test_what_is_needed_is_said(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    (tmp_path / "t.xlsx").write_bytes(b"")
    refusal(lambda: load(str(tmp_path / "t.xlsx")), "openpyxl", "pip install 'fedtailor[sheets]'")
