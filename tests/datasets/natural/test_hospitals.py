"""Data of hospitals, in the form of the true files; fetched, checked, and refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedtailor.datasets import load
from fedtailor.datasets.download import PublishedFile
from fedtailor.datasets.natural import NATURAL
from fedtailor.results.config import make_config
from fedtailor.runs.data import load_run_data
from tests.datasets.datafiles import refusal

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
ROWS = (30, 24, 12, 18)


def write_heart(folder: Path) -> Path:
    """Small files as UCI publishes them: no header, '?' for a missing value, 0 to 4 for the end."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, count in zip(HOSPITALS, ROWS, strict=True):
        lines = []
        for i in range(count):
            row = [
                draw.integers(30, 80), i % 2, 1 + i % 4, draw.integers(90, 180), draw.integers(400),
                0, i % 3, draw.integers(60, 200), i % 2, 0.5 * (i % 5), "?", "?", "?", i % 5,
            ]  # fmt: skip
            if name == "switzerland":
                row[13] = 1 + i % 4 if i > 1 else 0  # two healthy ones: too few to divide
            lines.append(",".join(map(str, row)))
        lines.insert(3, "50,1,4,?,200,0,0,120,0,1.0,2,0,3,2")  # lacks a value: left out
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return folder


def write_tcga(folder: Path) -> Path:
    folder.mkdir(parents=True)
    head = ["pid", "age_at_index", *(f"c{i}" for i in range(38)), "E", "T"]
    rows, folds = [",".join(head)], ["pid,fold,fold2"]
    for i in range(72):
        values = [40 + i, *[(i + c) % 2 for c in range(38)], f"{i % 4 == 0:.1f}", f"{10.0 * i}"]
        rows.append(f"P-{i}," + ",".join(map(str, values)))
        if i:  # a patient in no fold
            part = "test" if i % 5 == 0 else "train"
            folds.append(f"P-{i},{part},{part}_{i % 6}")
    (folder / "brca.csv").write_text("\n".join(rows) + "\n")
    (folder / "train_test_split.csv").write_text("\n".join(reversed(folds[1:] + folds[:1])))
    return folder


@pytest.mark.parametrize("folder", ["heart-disease", "heart_disease", "."])
def test_heart_disease(tmp_path, folder):
    write_heart(tmp_path / "data" / folder)
    source = load("heart-disease", data_dir=tmp_path / "data")
    assert source.owners == HOSPITALS and np.bincount(source.owner).tolist() == list(ROWS)
    assert source.raw.names == (
        "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"
    )  # fmt: skip
    assert source.classes == ("no disease", "disease")
    assert source.labels[:6].tolist() == [0, 1, 1, 1, 1, 0]
    assert np.unique(source.raw.columns["cp"]).tolist() == ["1", "2", "3", "4"]
    for i, count in enumerate(ROWS):
        mine = source.labels[source.owner == i]
        by_class = None if i == 2 else mine
        _, want = train_test_split(
            np.arange(count), train_size=0.66, test_size=1 - 0.66, random_state=43,
            shuffle=True, stratify=by_class,
        )  # fmt: skip
        assert np.flatnonzero(source.official_test[source.owner == i]).tolist() == sorted(want)


def test_flambys_thirteen_inputs(tmp_path):
    write_heart(tmp_path / "heart-disease")
    plain = load("heart-disease", data_dir=tmp_path)
    source = load("flamby-heart-disease", data_dir=tmp_path)
    assert source.raw.names[-5:] == ("cp_2", "cp_3", "cp_4", "restecg_1", "restecg_2")
    assert len(source.raw.names) == 13
    assert np.array_equal(source.raw.columns["cp_3"], plain.raw.columns["cp"] == "3")
    assert np.array_equal(source.official_test, plain.official_test)
    given = {"data": "flamby-heart-disease", "data_dir": str(tmp_path), "val": 0, "batch": 4}
    data = load_run_data(make_config("local", given | {"official_test": True}, {}))
    assert data.client_data.names == HOSPITALS and not any(map(len, data.partition.val))
    for rows, test in zip(data.partition.train, data.partition.test, strict=True):
        assert source.official_test[test].all() and not source.official_test[rows].any()
        ages = data.client_data.x[rows, 0]
        assert abs(ages.mean()) < 1e-6 and abs(ages.std(correction=0) - 1) < 1e-6


def test_tcga_brca(tmp_path):
    write_tcga(tmp_path / "tcga_brca")
    source = load("tcga-brca", data_dir=tmp_path)
    assert source.task == "survival" and len(source) == 71 and len(source.raw.names) == 39
    assert source.owners[0] == "northeast" and source.owners[5] == "canada"
    assert source.owner[:7].tolist() == [1, 2, 3, 4, 5, 0, 1]
    assert source.labels[3].tolist() == [40, 1] and source.raw.columns["age_at_index"][0] == 41
    assert np.flatnonzero(source.official_test)[:2].tolist() == [4, 9]


def test_broken_files_are_named(tmp_path):
    heart = write_heart(tmp_path / "heart-disease") / "processed.va.data"
    text = heart.read_text()
    heart.write_text(text.replace("?", "x", 1))
    refusal(lambda: load("heart-disease", data_dir=tmp_path), "processed.va.data' line", "'x'")
    heart.write_text("1,2,3\n")
    refusal(lambda: load("heart-disease", data_dir=tmp_path), "line 1", "3 fields", "14")
    tcga = write_tcga(tmp_path / "tcga-brca")
    split = tcga / "train_test_split.csv"
    whole = split.read_text()
    split.write_text(whole.replace("test_5", "test_9"))
    refusal(lambda: load("tcga-brca", data_dir=tmp_path), "'test_9'", "train_test_split.csv")
    split.write_text(whole.replace("P-7,", "Q-7,"))
    refusal(lambda: load("tcga-brca", data_dir=tmp_path), "Q-7")


def test_what_is_not_there_and_what_does_not_fit(tmp_path):
    refusal(lambda: load("tcga-brca", data_dir=tmp_path), "brca.csv", "--data-dir", "--hub")
    write_heart(tmp_path / "heart-disease")
    refusal(
        lambda: load("heart-disease", data_dir=tmp_path, task="regression"),
        "heart-disease is for classification",
    )


# Fetched from their owners.


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a server on this machine publishes as if it were UCI's archive."""
    published = write_heart(tmp_path / "published")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    files = tuple(
        PublishedFile(
            path.name,
            f"http://127.0.0.1:{server.server_port}/{path.name}",
            hashlib.md5(path.read_bytes()).hexdigest(),
        )
        for path in sorted(published.iterdir())
    )
    known = NATURAL["heart-disease"]._replace(files=files)
    monkeypatch.setitem(NATURAL, "heart-disease", known)
    yield published
    server.shutdown()
    server.server_close()


def test_files_are_fetched_once_and_kept(owner, tmp_path):
    root = tmp_path / "data"
    first = load("heart-disease", data_dir=root, hub=True)
    kept = root / "heart-disease" / "processed.va.data"
    assert kept.read_bytes() == (owner / kept.name).read_bytes()
    for path in owner.iterdir():
        path.unlink()
    again = load("heart-disease", data_dir=root)
    assert np.array_equal(first.labels, again.labels)
    kept.write_text(kept.read_text() + "\n")
    refusal(lambda: load("heart-disease", data_dir=root), "sha256", "fetch it again")


def test_a_file_that_is_not_the_published_one_is_not_kept(owner, tmp_path):
    changed = owner / "processed.hungarian.data"
    changed.write_text(changed.read_text() + "1\n")
    root = tmp_path / "data"
    refusal(lambda: load("heart-disease", data_dir=root, hub=True), "hungarian", "md5", "yourself")
    assert not list(root.rglob("*hungarian*"))
    changed.unlink()
    refusal(lambda: load("heart-disease", data_dir=root, hub=True), "404", "connection")
