"""The user's own data, in each layout, and what is said when it cannot be used."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
from PIL import Image

import fedtailor
from fedtailor.datasets import (
    ColumnChoices,
    Encoder,
    encode,
    load,
    make_choices,
    read_examples,
)
from tests.datasets.datafiles import images, png_bytes, refusal, write_image, write_text

TABLE = "age,sex,site,label\n50,f,north,ill\n,m,south,well\n70,?,north,well\n61,f,east,ill\n"


def write_clinics(root, shape=(8, 8)):
    for i, (clinic, name) in enumerate([("b", "ill"), ("b", "well"), ("a", "ill"), ("a", "odd")]):
        write_image(root / f"clinic-{clinic}" / name / "0.png", images(*shape, seed=i))
    return root


# Folder per client, images.


def test_a_folder_per_client_with_class_folders(tmp_path):
    source = load(str(write_clinics(tmp_path)))
    assert source.kind == "image" and source.raw.shape == (4, 1, 8, 8)
    assert source.owners == ("clinic-a", "clinic-b") and source.classes == ("ill", "odd", "well")
    assert source.owner.tolist() == [0, 0, 1, 1] and source.labels.tolist() == [0, 1, 0, 2]
    np.testing.assert_array_equal(source.raw[2, 0], images(8, 8, seed=0))
    assert not source.official_test.any()


def test_images_are_brought_to_one_mode_and_size(tmp_path):
    write_clinics(tmp_path)
    write_image(tmp_path / "clinic-b" / "well" / "1.jpg", np.full((20, 10, 3), 77, np.uint8))
    raw = load(str(tmp_path)).raw
    assert raw.shape == (5, 3, 8, 8)
    assert abs(raw[4].astype(int) - 77).max() <= 2
    assert (raw[0, 0] == raw[0, 1]).all()
    assert load(str(tmp_path), image_size=5).raw.shape == (5, 3, 5, 5)


def test_16_bit_images_are_scaled_by_the_range_they_hold(tmp_path):
    """A scan of 12 bits keeps 256 grey levels, and new scans are scaled as those were."""
    write_clinics(tmp_path)
    deep = (np.arange(64, dtype=np.uint16) * 65).reshape(8, 8)  # up to 4095
    path = tmp_path / "clinic-a" / "ill" / "0.png"
    Image.fromarray(deep).save(path)
    source = load(str(tmp_path))
    np.testing.assert_array_equal(source.raw[0, 0], np.rint(deep.astype(float) * 255 / 4095))
    assert source.levels == (0, 4095) and "1 images of 16 bits are scaled" in source.notes[-1]
    encoder, x = encode(source, np.arange(4))
    encoder = Encoder.from_json(encoder.to_json())
    np.testing.assert_array_equal(read_examples([path], encoder).x[0], x[0])
    dark = tmp_path / ".dark.png"  # hidden from the folder
    Image.fromarray(deep // 2).save(dark)
    assert read_examples([dark], encoder).x.max() == 127
    agreed = ColumnChoices(agreed=True, levels=(0, 65535))
    np.testing.assert_array_equal(load(str(tmp_path), columns=agreed).raw[0, 0], deep >> 8)


def test_sizes_modes_and_orientations_are_counted(tmp_path):
    write_clinics(tmp_path)
    write_image(tmp_path / "clinic-b" / "well" / "1.png", np.full((20, 10, 3), 77, np.uint8))
    turned = Image.fromarray(np.tile(np.array([[0], [255]], np.uint8), (4, 8)))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(tmp_path / "clinic-a" / "odd" / "1.png", exif=exif)
    source = load(str(tmp_path))
    assert source.notes == (
        "images of 2 sizes (8x8: 5, 10x20: 1) become 8x8, that of the first (else: --image-size)",
        "images of 2 modes (L: 5, RGB: 1) become colour",
        "1 images are turned upright, as their camera noted",
    )
    rows = source.raw[2, 0]
    assert (rows == rows[0]).all() and rows[0].tolist() != [rows[0, 0]] * 8, "rows became columns"


def test_broken_images_are_named_together(tmp_path):
    write_clinics(tmp_path)
    (tmp_path / "clinic-b" / "ill" / "0.png").write_bytes(b"no image")
    late = tmp_path / "clinic-a" / "odd" / "0.png"
    late.write_bytes(late.read_bytes()[:60])
    refusal(lambda: load(str(tmp_path)), "2 images", "clinic-b/ill/0.png", "clinic-a/odd/0.png")


def test_what_other_programs_leave_in_folders_is_passed_over(tmp_path):
    write_clinics(tmp_path)
    for folder in (tmp_path, tmp_path / "clinic-a", tmp_path / "clinic-a" / "ill"):
        for name in ("Thumbs.db", "desktop.ini", "._0.png", ".DS_Store"):
            (folder / name).write_bytes(b"x")
    (tmp_path / "__MACOSX").mkdir()
    assert len(load(str(tmp_path))) == 4


def test_hidden_files_are_ignored_and_others_named(tmp_path):
    write_clinics(tmp_path)
    for folder in (tmp_path, tmp_path / "clinic-a", tmp_path / "clinic-a" / "ill"):
        (folder / ".DS_Store").write_bytes(b"x")
    assert len(load(str(tmp_path))) == 4
    write_text(tmp_path / "clinic-a" / "ill" / "notes.doc", "x")
    refusal(lambda: load(str(tmp_path)), "notes.doc", "not an image")


@pytest.mark.parametrize("cut", [0, 20, 60])
def test_broken_images_are_named(tmp_path, cut):
    path = write_clinics(tmp_path) / "clinic-b" / "ill" / "0.png"
    path.write_bytes(path.read_bytes()[:cut])
    refusal(lambda: load(str(tmp_path)), "clinic-b/ill/0.png", "image")


def test_empty_folders_are_named(tmp_path):
    write_clinics(tmp_path)
    (tmp_path / "clinic-a" / "rare").mkdir()
    refusal(lambda: load(str(tmp_path)), "clinic-a/rare", "no images")
    (tmp_path / "clinic-a" / "rare").rmdir()
    (tmp_path / "clinic-c").mkdir()
    refusal(lambda: load(str(tmp_path)), "clinic-c", "empty")


def test_a_file_name_with_a_line_break_stays_on_one_line(tmp_path):
    write_clinics(tmp_path)
    write_text(tmp_path / "clinic-a" / "ill" / "a\nb.doc", "x")
    refusal(lambda: load(str(tmp_path)), "a b.doc")


def test_columns_cannot_be_named_for_images(tmp_path):
    write_clinics(tmp_path)
    refusal(lambda: load(str(tmp_path), label="y"), "--label 'y'")


# One folder of class folders.


def test_one_folder_of_class_folders_has_no_owners(tmp_path):
    for i, name in enumerate(("cat", "dog")):
        write_image(tmp_path / name / "0.png", images(6, 4, 3, seed=i))
    source = load(str(tmp_path))
    assert source.owners == () and source.owner.tolist() == [-1, -1]
    assert source.raw.shape == (2, 3, 6, 4) and source.classes == ("cat", "dog")


def test_train_and_test_folders_are_a_split_not_clients(tmp_path):
    for split in ("test", "train"):
        for name in ("cat", "dog"):
            write_image(tmp_path / split / name / "0.png", images(4, 4))
    source = load(str(tmp_path))
    assert source.owners == () and source.official_test.tolist() == [False] * 2 + [True] * 2


def test_a_class_without_images_among_class_folders(tmp_path):
    write_image(tmp_path / "cat" / "0.png", images(4, 4))
    (tmp_path / "dog").mkdir()
    refusal(lambda: load(str(tmp_path)), "dog", "empty")
    (tmp_path / "dog" / ".hidden").write_bytes(b"")
    refusal(lambda: load(str(tmp_path)), "dog")


def test_one_class_is_too_few(tmp_path):
    write_image(tmp_path / "cat" / "0.png", images(4, 4))
    assert load(str(tmp_path)).all_alike == "only the class 'cat'"
    refusal(lambda: load(str(tmp_path)).require_difference(), "'cat'", "nothing to tell apart")


def test_a_folder_without_folders(tmp_path):
    write_text(tmp_path / "a.csv", TABLE)
    refusal(lambda: load(str(tmp_path)), "a.csv", "no folders")


# One table.


def test_one_table(tmp_path):
    path = write_text(tmp_path / "t.csv", TABLE, "utf-8-sig")
    source = load(str(path))
    assert source.kind == "table" and source.raw.names == ("age", "sex")
    np.testing.assert_array_equal(source.raw.columns["age"], [50, np.nan, 70, 61])
    assert source.raw.columns["sex"].tolist() == ["f", "m", "", "f"]
    assert source.raw.columns["sex"].dtype.kind == "U"
    assert source.owners == ("east", "north", "south") and source.owner.tolist() == [1, 2, 1, 0]
    assert source.classes == ("ill", "well") and source.labels.tolist() == [0, 1, 1, 0]


def test_a_plain_file_name_is_a_path_when_it_exists(tmp_path, monkeypatch):
    write_text(tmp_path / "t.csv", TABLE)
    monkeypatch.chdir(tmp_path)
    assert len(load("t.csv")) == 4
    refusal(lambda: load("u.csv"), "u.csv")
    refusal(lambda: load("./u.csv"), "u.csv", "does not exist")


def test_named_columns(tmp_path):
    path = write_text(tmp_path / "t.csv", TABLE)
    source = load(str(path), label="site", client="label")
    assert source.classes == ("east", "north", "south") and source.owners == ("ill", "well")
    assert source.raw.names == ("age", "sex")


def test_two_usual_client_columns_mean_no_owners(tmp_path):
    path = write_text(tmp_path / "t.csv", "x,site,user,y\n1,a,p,0\n2,b,q,1\n")
    source = load(str(path))
    assert source.owners == () and source.raw.names == ("x", "site", "user")


def test_labels_are_sorted_as_numbers(tmp_path):
    rows = "".join(f"{i},{i}.0\n" for i in (10, 9, 2))
    source = load(str(write_text(tmp_path / "t.csv", "x,y\n" + rows)))
    assert source.classes == ("2", "9", "10") and source.labels.tolist() == [2, 1, 0]


def test_codes_with_underscores_are_no_numbers(tmp_path):
    source = load(str(write_text(tmp_path / "t.csv", "x,y\n1_0,a\n2_0,b\n")))
    assert source.raw.columns["x"].tolist() == ["1_0", "2_0"]


def test_text_columns(tmp_path):
    path = write_text(tmp_path / "t.csv", "text,label,site\nGood day,a,n\n007,b,s\n")
    source = load(str(path))
    assert source.kind == "text" and source.raw == ("Good day", "007")
    assert source.owners == ("n", "s")
    path = write_text(tmp_path / "u.csv", "note,age,label\nhello,1,a\nworld,2,b\n")
    assert load(str(path)).kind == "table"
    assert load(str(path), text="note").raw == ("hello", "world")


@pytest.mark.parametrize(
    ("content", "options", "named"),
    [
        ("a,b\n1,2\n", {}, ["t.csv", "a, b", "--label"]),
        ("a,y\n1,2\n3\n", {}, ["line 3", "1 fields", "2"]),
        ("a,y\n1,2\n\n3,4,5\n", {}, ["line 4", "3 fields"]),
        ("a,y\n1,0\n3,\n", {}, ["line 3", "no label", "'y'"]),
        ("a,y\n1,0\n3,NaN\n", {}, ["line 3", "no label"]),
        ("a,y\n1,\n3,x\n2,?\n4,z\n", {}, ["line 2", "(1 more has none): label or remove them"]),
        ("a,y\n1,none\n3,ill\n", {}, ["line 2 has 'none', which stands for no label", "another"]),
        ("a,y\n1,1\n3,-1\n", {}, ["line 3", "'-1'", "-1 often stands for no label", "names"]),
        ("a,y\n1,0.5\n3,1\n", {}, ["line 2", "0.5", "--task regression"]),
        ("a,y\n1,0\n3,-1\n", {}, ["line 3", "'-1'", "out of range"]),
        ("a,y\n", {}, ["t.csv", "no rows"]),
        ("", {}, ["t.csv", "empty"]),
        ("a,a,y\n1,2,3\n", {}, ["two columns 'a'"]),
        ("a,,y\n1,2,3\n", {}, ["column 2"]),
        ("y\n1\n2\n", {}, ["feature column"]),
        ("a,y\n1,0\ninf,1\n", {}, ["line 3", "'a'", "infinite"]),
        ("a,y,site\n1,0,n\n2,1,\n", {}, ["line 3", "no client", "'site'"]),
        ("a,y\n1,0\n2,1\n", {"label": "z"}, ["'z'", "known: a, y"]),
        ("a,y\n1,0\n2,1\n", {"client": "y"}, ["--label"]),
        ("a,y\n1,0\n2,1\n", {"label": "a", "client": "a"}, ["'a'", "at once"]),
        ("a,y\n1,0\n2,1\n", {"image_size": 8}, ["--image-size 8", "table"]),
        ('a,y\n"1,0\n2,1\n', {}, ["t.csv", "line"]),
        ('a,y\n"1"x,0\n2,1\n', {}, ["t.csv", "line 2"]),
    ],
)
def test_wrong_tables(tmp_path, content, options, named):
    path = write_text(tmp_path / "t.csv", content)
    refusal(lambda: load(str(path), **options), *named)


def test_a_line_number_counts_lines_not_rows(tmp_path):
    path = write_text(tmp_path / "t.csv", 'text,label\n"two\nlines",a\nb,\n')
    refusal(lambda: load(str(path)), "line 4", "no label")


def test_other_encodings_and_kinds(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,y\nGr\x81n,1\n")
    refusal(lambda: load(str(path)), "t.csv", "neither utf-8 nor cp1252")
    refusal(lambda: load(str(write_text(tmp_path / "t.xls", "x"))), "t.xls", ".csv")
    refusal(lambda: load(str(tmp_path / "absent.csv")), "absent.csv", "does not exist")


# Parquet.


def write_parquet(path, columns):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet(tmp_path):
    columns = {
        "age": [1, None, 3], "ok": [True, False, None], "zip": ["01", None, "03"],
        "client": [7, 7, 12], "label": [0, 2, 0],
    }  # fmt: skip
    source = load(str(write_parquet(tmp_path / "t.parquet", columns)))
    np.testing.assert_array_equal(source.raw.columns["age"], [1, np.nan, 3])
    np.testing.assert_array_equal(source.raw.columns["ok"], [1, 0, np.nan])
    assert source.raw.columns["zip"].tolist() == ["01", "", "03"]
    assert source.owners == ("7", "12") and source.classes == ("0", "2")


def test_parquet_keeps_long_whole_numbers_apart(tmp_path):
    """As floats these identities would be one client."""
    pa = pytest.importorskip("pyarrow")
    long = [10**17 + 1, 10**17 + 1, 10**17 + 2]
    unsigned = pa.array([2**64 - 1, 2**64 - 1, 2**64 - 2], pa.uint64())
    for ids in (pa.array(long), pa.array(long).dictionary_encode(), unsigned):
        columns = {"age": [1, 2, 3], "client": ids, "label": [0, 1, 0]}
        source = load(str(write_parquet(tmp_path / "t.parquet", columns)))
        assert source.owners == tuple(str(i) for i in sorted({*ids.to_pylist()}))


def test_parquet_with_categories_and_images(tmp_path):
    pa = pytest.importorskip("pyarrow")
    colours = pa.array(["red", "blue", "red"]).dictionary_encode()
    source = load(str(write_parquet(tmp_path / "t.parquet", {"c": colours, "y": [0, 1, 1]})))
    assert source.raw.columns["c"].tolist() == ["red", "blue", "red"]
    x = images(2, 5, 5)
    cells = [{"bytes": png_bytes(i), "path": "p"} for i in x]
    source = load(str(write_parquet(tmp_path / "i.parquet", {"image": cells, "label": ["a", "b"]})))
    np.testing.assert_array_equal(source.raw[:, 0], x)


def test_wrong_parquet(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", {"x": [[1], [2]], "y": [0, 1]})
    refusal(lambda: load(str(path)), "t.parquet", "'x'", "list")
    path = write_parquet(tmp_path / "t.parquet", {"x": [1, 2], "y": [0, None]})
    refusal(lambda: load(str(path)), "t.parquet", "row 2", "no label")
    path.write_bytes(path.read_bytes()[:-10])
    refusal(lambda: load(str(path)), "t.parquet", "readable parquet")


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    refusal(lambda: load(str(path)), "t.parquet", "pip install 'fedtailor[hub]'")


# npz.


def test_npz_with_clients(tmp_path):
    x, y = np.arange(6.0).reshape(3, 2), np.array(["b", "a", "b"])
    np.savez(tmp_path / "d.npz", x=x, y=y, client=np.array([3, 20, 3]))
    source = load(str(tmp_path / "d.npz"))
    assert source.raw.names == ("x0", "x1") and source.raw.columns["x1"].tolist() == [1, 3, 5]
    assert source.owners == ("3", "20") and source.owner.tolist() == [0, 1, 0]
    assert source.classes == ("a", "b") and source.labels.tolist() == [1, 0, 1]


def test_missing_numbers_of_npz_are_told(tmp_path):
    x = [[1, np.nan, 2], [np.nan, np.nan, 3]]
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1])
    assert load(str(tmp_path / "d.npz")).notes == (
        "3 missing numbers in 'x' become means of training rows: columns x0, x1",
    )
    np.savez(tmp_path / "whole.npz", x=np.ones((2, 3)), y=[0, 1])
    assert load(str(tmp_path / "whole.npz")).notes == ()


def test_npz_with_a_split_and_of_texts(tmp_path):
    x = images(4, 8, 8)
    np.savez(tmp_path / "d.npz", x_train=x[:2], y_train=[5, 7], x_test=x[2:], y_test=[7, 5])
    source = load(str(tmp_path / "d.npz"))
    assert source.kind == "image" and source.official_test.tolist() == [False, False, True, True]
    assert source.classes == ("5", "7") and source.labels.tolist() == [0, 1, 1, 0]
    np.savez(tmp_path / "t.npz", x=np.array(["hi", "ho"]), y=[0, 1])
    assert load(str(tmp_path / "t.npz")).raw == ("hi", "ho")


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"x": np.zeros((2, 2))}, ["no 'y'"]),
        ({"a": np.zeros(2)}, ["arrays a", "x and y"]),
        ({"x": np.zeros((2, 2)), "y": [0, 1, 1]}, ["2 examples", "3 labels"]),
        ({"x": np.zeros((2, 2)), "y": [0.0, np.nan]}, ["row 2", "nan"]),
        ({"x": np.zeros((2, 2)), "y": [0, -1]}, ["'-1'", "row 2"]),
        ({"x": np.zeros((2, 2)), "y": ["a", ""]}, ["row 2", "no label"]),
        ({"x": np.zeros((2, 2)), "y": np.eye(2)}, ["two labels per row", "--task survival"]),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "client": [1]}, ["1 entries", "'client'"]),
        ({"x": np.zeros((2, 2)), "y": [0, 1], "client": ["a", ""]}, ["'client' row 2"]),
        ({"x": np.full((2, 2), np.inf), "y": [0, 1]}, ["row 1", "infinite"]),
        ({"x": np.full((2, 4, 4), 0.5), "y": [0, 1]}, ["float64", "uint8"]),
        ({"x": np.zeros((2, 9, 4, 4), np.uint8), "y": [0, 1]}, ["(2, 9, 4, 4)"]),
        ({"x": np.zeros(2), "y": [0, 1]}, ["(2,)"]),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, ["no examples"]),
        ({"x": np.zeros((2, 2)), "y": np.array([{}, 1], dtype=object)}, ["Python objects"]),
    ],
)
def test_wrong_npz(tmp_path, arrays, named):
    np.savez(tmp_path / "d.npz", **arrays)
    refusal(lambda: load(str(tmp_path / "d.npz")), "d.npz", *named)


def test_a_broken_npz_is_not_left_open(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(b"PK\x03\x04")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refusal(lambda: load(str(path)), "d.npz")
        gc.collect()  # warns of files that nobody closed
    assert not [one for one in told if str(path) in str(one.message)]


def test_broken_npz(tmp_path):
    path = tmp_path / "d.npz"
    path.write_bytes(b"PK")
    refusal(lambda: load(str(path)), "d.npz", "not a readable npz file (no zip file)", "save it")
    np.savez(path, x=np.zeros((2, 2)), y=[0, 1])
    whole = path.read_bytes()
    for data in (b"", b"PK\x03\x04", whole[: len(whole) // 2], b"\x80\x04K\x01."):
        path.write_bytes(data)
        refusal(lambda: load(str(path)), "d.npz")
    flipped = bytearray(whole)
    flipped[150] ^= 0xFF  # inside the first array: the checksum tells
    path.write_bytes(bytes(flipped))
    refusal(lambda: load(str(path)), "d.npz")
    np.save(tmp_path / "e.npy", np.zeros(2))
    (tmp_path / "e.npy").rename(path)
    refusal(lambda: load(str(path)), "d.npz", "single array")


# A table per client.


def test_a_table_per_client(tmp_path):
    write_text(tmp_path / "b" / "t.csv", "code,x,y\n1,2,pos\n")
    write_text(tmp_path / "a" / "data.csv", "y,x,code\nneg,,B\nodd,4,C\n")
    source = load(str(tmp_path))
    assert source.owners == ("a", "b") and source.owner.tolist() == [0, 0, 1]
    assert source.classes == ("neg", "odd", "pos") and source.labels.tolist() == [0, 1, 2]
    assert source.raw.columns["code"].tolist() == ["B", "C", "1"], "one type over all clients"
    np.testing.assert_array_equal(source.raw.columns["x"], [np.nan, 4, 2])


def test_an_npz_or_parquet_per_client(tmp_path):
    for i, name in enumerate("ab"):
        (tmp_path / "n" / name).mkdir(parents=True)
        np.savez(tmp_path / "n" / name / "d.npz", x=np.full((2, 3), i), y=[i, i + 1])
        write_parquet(tmp_path / "p" / name / "d.parquet", {"v": [i, i], "y": [i, i + 1]})
    for folder in ("n", "p"):
        source = load(str(tmp_path / folder))
        assert source.owner.tolist() == [0, 0, 1, 1] and source.classes == ("0", "1", "2")


def test_parquet_columns_of_one_type_over_clients(tmp_path):
    pa = pytest.importorskip("pyarrow")
    write_parquet(tmp_path / "a" / "d.parquet", {"v": ["p", "q"], "y": [0, 1]})
    write_parquet(tmp_path / "b" / "d.parquet", {"v": pa.nulls(2), "y": [0, 1]})
    assert load(str(tmp_path)).raw.columns["v"].tolist() == ["p", "q", "", ""]
    write_parquet(tmp_path / "b" / "d.parquet", {"v": [1, 2], "y": [0, 1]})
    refusal(lambda: load(str(tmp_path)), "b/d.parquet", "'v'", "numbers")


@pytest.mark.parametrize(
    ("files", "options", "named"),
    [
        ({"a/t.csv": "x,y\n1,0\n", "b/t.csv": "z,y\n1,1\n"}, {}, ["b/t.csv", "missing: x", "z"]),
        ({"a/t.csv": "x,y\n1,0\n", "b/t.txt": "x,y\n1,1\n"}, {}, ["'", "t.txt", "exactly one"]),
        ({"a/t.csv": "x,y\n1,0\n", "a/u.csv": "x,y\n1,1\n"}, {}, ["t.csv, u.csv", "exactly one"]),
        ({"a/t.csv": "x,y\n1,0\n", "b/t.npz": ""}, {}, ["t.npz", "same kind"]),
        (
            {"a/t.csv": "x,y\n1,0\n", "b/t.csv": "x,y\n1,1\n"},
            {"client": "x"},
            ["--client-column 'x'"],
        ),
        ({"a/t.csv": "x,y\n1,0\n", "b/t.csv": "x,y\n1,\n"}, {}, ["b/t.csv' line 2", "no label"]),
        ({"a/t.csv": "x,y\n1,0\n", "readme": "hello"}, {}, ["readme", "move it away"]),
        ({"a/t.csv": "x,y\n1,0\n", "b/t.csv": "x,y\n"}, {}, ["b/t.csv", "no rows"]),
    ],
)
def test_wrong_tables_of_clients(tmp_path, files, options, named):
    for name, content in files.items():
        write_text(tmp_path / name, content)
    refusal(lambda: load(str(tmp_path), **options), *named)


def write_clients(root, tables):
    for name, text in tables.items():
        (root / name).mkdir(parents=True)
        (root / name / "rows.csv").write_text(text)
    return str(root)


def rows_of(head, cell):
    return head + "\n" + "".join(cell(row) + "\n" for row in range(20))


def test_a_column_that_one_client_lacks_is_missing_there_and_said(tmp_path, caplog):
    data = write_clients(
        tmp_path / "d",
        {
            "a": rows_of("age,ward,ill", lambda r: f"{r / 2},{'xy'[r % 2]},{r % 2}"),
            "b": rows_of("age,crp,ill", lambda r: f"{r / 2},{r / 4},{r % 2}"),
        },
    )
    source = load(data, label="ill")
    assert list(source.raw.columns) == ["age", "ward", "crp"]
    a, b = source.owner == 0, source.owner == 1
    assert np.isnan(source.raw.columns["crp"][a]).all()
    assert (source.raw.columns["ward"][b] == "").all()
    assert np.isfinite(source.raw.columns["crp"][b]).all()
    with caplog.at_level("INFO", logger="fedtailor"):
        fedtailor.run("fedavg", data=data, label="ill", rounds=1, model="linear", batch=4)
    lines = [line for line in caplog.messages if line.startswith("not in a client's table")]
    assert lines == [
        "not in a client's table, so missing there (--strict refuses): ward (b), crp (a)"
    ]
    strict = make_choices(strict=True)
    refusal(lambda: load(data, label="ill", columns=strict), "other columns", "ward", "crp")


def test_a_client_without_the_label_is_refused(tmp_path):
    data = write_clients(
        tmp_path / "d",
        {
            "a": rows_of("age,who,ill", lambda r: f"{r / 2},{r // 2},{r % 2}"),
            "b": rows_of("age,who", lambda r: f"{r / 2},{r // 2}"),
        },
    )
    refusal(lambda: load(data, label="ill"), "b/rows.csv", "lacks column 'ill'", "a/rows.csv")


def test_a_client_without_the_groups_is_refused(tmp_path):
    data = write_clients(
        tmp_path / "d",
        {
            "a": rows_of("age,who,ill", lambda r: f"{r / 2},{r // 2},{r % 2}"),
            "b": rows_of("age,ill", lambda r: f"{r / 2},{r % 2}"),
        },
    )
    refusal(lambda: load(data, label="ill", group="who"), "b/rows.csv", "lacks column 'who'")


def test_columns_that_files_type_themselves_may_be_lacking_too(tmp_path):
    pd = pytest.importorskip("pandas")
    for name, more in (("a", {"ward": ["x", "y"] * 10}), ("b", {"crp": np.arange(20) / 4})):
        (tmp_path / "d" / name).mkdir(parents=True)
        frame = pd.DataFrame({"age": np.arange(20) / 2, "ill": np.arange(20) % 2} | more)
        frame.to_parquet(tmp_path / "d" / name / "rows.parquet")
    source = load(str(tmp_path / "d"), label="ill")
    assert (source.raw.columns["ward"][source.owner == 1] == "").all()
    assert np.isnan(source.raw.columns["crp"][source.owner == 0]).all()


def test_a_column_of_lists_is_refused_with_the_cure_and_can_be_left_out(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": np.arange(20) / 2, "codes": [[1, 2]] * 20, "ill": [0, 1] * 10})
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    refusal(lambda: load(str(path), label="ill"), "column 'codes'", "--drop")
    source = load(str(path), label="ill", columns=make_choices(drop="codes"))
    assert list(source.raw.columns) == ["age"]


# what other tests leave behind is collected at any time, and none of this one's warnings
@pytest.mark.filterwarnings("error", "default::pytest.PytestUnraisableExceptionWarning")
def test_a_column_of_infinite_numbers_is_one_line(tmp_path):
    path = write_text(tmp_path / "t.csv", "x,y\n" + "inf,0\ninf,1\n" * 10)
    refusal(lambda: load(str(path), label="y"), "line 2", "infinite")
