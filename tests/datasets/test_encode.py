"""Sources, encoders and the reading of new examples."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedtailor.core.form import Form
from fedtailor.datasets import Encoder, Source, Table, encode, load, read_examples
from tests.datasets.datafiles import images, refusal, write_image, write_text


def source_of(raw, kind, labels=None):
    n = len(raw)
    labels = np.arange(n) % 2 if labels is None else np.asarray(labels)
    no = np.full(n, -1)
    return Source("s", kind, raw, labels, ("a", "b"), np.zeros(n, bool), (), no)


def table_source(age=(1.0, 3.0, np.nan, 100.0), sex=("f", "m", "", "x")):
    return source_of(Table({"age": np.array(age), "sex": np.array(sex)}), "table")


TRAIN = np.array([0, 1, 2])


# Source.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"labels": np.array([0, 1, 2])}, ["label 2", "row 3", "0..1"]),
        ({"labels": np.array([0, 1])}, ["labels", "3 examples"]),
        ({"labels": np.array([1, 1, 1])}, ["'b'", "at least 2"]),
        ({"labels": np.array([0.0, 1, 0])}, ["labels", "float64"]),
        ({"classes": ("a", "a")}, ["class twice"]),
        ({"official_test": np.zeros(2, bool)}, ["official_test"]),
        ({"owner": np.array([0, 0, 0])}, ["owner 0", "row 1"]),
        ({"owners": ("p",), "owner": np.array([0, 0, -1])}, ["owner -1", "row 3"]),
        ({"owners": ("p", "p"), "owner": np.array([0, 0, 1])}, ["client twice"]),
        ({"raw": np.zeros((3, 1, 2, 2))}, ["float64", "uint8"]),
        ({"raw": np.zeros((3, 2, 2), np.uint8)}, ["3 dimensions"]),
        ({"raw": ("a", "b", "c")}, ["image", "text"]),
    ],
)
def test_sources_are_checked(change, named):
    source = source_of(images(3, 1, 2, 2), "image")
    refusal(lambda: replace(source, **change), "'s'", *named)


def test_tables_are_checked():
    refusal(lambda: Table({"a": np.zeros(2), "b": np.zeros(3)}), "length")
    refusal(lambda: Table({"a": np.zeros(2, int)}), "'a'", "int64")
    refusal(lambda: Table({"a": np.array(["x", 1], dtype=object)}), "'a'", "object")
    refusal(lambda: Table({"a": np.array([0, np.inf])}), "'a'", "row 2")


# Tables.


def test_tables_are_standardised_and_one_hot():
    encoder, x = encode(table_source(), TRAIN)
    assert x.dtype == np.float32 and encoder.form == Form("table", (3,), 2)
    expected = [[-1, 1, 0], [1, 0, 1], [0, 0, 0], [98, 0, 0]]
    np.testing.assert_allclose(x, expected)
    _, raw = encode(table_source(), TRAIN, normalise="none")
    np.testing.assert_allclose(raw[:, 0], [1, 3, 2, 100])
    assert encode(table_source(), TRAIN, normalise="pooled")[0] == encoder


def test_only_training_rows_shape_the_table_encoder():
    encoder, x = encode(table_source(), TRAIN)
    other, y = encode(table_source(age=(1, 3, np.nan, -5e6), sex=("f", "m", "", "zz")), TRAIN)
    assert encoder == other
    np.testing.assert_array_equal(x[:3], y[:3])
    assert encode(table_source(age=(1, 4, np.nan, 100)), TRAIN)[0] != encoder


def test_constant_and_wholly_missing_columns():
    _, x = encode(table_source(age=(0.1, 0.1, 0.1, 1.1)), TRAIN)
    np.testing.assert_allclose(x[:, 0], [0, 0, 0, 1], atol=1e-6)
    _, x = encode(table_source(age=(np.nan, np.nan, np.nan, 7)), TRAIN)
    np.testing.assert_allclose(x[:, 0], [0, 0, 0, 7])
    empty = source_of(Table({"sex": np.array(["", "", "m"])}), "table")
    refusal(lambda: encode(empty, np.array([0, 1])), "'s'", "no feature")


def test_a_mask_is_as_good_as_row_numbers():
    mask = np.array([True, True, True, False])
    assert encode(table_source(), mask)[0] == encode(table_source(), TRAIN)[0]


@pytest.mark.parametrize("rows", [[], [4], [-1], [0.5], [True]])
def test_wrong_training_rows(rows):
    refusal(lambda: encode(table_source(), np.array(rows)), "training")


def test_wrong_options():
    refusal(lambda: encode(table_source(), TRAIN, normalise="pool"), "'pool'", "'pooled'")
    refusal(lambda: encode(table_source(), TRAIN, length=0), "length 0")
    refusal(lambda: encode(table_source(age=(1e308, -1e308, 1e308, 0)), TRAIN), "'age'", "scale")
    big = table_source(age=(1e100, 0, 0, 0))
    refusal(lambda: encode(big, TRAIN, normalise="none"), "'age'", "too large")


# Texts and images.


def test_texts_become_word_numbers():
    source = source_of(("The cat, the DOG_2!", "a cat", "unseen the"), "text")
    encoder, x = encode(source, np.array([0, 1]), length=4)
    assert encoder.words == ("cat", "the", "2", "a", "dog")
    assert encoder.form == Form("text", (4,), 2, vocabulary=7)
    assert x.dtype == np.int64 and x.tolist() == [[3, 2, 3, 6], [5, 2, 0, 0], [1, 3, 0, 0]]
    small, y = encode(source, np.array([0, 1]), length=2, vocabulary=1)
    assert small.words == ("cat",) and y.tolist() == [[1, 2], [1, 2], [1, 1]]


def test_only_training_rows_shape_the_vocabulary():
    one, _ = encode(source_of(("a b", "b c", "x y"), "text"), np.array([0, 1]))
    two, _ = encode(source_of(("a b", "b c", "c c c c"), "text"), np.array([0, 1]))
    assert one == two


def test_images_pass_unchanged():
    x = images(4, 3, 5, 6)
    encoder, out = encode(source_of(x, "image"), TRAIN)
    np.testing.assert_array_equal(out, x)
    assert out.dtype == np.uint8 and encoder.form == Form("image", (3, 5, 6), 2)
    refusal(lambda: encoder.apply(images(1, 1, 5, 6)), "(1, 5, 6)", "(3, 5, 6)")
    refusal(lambda: encoder.apply(("text",)), "image")


# JSON.

SOURCES = {
    "table": table_source(),
    "text": source_of(("a b", "b c", "d", ""), "text"),
    "image": source_of(images(4, 1, 3, 3), "image"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_json_round_trip(kind):
    encoder, x = encode(SOURCES[kind], TRAIN)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    np.testing.assert_array_equal(again.apply(SOURCES[kind].raw), x)


@pytest.mark.parametrize("kind", SOURCES)
def test_missing_and_unknown_keys_are_refused(kind):
    data = encode(SOURCES[kind], TRAIN)[0].to_json()
    for key in data:
        rest = {k: v for k, v in data.items() if k != key}
        refusal(lambda rest=rest: Encoder.from_json(rest), key)
    refusal(lambda: Encoder.from_json(data | {"shapes": 1}), "'shapes'", "'shape'")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "sound"}, ["'sound'"]),
        ({"shape": [4]}, ["'columns'"]),
        ({"shape": [-3]}, ["'shape'"]),
        ({"shape": [3, 1]}, ["'shape'"]),
        ({"shape": "3"}, ["'shape'"]),
        ({"classes": ["a"]}, ["'classes'"]),
        ({"classes": ["a", 1]}, ["classes"]),
        ({"classes": ["a", "a"]}, ["'classes'"]),
        ({"words": ["x"]}, ["'words'"]),
        ({"columns": 5}, ["'columns'"]),
        ({"columns": [5]}, ["column"]),
        ({"columns": [{"name": "a", "fill": 0, "shift": 0}]}, ["'a'", "scale"]),
        ({"columns": [{"name": "a", "fill": 0, "shift": 0, "scale": 0}]}, ["'scale' is 0"]),
        ({"columns": [{"name": "a", "fill": "x", "shift": 0, "scale": 1}]}, ["'fill' is x"]),
        ({"columns": [{"name": "a", "fill": float("nan"), "shift": 0, "scale": 1}]}, ["nan"]),
        ({"columns": [{"name": 1, "values": ["x", "y", "z"]}]}, ["'name'"]),
        ({"columns": [{"name": "a", "values": [1, 2, 3]}]}, ["'a'"]),
        ({"columns": [{"name": "a", "values": ["x"], "scale": 1}]}, ["'scale'"]),
    ],
)
def test_wrong_values_in_json_are_refused(change, named):
    data = encode(table_source(), TRAIN)[0].to_json()
    refusal(lambda: Encoder.from_json(data | change), *named)


def test_json_that_is_no_object():
    refusal(lambda: Encoder.from_json([1]), "kind")


# New examples.


def test_new_images(tmp_path):
    encoder, _ = encode(source_of(images(4, 3, 6, 5), "image"), TRAIN)
    x = images(6, 5, 3, seed=9)
    write_image(tmp_path / "scan.png", x)
    write_image(tmp_path / "grey.png", np.full((12, 10), 50, np.uint8))
    np.savez(tmp_path / "more.npz", x=np.stack([x, x]))
    paths = [tmp_path / n for n in ("scan.png", "grey.png", "more.npz")]
    names, out = read_examples(paths, encoder)
    assert names == ["scan.png", "grey.png", "more.npz:1", "more.npz:2"]
    assert out.shape == (4, 3, 6, 5) and (out[1] == 50).all()
    np.testing.assert_array_equal(out[0], x.transpose(2, 0, 1))
    np.testing.assert_array_equal(out[3], out[0])
    np.savez(tmp_path / "more.npz", x=images(2, 4, 4))
    refusal(lambda: read_examples(paths, encoder), "more.npz", "(1, 4, 4)", "(3, 6, 5)")
    np.savez(tmp_path / "more.npz", z=images(2, 4, 4))
    refusal(lambda: read_examples(paths, encoder), "more.npz", "arrays z")


def test_new_table_rows(tmp_path):
    encoder, _ = encode(table_source(), TRAIN)
    path = write_text(tmp_path / "t.csv", "id,sex,age\n7,m,3\n8,f,\n9,robot,1\n")
    names, out = read_examples([path], encoder)
    assert names == ["t.csv:1", "t.csv:2", "t.csv:3"]
    np.testing.assert_allclose(out, [[1, 0, 1], [0, 1, 0], [-1, 0, 0]])
    refusal(lambda: read_examples([write_text(path, "sex\nm\n")], encoder), "t.csv", "age", "lacks")
    for text in ("a,b\n1,2\n", "sex;age\nm;1\n"):  # none of the columns is there
        write_text(path, text)
        refusal(lambda: read_examples([path], encoder), "t.csv", "lacks the columns", "age", "sex")
    refusal(
        lambda: read_examples([write_text(path, "sex,age\nm,1\nf,old\n")], encoder),
        "t.csv' line 3",
        "'age'",
        "'old'",
    )


def test_new_rows_with_categories_that_look_like_numbers(tmp_path):
    source = source_of(Table({"code": np.array(["04", "3A", "04"])}), "table")
    encoder, _ = encode(source, TRAIN)
    path = write_text(tmp_path / "t.csv", "code\n04\n4\n")
    assert read_examples([path], encoder)[1].tolist() == [[1, 0], [0, 0]]


def test_a_table_encoder_reads_npz_by_position(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(8.0).reshape(4, 2), y=[0, 1, 0, 1])
    encoder, x = encode(load(str(tmp_path / "d.npz")), np.arange(4))
    assert read_examples([tmp_path / "d.npz"], encoder)[1].tolist() == x.tolist()
    np.savez(tmp_path / "e.npz", x=np.zeros((4, 3)))
    refusal(lambda: read_examples([tmp_path / "e.npz"], encoder), "e.npz", "3 columns")


def test_new_rows_from_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    encoder, _ = encode(table_source(), TRAIN)
    pq.write_table(pa.table({"age": [3, None], "sex": ["m", None]}), tmp_path / "t.parquet")
    names, out = read_examples([tmp_path / "t.parquet"], encoder)
    assert names[1] == "t.parquet:2"
    np.testing.assert_allclose(out, [[1, 0, 1], [0, 0, 0]])
    pq.write_table(pa.table({"age": ["x"], "sex": ["m"]}), tmp_path / "t.parquet")
    refusal(lambda: read_examples([tmp_path / "t.parquet"], encoder), "row 1", "'age'", "'x'")


def test_new_texts(tmp_path):
    encoder, _ = encode(SOURCES["text"], TRAIN, length=3)
    one = write_text(tmp_path / "t.txt", "A b\n\nzz\n", "utf-8-sig")
    two = write_text(tmp_path / "t.csv", "id,text\n1,d\n")
    three = write_text(tmp_path / "u.csv", "words\nd\n")
    names, out = read_examples([one, two, three], encoder)
    assert names == ["t.txt:1", "t.txt:3", "t.csv:1", "u.csv:1"]
    b, a, d = (2 + encoder.words.index(w) for w in "bad")
    assert out.tolist() == [[a, b, 0], [1, 0, 0], [d, 0, 0], [d, 0, 0]]
    four = write_text(tmp_path / "v.csv", "a,b\nd,e\n")
    refusal(lambda: read_examples([four], encoder), "v.csv", "a, b", "'text'")


def test_unsuitable_files(tmp_path):
    encoder, _ = encode(table_source(), TRAIN)
    refusal(lambda: read_examples([], encoder), "no files")
    refusal(lambda: read_examples([tmp_path], encoder), "not a file")
    refusal(lambda: read_examples([tmp_path / "absent.csv"], encoder), "absent.csv")
    write_image(tmp_path / "scan.png", images(4, 4))
    refusal(lambda: read_examples([tmp_path / "scan.png"], encoder), "scan.png", "csv")
    write_text(tmp_path / "empty.txt", "\n")
    words, _ = encode(SOURCES["text"], TRAIN)
    refusal(lambda: read_examples([tmp_path / "empty.txt"], words), "empty.txt", "empty")
