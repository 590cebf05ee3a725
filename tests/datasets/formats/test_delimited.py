"""Text files of rows, as spreadsheets and hospitals write them."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedtailor.datasets import encode, load, read_examples
from tests.datasets.datafiles import refusal, write_text
from tests.datasets.test_own_files import write_parquet

ROWS = [("age", "town", "y"), ("31.5", "Köln", "ill"), ("64", "Bonn", "well")]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_separators_and_encodings_are_recognised(tmp_path, separator, encoding):
    text = "".join(separator.join(row) + "\n" for row in ROWS)
    source = load(str(write_text(tmp_path / "t.csv", text, encoding)))
    assert source.raw.columns["age"].tolist() == [31.5, 64]
    assert source.raw.columns["town"].tolist() == ["Köln", "Bonn"]
    said = [f"'{tmp_path / 't.csv'}' is read as cp1252, since it is not utf-8"]
    assert list(source.notes) == (said if encoding == "cp1252" else [])


def test_tsv_and_gz(tmp_path):
    text = "age\ty\n1\tb\n2\ta\n"
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text.encode()))
    write_text(tmp_path / "u.tsv", text)
    for name in ("t.tsv.gz", "u.tsv"):
        assert load(str(tmp_path / name)).raw.columns["age"].tolist() == [1, 2]
    path = tmp_path / "v.csv.gz"
    path.write_bytes(gzip.compress(b"x" * 1000)[:-9])
    refusal(lambda: load(str(path)), "v.csv.gz", "gzip")
    path.write_bytes(b"age,y\n1,2\n")
    refusal(lambda: load(str(path)), "v.csv.gz", "gzip")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n;y\n950;a\n1.050;b\n12.300;a\n", True),
        ("n;y\n0.950;a\n1.050;b\n", False),
        ("n;y\n950;a\n1.05;b\n", False),
        ("n,y\n950,a\n1.050,b\n", False),
    ],
)
def test_points_that_may_be_thousands_are_said(tmp_path, text, said):
    """950 and 1.050 in one column: a thousand times too little, and nobody would know."""
    notes = load(str(write_text(tmp_path / "t.csv", text))).notes
    assert any("decimal points in n (1.050 is 1.05" in note for note in notes) == said


def test_decimal_commas_are_read_and_said(tmp_path):
    path = write_text(tmp_path / "t.csv", "crp;n;code;y\n1,5;1;1,2,3;0,25\n2.001,25;2;4,5;1,5\n")
    source = load(str(path), task="regression")
    assert source.raw.columns["crp"].tolist() == [1.5, 2001.25]
    assert source.raw.columns["code"].tolist() == ["1,2,3", "4,5"], "lists are no numbers"
    assert source.labels.tolist() == [0.25, 1.5]
    assert "decimal commas in crp, y" in source.notes[0]
    path = write_text(tmp_path / "u.csv", 'n,y\n"1,000",a\n"2,000",b\n')
    assert load(str(path)).raw.columns["n"].tolist() == ["1,000", "2,000"], "thousands"


def test_a_broken_line_of_a_semicolon_file_is_named_by_its_cause(tmp_path):
    path = write_text(tmp_path / "t.csv", "a;b;y\n1;2;0\n3;1\n")
    refusal(lambda: load(str(path)), "line 3 has 2 fields, not 3", "cut at semicolons")


def test_what_is_no_text_is_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"PK\x03\x04\0\0\0\x08abc\0\0")
    refusal(lambda: load(str(path)), "t.csv", "no text")


def test_truth_values_are_the_same_in_every_format(tmp_path):
    pd = pytest.importorskip("pandas")
    from fedtailor.datasets import source_of

    frame = pd.DataFrame({"smokes": [True, False, True], "y": [False, True, True]})
    csv = write_text(tmp_path / "t.csv", "smokes,y\ntrue,FALSE\nfalse,TRUE\ntrue,TRUE\n")
    parquet = write_parquet(tmp_path / "t.parquet", {k: frame[k].tolist() for k in frame})
    sources = [load(str(csv)), load(str(parquet)), source_of(frame)]
    for source in sources:
        assert source.raw.columns["smokes"].tolist() == [1, 0, 1]
        assert source.classes == ("False", "True") and source.labels.tolist() == [0, 1, 1]
        encoder, x = encode(source, np.arange(3))
        for path in (csv, parquet):
            assert read_examples([path], encoder).x.tolist() == x.tolist()


def test_zeros_and_ones_may_come_back_as_truth_values(tmp_path):
    path = write_text(tmp_path / "t.csv", "smokes,age,y\n0,3,a\n1,9,b\n")
    encoder, x = encode(load(str(path)), np.arange(2))
    again = write_text(tmp_path / "u.csv", "smokes,age\nFalse,3\nTrue,9\n")
    assert read_examples([again], encoder).x.tolist() == x.tolist()
    wrong = write_text(tmp_path / "v.csv", "smokes,age\nFalse,True\n")
    refusal(lambda: read_examples([wrong], encoder), "line 2", "'age'", "a number is expected")


def test_events_may_be_truth_values(tmp_path):
    path = write_text(tmp_path / "t.csv", "x,time,event\n1,5,True\n2,3,False\n")
    assert load(str(path), task="survival").labels.tolist() == [[5, 1], [3, 0]]
