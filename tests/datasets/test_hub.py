"""Fetching from the hub, with a stand-in for the `datasets` package."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from PIL import Image

from fedtailor.datasets import load
from fedtailor.datasets.cache import store
from tests.datasets.datafiles import images, refusal


class FakeSplit(list):
    """Rows with `features`, as `datasets.Dataset` gives them."""

    def __init__(self, rows, names=None):
        super().__init__(rows)
        label = types.SimpleNamespace(names=names) if names else types.SimpleNamespace()
        self.features = {k: (label if "label" in k else None) for k in self[0]} if rows else {}


@pytest.fixture
def hub(monkeypatch):
    """What the hub holds, by repository, and which repositories were asked for."""
    held, asked = {}, []

    def load_dataset(repository):
        asked.append(repository)
        if repository not in held:
            raise ConnectionError("no\nroute to host")
        return held[repository]

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return types.SimpleNamespace(held=held, asked=asked)


def rows_of(x, y, column="image", label="label"):
    return [{column: Image.fromarray(i), label: n} for i, n in zip(x, y, strict=True)]


def test_images_are_fetched_once_and_kept(tmp_path, hub):
    x = images(5, 28, 28)
    hub.held["ylecun/mnist"] = {
        "train": FakeSplit(rows_of(x[:3], [4, 0, 9]), list("0123456789")),
        "test": FakeSplit(rows_of(x[3:], [1, 1]), list("0123456789")),
    }
    root = tmp_path / "new" / "folder"
    first = load("mnist", data_dir=root, hub=True)
    again = load("mnist", data_dir=root, hub=True)
    offline = load("mnist", data_dir=root)
    assert hub.asked == ["ylecun/mnist"]
    for source in (first, again, offline):
        np.testing.assert_array_equal(source.raw[:, 0], x)
        assert source.labels.tolist() == [4, 0, 9, 1, 1]
        assert source.official_test.tolist() == [False] * 3 + [True] * 2
    assert sorted(p.name for p in root.iterdir()) == ["mnist.npz", "mnist.npz.json"]
    assert json.loads((root / "mnist.npz.json").read_text())["origin"] == "ylecun/mnist"


def test_a_changed_file_is_refused(tmp_path, hub):
    x = images(2, 28, 28)
    hub.held["ylecun/mnist"] = {"train": FakeSplit(rows_of(x, [0, 1]))}
    load("mnist", data_dir=tmp_path, hub=True)
    np.savez(tmp_path / "mnist.npz", x_train=255 - x, y_train=[0, 1])
    for hub_too in (True, False):
        refusal(
            lambda hub_too=hub_too: load("mnist", data_dir=tmp_path, hub=hub_too),
            "mnist.npz",
            "sha256",
            "delete the file",
        )
    (tmp_path / "mnist.npz").unlink()
    np.testing.assert_array_equal(load("mnist", data_dir=tmp_path, hub=True).raw[:, 0], x)
    (tmp_path / "mnist.npz.json").write_text("{")
    refusal(lambda: load("mnist", data_dir=tmp_path), "mnist.npz.json", "delete")


def test_texts_survive_the_csv(tmp_path, hub):
    texts = ['a "quoted", text', "two\nlines\r\nand more", " spaced ", "ünï,😀"]
    rows = [{"text": t, "label": i} for i, t in enumerate(texts)]
    hub.held["fancyzhx/ag_news"] = {"train": FakeSplit(rows[:3]), "test": FakeSplit(rows[3:])}
    load("ag-news", data_dir=tmp_path, hub=True)
    source = load("ag-news", data_dir=tmp_path)
    assert hub.asked == ["fancyzhx/ag_news"]
    assert source.raw == tuple(texts) and source.labels.tolist() == [0, 1, 2, 3]
    assert source.official_test.tolist() == [False] * 3 + [True]
    assert (tmp_path / "ag-news.csv.json").exists()


def test_class_names_and_mixed_modes_are_kept(tmp_path, hub):
    """tiny-imagenet's test split is called valid and some of its pictures are grey."""
    colour, grey = images(2, 64, 64, 3), images(1, 64, 64)
    hub.held["zh-plus/tiny-imagenet"] = {
        "train": FakeSplit(rows_of(colour, [0, 1]), ["n01", "n02"]),
        "valid": FakeSplit(rows_of(grey, [1]), ["n01", "n02"]),
    }
    load("tiny-imagenet", data_dir=tmp_path, hub=True)
    source = load("tiny-imagenet", data_dir=tmp_path)
    assert source.raw.shape == (3, 3, 64, 64) and source.classes == ("n01", "n02")
    assert source.official_test.tolist() == [False, False, True]


def test_cifar100_takes_fine_labels_from_the_hub(tmp_path, hub):
    rows = rows_of(images(2, 32, 32, 3), [98, 7], "img", "fine_label")
    rows = [r | {"coarse_label": 0} for r in rows]
    hub.held["uoft-cs/cifar100"] = {"train": FakeSplit(rows)}
    assert load("cifar100", data_dir=tmp_path, hub=True).labels.tolist() == [98, 7]


def test_hub_failures_are_one_line(tmp_path, hub):
    refusal(
        lambda: load("cifar10", data_dir=tmp_path, hub=True), "uoft-cs/cifar10", "no route to host"
    )
    hub.held["uoft-cs/cifar10"] = {"all": FakeSplit([])}
    refusal(lambda: load("cifar10", data_dir=tmp_path, hub=True), "all", "'train'")
    hub.held["uoft-cs/cifar10"] = {"train": FakeSplit([{"x": 1, "z": 2}])}
    refusal(lambda: load("cifar10", data_dir=tmp_path, hub=True), "x, z", "label")
    hub.held["uoft-cs/cifar10"] = {
        "train": FakeSplit(rows_of(images(2, 32, 32, 3), [0, 10], "img"))
    }
    refusal(lambda: load("cifar10", data_dir=tmp_path, hub=True), "'10'", "0..9")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refusal(lambda: load("mnist", data_dir=tmp_path, hub=True), "'datasets'", "'fedtailor[hub]'")


def test_a_folder_called_datasets_is_not_the_package(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    (tmp_path / "datasets").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    refusal(lambda: load("mnist", data_dir=tmp_path, hub=True), "'fedtailor[hub]'")
    sys.modules.pop("datasets", None)


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    def fail(file):
        file.write(b"half")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        store(tmp_path / "mnist.npz", fail, "origin")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    refusal(lambda: store(tmp_path / "file" / "m.npz", lambda f: None, "o"), "m.npz", "--data-dir")
