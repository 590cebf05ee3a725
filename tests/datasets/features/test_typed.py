"""What columns are taken for, what is left out, and that it is said."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from fedtailor.core.errors import BadInput
from fedtailor.datasets import (
    Encoder,
    encode,
    encode_clients,
    fit_encoder,
    load,
    make_choices,
    read_examples,
    source_of,
)
from tests.datasets.datafiles import refusal, write_text
from tests.datasets.test_own_files import write_parquet

WORDS = ["the", "patient", "came", "in", "with", "pain", "on", "day"]


def visits(tmp_path, rows=60, **cells):
    """A table of visits with a few odd cells: COLUMN_ROW=TEXT."""
    head = "patient_id,seen,note,crp,ward,y"
    lines = []
    for i in range(rows):
        row = {
            "patient_id": f"P{i:04d}", "seen": f"{1 + i % 28:02d}.03.2024",
            "note": f"{' '.join(WORDS)} {i}", "crp": f"{i / 7:.2f}", "ward": "ABC"[i % 3],
            "y": "ill" if i % 2 else "well",
        }  # fmt: skip
        for place, text in cells.items():
            name, _, at = place.rpartition("_")
            if int(at) == i:
                row[name] = text
        lines.append(",".join(row[name] for name in head.split(",")))
    return str(write_text(tmp_path / "visits.csv", "\n".join([head, *lines]) + "\n"))


def test_identifiers_and_free_text_are_left_out_and_dates_become_numbers(tmp_path):
    source = load(visits(tmp_path))
    assert source.raw.names == ("seen", "crp", "ward")
    assert source.raw.columns["seen"][0] == (datetime.date(2024, 3, 1).toordinal() - 719163)
    left_out, dates = source.notes
    assert "patient_id (identifier: 60 values in 60 rows)" in left_out
    assert "note (free text: 9 words each)" in left_out and "--types NAME=category" in left_out
    assert dates == "dates become days since 1970: seen"
    assert {r.name: r.kind for r in source.readings}["note"] == "free text"
    assert encode(source, np.arange(40))[1].shape == (60, 5)


def test_a_word_among_numbers_is_missing_and_named_with_its_line(tmp_path):
    path = visits(tmp_path, crp_3="<5", crp_50="n/k")
    source = load(path)
    assert np.flatnonzero(np.isnan(source.raw.columns["crp"])).tolist() == [3, 50]
    assert "'crp' holds numbers but for '<5' (line 5), 'n/k' (line 52)" in source.notes[-1]
    strict = make_choices(strict=True)
    refusal(lambda: load(path, columns=strict), "'crp'", "'<5' (line 5)", "--strict")
    # the model takes such words in new rows, too, and says so
    encoder, _ = encode(source, np.arange(60))
    new = write_text(tmp_path / "n.csv", "seen,crp,ward\n2024-03-01,<3,A\n2024-03-02,9,A\n")
    found = read_examples([new], encoder)
    assert found.notes == ["crp '<3' is no number: taken as missing", ""]
    wrong = write_text(tmp_path / "w.csv", "seen,crp,ward\nsoon,1,A\n")
    refusal(lambda: read_examples([wrong], encoder), "line 2", "'seen'", "a date is expected")


def test_codes_with_a_few_letters_stay_categories(tmp_path):
    rows = "".join(f"{i % 5},{'ab'[i % 2]}\n" for i in range(40))
    source = load(str(write_text(tmp_path / "t.csv", "code,y\n" + rows + "X,a\n")))
    assert source.raw.columns["code"].tolist()[-1] == "X" and source.notes == ()


def test_columns_are_chosen_by_name(tmp_path):
    path = visits(tmp_path)
    assert load(path, columns=make_choices(drop="seen,ward")).raw.names == ("crp",)
    assert load(path, columns=make_choices(only="ward")).raw.names == ("ward",)
    kept = load(path, columns=make_choices(types="note=category,ward=category", only="note"))
    assert encode(kept, np.arange(60))[1].shape == (60, 60)
    refusal(lambda: load(path, columns=make_choices(drop="wrad")), "'wrad'", "'ward'", "--drop")
    refusal(lambda: load(path, columns=make_choices(drop="y")), "'y'", "label")
    refusal(lambda: load(path, columns=make_choices(drop="crp", only="crp")), "--drop", "--only")
    refusal(lambda: load(path, columns=make_choices(only="patient_id")), "nothing to learn from")
    refusal(lambda: load(path, columns=make_choices(types="ward=number")), "'ward'", "no cell")
    refusal(lambda: make_choices(types="ward=nmber"), "'nmber'", "number")
    refusal(lambda: make_choices(types="ward"), "'ward'", "NAME=TYPE")
    refusal(lambda: load("digits", columns=make_choices(drop="x")), "--drop", "digits")


def test_numbers_as_categories_are_the_same_in_every_format(tmp_path):
    chosen = make_choices(types={"code": "category"})
    csv = write_text(tmp_path / "t.csv", "code,y\n3,a\n3.0,b\n,b\n")
    parquet = write_parquet(tmp_path / "t.parquet", {"code": [3, 3, None], "y": ["a", "b", "b"]})
    for path in (csv, parquet):
        source = load(str(path), columns=chosen)
        assert source.raw.columns["code"].tolist() == ["3", "3", ""]
        encoder, x = encode(source, np.arange(3))
        for other in (csv, parquet):
            assert read_examples([other], encoder).x.tolist() == x.tolist()


def test_a_file_beside_the_data_says_the_same(tmp_path):
    path = visits(tmp_path)
    beside = write_text(
        tmp_path / "visits.columns.toml", 'drop = ["seen"]\n[types]\nnote = "category"\n'
    )
    assert load(path).raw.names == ("note", "crp", "ward")
    assert load(path, columns=make_choices(drop="note")).raw.names == ("seen", "crp", "ward")
    write_text(beside, 'dorp = ["seen"]\n')
    refusal(lambda: load(path), "visits.columns.toml", "'dorp'", "'drop'")
    write_text(beside, '[types]\nnote = "words"\n')
    refusal(lambda: load(path), "visits.columns.toml", "'words'")
    write_text(beside, "[types]\nnote = 3\n")
    refusal(lambda: load(path), "visits.columns.toml", "'3'")


def test_parquet_and_frames_with_timestamps(tmp_path):
    pd = pytest.importorskip("pandas")
    days = [datetime.datetime(2024, 3, 1, 12), datetime.datetime(2024, 3, 2), None]
    parquet = write_parquet(tmp_path / "t.parquet", {"seen": days, "y": ["a", "b", "b"]})
    frame = pd.DataFrame({"seen": pd.to_datetime(days), "y": ["a", "b", "b"]})
    zoned = frame.assign(seen=frame["seen"].dt.tz_localize("UTC"))
    for source in (load(str(parquet)), source_of(frame), source_of(zoned)):
        np.testing.assert_array_equal(source.raw.columns["seen"], [19783.5, 19784, np.nan])
    encoder, x = encode(source, np.arange(3))
    csv = write_text(tmp_path / "t.csv", 'seen\n2024-03-01 12:00\n2024-03-02\n""\n')
    np.testing.assert_allclose(read_examples([csv], encoder).x, x)


def test_dates_in_either_order(tmp_path):
    path = write_text(tmp_path / "t.csv", "d,y\n01/02/2020,a\n05/04/2020,b\n")
    source = load(str(path))
    assert np.diff(source.raw.columns["d"]).tolist() == [64]
    assert "day first (else: --types d=date-mdy)" in source.notes[1]
    other = load(str(path), columns=make_choices(types="d=date-mdy"))
    assert np.diff(other.raw.columns["d"]).tolist() == [123]
    write_text(path, "d,y\n01/02/2020,a\n03/14/2020,b\n")
    assert len(load(str(path)).notes) == 1, "the second can only be a month first"


def test_numeric_identifiers_go_by_their_name(tmp_path):
    rows = "".join(f"{i},{9000 + i // 3},{i * i},{'ab'[i % 2]}\n" for i in range(90))
    source = load(str(write_text(tmp_path / "t.csv", "Unnamed: 0,patientId,income,y\n" + rows)))
    assert source.raw.names == ("income",)
    assert "it counts the rows" in source.notes[0] and "30 values in 90 rows" in source.notes[0]


def test_what_a_missing_number_becomes_is_chosen_and_said(tmp_path):
    rows = "".join(f"{c},{c},{'ab'[i % 2]},{'uv'[i % 2]}\n" for i, c in enumerate(("", 1, 2, 9)))
    path = write_text(tmp_path / "t.csv", "p,q,y,w\n" + rows)
    source = load(str(path))
    assert source.notes[0].startswith(
        "missing numbers become those of training rows: p (1 of 4: mean), q (1 of 4: mean); else"
    )
    chosen = make_choices(missing="p=median,q=mean+indicator")
    source = load(str(path), columns=chosen)
    assert "p (1 of 4: median), q (1 of 4: mean+indicator)" in source.notes[0]
    encoder, x = encode(source, np.arange(4), normalise="none")
    np.testing.assert_allclose(x[:, :3], [[2, 4, 1], [1, 1, 0], [2, 2, 0], [9, 9, 0]])
    again = Encoder.from_json(encoder.to_json())
    assert again == encoder and read_examples([path], again).x.tolist() == x.tolist()
    # each client's own rows fill its gaps
    train = [np.array([0, 1]), np.array([2, 3])]
    common = fit_encoder(source, train, normalise="own")
    fits = encode_clients(source, common, ["a", "b"], train, train).encoder
    assert [fits.of_client(c).columns[0].fill for c in "ab"] == [1, 5.5]
    with pytest.raises(BadInput, match="sums tell no median"):
        fit_encoder(source, train, normalise="federated")
    refusal(lambda: load(str(path), columns=make_choices(missing="w=mean")), "'w'", "category")
    refusal(lambda: make_choices(missing="w=zero"), "'zero'", "median")
