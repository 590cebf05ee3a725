"""New examples for a model that is trained."""

from __future__ import annotations

import numpy as np
import pytest

from fedtailor.datasets import Table, encode, load, read_examples
from tests.datasets.datafiles import images, refusal, write_image, write_text
from tests.datasets.sources import SOURCES, TRAIN, make_source, table_source


def test_new_images(tmp_path):
    encoder, _ = encode(make_source(images(4, 3, 6, 5), "image"), TRAIN)
    x = images(6, 5, 3, seed=9)
    write_image(tmp_path / "scan.png", x)
    write_image(tmp_path / "grey.png", np.full((12, 10), 50, np.uint8))
    np.savez(tmp_path / "more.npz", x=np.stack([x, x]))
    paths = [tmp_path / n for n in ("scan.png", "grey.png", "more.npz")]
    names, out, _ = read_examples(paths, encoder)
    assert names == ["scan.png", "grey.png", "more.npz:1", "more.npz:2"]
    assert out.shape == (4, 3, 6, 5) and (out[1] == 50).all()
    np.testing.assert_array_equal(out[0], x.transpose(2, 0, 1))
    np.testing.assert_array_equal(out[3], out[0])
    np.savez(tmp_path / "more.npz", x=images(2, 4, 4))
    refusal(lambda: read_examples(paths, encoder), "more.npz", "(1, 4, 4)", "(3, 6, 5)")
    np.savez(tmp_path / "more.npz", z=images(2, 4, 4))
    refusal(lambda: read_examples(paths, encoder), "more.npz", "arrays z")


def test_files_of_one_name_in_several_folders_go_by_their_paths(tmp_path):
    encoder, _ = encode(make_source(images(4, 3, 6, 5), "image"), TRAIN)
    x = images(6, 5, 3, seed=9)
    paths = [tmp_path / "cat" / "1.png", tmp_path / "dog" / "1.png", tmp_path / "dog" / "2.png"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        write_image(path, x)
    assert read_examples(paths, encoder).names == [str(paths[0]), str(paths[1]), "2.png"]


def test_new_table_rows(tmp_path):
    encoder, _ = encode(table_source(), TRAIN)
    path = write_text(tmp_path / "t.csv", "id,sex,age\n7,m,3\n8,f,\n9,robot,1\n")
    names, out, _ = read_examples([path], encoder)
    assert names == ["t.csv:1", "t.csv:2", "t.csv:3"]
    np.testing.assert_allclose(out, [[1, 0, 1], [0, 1, 0], [-1, 0, 0]])
    refusal(lambda: read_examples([write_text(path, "sex\nm\n")], encoder), "t.csv", "age", "lacks")
    for text in ("a,b\n1,2\n", "sex age\nm 1\n"):  # none of the columns is there
        write_text(path, text)
        refusal(lambda: read_examples([path], encoder), "t.csv", "lacks the columns", "age", "sex")
    refusal(
        lambda: read_examples([write_text(path, "sex,age\nm,1\nf,old\n")], encoder),
        "t.csv' line 3",
        "'age'",
        "'old'",
    )


def test_new_rows_with_categories_that_look_like_numbers(tmp_path):
    source = make_source(Table({"code": np.array(["04", "3A", "04"])}), "table")
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
    names, out, _ = read_examples([tmp_path / "t.parquet"], encoder)
    assert names[1] == "t.parquet:2"
    np.testing.assert_allclose(out, [[1, 0, 1], [0, 0, 0]])
    pq.write_table(pa.table({"age": ["x"], "sex": ["m"]}), tmp_path / "t.parquet")
    refusal(lambda: read_examples([tmp_path / "t.parquet"], encoder), "row 1", "'age'", "'x'")


def test_new_texts(tmp_path):
    encoder, _ = encode(SOURCES["text"], TRAIN, length=3)
    one = write_text(tmp_path / "t.txt", "A b\n\nzz\n", "utf-8-sig")
    two = write_text(tmp_path / "t.csv", "id,text\n1,d\n")
    three = write_text(tmp_path / "u.csv", "words\nd\n")
    names, out, _ = read_examples([one, two, three], encoder)
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
