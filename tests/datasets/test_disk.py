"""Known data sets, found on disk in each of their common forms."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from fedtailor.datasets import KNOWN, load
from fedtailor.datasets.known import CIFAR10, CIFAR100, EMNIST, FASHION, NEWS
from tests.datasets.datafiles import (
    images,
    png_bytes,
    refusal,
    write_idx,
    write_image,
    write_mnist,
    write_text,
)


def save_splits(path, x, y, tests=4):
    np.savez(path, x_train=x[:-tests], y_train=y[:-tests], x_test=x[-tests:], y_test=y[-tests:])


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, fedtailor.datasets;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'sklearn', 'PIL', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_digits_are_the_librarys(monkeypatch):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    fast = load("digits")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # not where it was
    for source in (fast, load("digits")):
        assert np.array_equal(source.raw.reshape(-1, 64), np.rint(pixels * (255 / 16)))
        assert np.array_equal(source.labels, labels)


def test_digits_are_bundled():
    source = load("digits")
    assert source.raw.shape == (1797, 1, 8, 8) and source.raw.dtype == np.uint8
    assert source.raw.max() == 255 and source.raw.min() == 0
    assert not source.official_test.any() and source.owners == () and (source.owner == -1).all()
    assert source.classes == tuple("0123456789")


def test_class_tables_have_the_right_sizes():
    assert KNOWN == (
        "digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "tiny-imagenet",
        "ag-news", "heart-disease", "flamby-heart-disease", "tcga-brca", "shakespeare",
        "wisdm",
    )  # fmt: skip
    assert (len(CIFAR10), len(set(CIFAR100)), len(FASHION), len(NEWS)) == (10, 100, 10, 4)
    assert [len(EMNIST[v]) for v in ("balanced", "byclass", "letters")] == [47, 62, 26]
    assert list(CIFAR100) == sorted(CIFAR100)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_idx(tmp_path, ending, folder):
    arrays = write_mnist(tmp_path / folder, ending=ending)
    source = load("mnist", data_dir=tmp_path)
    assert source.raw.shape == (30, 1, 28, 28)
    np.testing.assert_array_equal(source.raw[~source.official_test, 0], arrays["train"][0])
    np.testing.assert_array_equal(source.raw[source.official_test, 0], arrays["t10k"][0])
    np.testing.assert_array_equal(source.labels[source.official_test], arrays["t10k"][1])


def test_the_folder_can_come_from_the_environment(tmp_path, monkeypatch):
    write_mnist(tmp_path / "fashion_mnist")
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    assert load("fashion-mnist").classes == FASHION


def test_the_folder_is_data_by_default(tmp_path, monkeypatch):
    write_mnist(tmp_path / "data" / "mnist")
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert len(load("mnist")) == 30


def test_emnist_images_are_transposed_and_letters_counted_from_0(tmp_path):
    x, y = images(6, 28, 28), np.array([1, 26, 3, 4, 5, 6])
    write_idx(tmp_path / "emnist" / "emnist-letters-train-images-idx3-ubyte.gz", x)
    write_idx(tmp_path / "emnist" / "emnist-letters-train-labels-idx1-ubyte.gz", y)
    source = load("emnist", data_dir=tmp_path)
    np.testing.assert_array_equal(source.raw[:, 0], x.transpose(0, 2, 1))
    assert source.labels.tolist() == [0, 25, 2, 3, 4, 5] and source.classes[25] == "z"


def test_emnist_prefers_the_balanced_variant(tmp_path):
    for variant in ("letters", "byclass", "balanced"):
        write_mnist(tmp_path / "emnist", prefix=f"emnist-{variant}-", test="test")
    source = load("emnist", data_dir=tmp_path)
    assert len(source.classes) == 47 and source.official_test.sum() == 10


@pytest.mark.parametrize(
    ("y", "classes"), [([0, 61], 62), ([0, 46], 47), ([1, 26], 26), ([0, 9], 10)]
)
def test_an_emnist_npz_tells_its_variant_by_its_labels(tmp_path, y, classes):
    np.savez(tmp_path / "emnist.npz", x_train=images(2, 28, 28), y_train=np.array(y))
    assert len(load("emnist", data_dir=tmp_path).classes) == classes


def test_npz_in_every_axis_order(tmp_path):
    x, y = images(12, 3, 32, 32), np.arange(12) % 10
    save_splits(tmp_path / "cifar10.npz", x, y)
    np.testing.assert_array_equal(load("cifar10", data_dir=tmp_path).raw, x)
    save_splits(tmp_path / "cifar10.npz", x.transpose(0, 2, 3, 1), y[:, None])
    source = load("cifar10", data_dir=tmp_path)
    np.testing.assert_array_equal(source.raw, x)
    assert source.official_test.tolist() == [False] * 8 + [True] * 4
    save_splits(tmp_path / "mnist.npz", x[:, 0], y)
    np.testing.assert_array_equal(load("mnist", data_dir=tmp_path).raw, x[:, :1])


def test_image_size_resizes_arrays(tmp_path):
    x = np.repeat(np.array([10, 200], np.uint8), 28 * 28).reshape(2, 28, 28)
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=[0, 1])
    raw = load("mnist", data_dir=tmp_path, image_size=14).raw
    assert raw.shape == (2, 1, 14, 14) and (raw[0] == 10).all() and (raw[1] == 200).all()


def test_class_folders_with_a_test_folder(tmp_path):
    for split in ("train", "test"):
        for i, name in enumerate(CIFAR10[:3]):
            write_image(tmp_path / "cifar10" / split / name / "0.png", images(32, 32, 3, seed=i))
    source = load("cifar10", data_dir=tmp_path)
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 2] and source.classes == CIFAR10
    assert source.official_test.tolist() == [False] * 3 + [True] * 3
    np.testing.assert_array_equal(source.raw[1], images(32, 32, 3, seed=1).transpose(2, 0, 1))


def write_tiny(root):
    for i, name in enumerate(("n01", "n02")):
        write_image(root / "train" / name / "images" / f"{name}_0.JPEG", images(64, 64, 3, seed=i))
        write_text(root / "train" / name / f"{name}_boxes.txt", "x\t0\t0\t1\t1\n")
    write_image(root / "val" / "images" / "val_0.JPEG", images(64, 64, seed=3))  # a grey one
    write_image(root / "test" / "images" / "test_0.JPEG", images(64, 64, 3))
    return write_text(root / "val" / "val_annotations.txt", "val_0.JPEG\tn02\t0\t0\t1\t1\n")


def test_tiny_imagenet(tmp_path):
    write_tiny(tmp_path / "tiny-imagenet-200")
    source = load("tiny-imagenet", data_dir=tmp_path)
    assert source.raw.shape == (3, 3, 64, 64) and source.classes == ("n01", "n02")
    assert source.labels.tolist() == [0, 1, 1]
    assert source.official_test.tolist() == [False, False, True]


@pytest.mark.parametrize("line", ["../train/n01/images/n01_0.JPEG\tn01", "val_0.JPEG", "/etc/x\tn"])
def test_tiny_imagenet_notes_cannot_lead_elsewhere(tmp_path, line):
    notes = write_tiny(tmp_path / "tiny-imagenet")
    notes.write_text(line + "\n")
    refusal(lambda: load("tiny-imagenet", data_dir=tmp_path), "val_annotations.txt' line 1")


def test_ag_news_as_published(tmp_path):
    write_text(tmp_path / "ag_news_csv" / "train.csv", '"3","A, b","c ""d"""\n"4","e","f"\n')
    write_text(tmp_path / "ag_news_csv" / "test.csv", '"1","g\nh","i"\n')
    source = load("ag-news", data_dir=tmp_path)
    assert source.kind == "text" and source.classes == NEWS
    assert source.raw == ('A, b c "d"', "e f", "g\nh i")
    assert source.labels.tolist() == [2, 3, 0]
    assert source.official_test.tolist() == [False, False, True]


def test_ag_news_with_a_header_line(tmp_path):
    write_text(tmp_path / "ag-news" / "train.csv", "Class Index,Title,Description\n1,a,b\n2,c,d\n")
    assert load("ag-news", data_dir=tmp_path).raw == ("a b", "c d")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("1,a,b\n5,c,d\n", ["line 2", "'5'", "1..4"]),
        ("1,a,b\n2,c\n", ["line 2", "2 fields"]),
        ("1,a\n", ["line 1", "2 fields"]),
        ("", ["train.csv", "empty"]),
        ('1,a,b\n2,"c,d\n', ["train.csv", "line"]),
    ],
)
def test_wrong_news(tmp_path, content, named):
    write_text(tmp_path / "ag-news" / "train.csv", content)
    refusal(lambda: load("ag-news", data_dir=tmp_path), *named)


def test_pixel_csv(tmp_path):
    x = images(3, 4)
    rows = ["label,1x1,1x2,2x1,2x2"] + [f"{i},{','.join(map(str, r))}" for i, r in enumerate(x)]
    write_text(tmp_path / "mnist" / "mnist_train.csv", "\n".join(rows))
    source = load("mnist", data_dir=tmp_path)
    np.testing.assert_array_equal(source.raw, x.reshape(3, 1, 2, 2))
    assert source.labels.tolist() == [0, 1, 2]
    write_text(tmp_path / "mnist" / "mnist_train.csv", "\n".join(rows) + "\n1,0,0,0,256\n")
    refusal(lambda: load("mnist", data_dir=tmp_path), "mnist_train.csv' line 5", "0..255")
    write_text(tmp_path / "mnist" / "mnist_train.csv", "label,a,b\n1,2,3\n")
    refusal(lambda: load("mnist", data_dir=tmp_path), "mnist_train.csv", "2 columns", "square")


def write_hub_parquet(path, x, y, names):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": png_bytes(i), "path": None} for i in x]
    table = pa.table({"image": cells, "label": pa.array(y, pa.int64())})
    feature = {"names": names, "_type": "ClassLabel"}
    note = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(note)}), path)


def test_hub_parquet_of_images(tmp_path):
    x = images(6, 28, 28)
    folder = tmp_path / "emnist" / "data"
    names = ["a", "b", "c"]
    write_hub_parquet(folder / "train-00000-of-00002.parquet", x[:2], [0, 1], names)
    write_hub_parquet(folder / "train-00001-of-00002.parquet", x[2:4], [2, 1], names)
    write_hub_parquet(folder / "test-00000-of-00001.parquet", x[4:], [0, 0], names)
    source = load("emnist", data_dir=tmp_path)
    np.testing.assert_array_equal(source.raw[:, 0], x)
    assert source.labels.tolist() == [0, 1, 2, 1, 0, 0] and source.classes == ("a", "b", "c")
    assert source.official_test.tolist() == [False] * 4 + [True] * 2


def test_hub_parquet_of_texts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    (tmp_path / "ag_news").mkdir()
    table = pa.table({"text": ["one", "two"], "label": [3, 0]})
    pq.write_table(table, tmp_path / "ag_news" / "train-00000-of-00001.parquet")
    source = load("ag-news", data_dir=tmp_path)
    assert source.raw == ("one", "two") and source.labels.tolist() == [3, 0]


def test_what_is_not_found_says_where_it_looked(tmp_path):
    refusal(
        lambda: load("cifar10", data_dir=tmp_path),
        "cifar10", str(tmp_path)[:20], "--data-dir", "$FEDTAILOR_DATA", "--hub", "fedtailor[hub]",
    )  # fmt: skip
    refusal(lambda: load("mnist", data_dir=tmp_path / "absent"), "absent", "--data-dir")
    refusal(lambda: load("cifar11"), "cifar11", "did you mean 'cifar10'")
    refusal(lambda: load(""), "unknown data set")


def test_one_set_is_not_taken_for_another(tmp_path):
    write_mnist(tmp_path / "fashion-mnist")
    write_mnist(tmp_path / "emnist", prefix="emnist-letters-", test="test")
    refusal(lambda: load("mnist", data_dir=tmp_path), "not found")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda d: d[:-5], "bytes"),
        (lambda d: d + b"x", "bytes"),
        (lambda d: b"\x00\x00\x0d\x03" + d[4:], "0x00000d03"),
        (lambda d: d[:6], "0x00000803"),
        (lambda d: d[:4] + b"\xff" * 12 + d[16:], "bytes"),
        (lambda d: b"", "idx"),
    ],
)
def test_damaged_idx(tmp_path, damage, word):
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    refusal(lambda: load("mnist", data_dir=tmp_path), "train-images-idx3-ubyte", word)


def test_truncated_gz_and_missing_labels(tmp_path):
    write_mnist(tmp_path / "mnist", ending=".gz")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refusal(lambda: load("mnist", data_dir=tmp_path), "t10k-images-idx3-ubyte.gz", "fetch")
    path.write_bytes(b"no gzip at all")
    refusal(lambda: load("mnist", data_dir=tmp_path), "t10k-images-idx3-ubyte.gz")
    path.write_bytes(whole)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    refusal(lambda: load("mnist", data_dir=tmp_path), "train-labels-idx1-ubyte")


def test_labels_out_of_range_name_file_and_row(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=images(3, 28, 28), y_train=[0, 1, 10])
    refusal(lambda: load("mnist", data_dir=tmp_path), "mnist.npz", "'10'", "row 3", "0..9")


def test_options_that_do_not_apply_are_refused(tmp_path):
    refusal(lambda: load("digits", label="y"), "--label", "digits")
    refusal(lambda: load("digits", image_size=0), "image size 0")
    refusal(lambda: load(str(tmp_path), hub=True), "--hub")


def test_a_table_for_an_image_set_is_refused(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((4, 3)), y_train=[0, 1, 0, 1])
    refusal(lambda: load("mnist", data_dir=tmp_path), "mnist.npz", "table")
