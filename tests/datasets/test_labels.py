"""What labels are taken for, from files and from objects alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedtailor.datasets import load, source_of
from fedtailor.datasets.labels import refuse_as_many_classes_as_rows
from tests.datasets.datafiles import images, refusal, write_image, write_text

PRICES = np.round(np.linspace(0, 200, 60), 1)
DAYS = np.arange(60) * 10.0
SEEN = np.arange(60) % 3 == 0


def csv(path: Path, **columns) -> str:
    pd.DataFrame({"a": np.arange(60), **columns}).to_csv(path, index=False)
    return str(path)


def decided(labels) -> tuple[str, str]:
    source = source_of({"here": (np.arange(len(labels))[:, None], labels)})
    return source.task, source.decided


@pytest.mark.parametrize(
    ("labels", "task", "said"),
    [
        (PRICES, "regression", "60 different numbers in 60 rows: taken as regression"),
        (np.arange(60), "regression", "60 rows: taken as regression"),
        (np.arange(60) // 2, "regression", "(else: --task classification)"),
        (np.arange(60) % 21, "regression", "21 different numbers"),
        (np.arange(60) % 20, "classification", "20 different numbers in 60 rows: taken as classes"),
        (np.arange(300) % 21, "classification", "(else: --task regression)"),
        (np.arange(60) % 11 / 2, "regression", "11 different numbers"),
        ([f"n{i % 2}" for i in range(60)], "classification", ""),
        ([0.0, 1.0, 1.0], "classification", "2 different numbers"),
        ([f"{i % 25} d" for i in range(60)], "classification", "25 different names in 60 rows, su"),
        (["0", "1"] * 30 + ["?!"], "classification", "row 61 has the label '?!', while most are"),
    ],
)
def test_auto_tells_classes_from_numbers(labels, task, said):
    found, line = decided(labels)
    assert found == task
    assert said in line and "\n" not in line


def test_a_word_does_not_make_classes_of_many_numbers(tmp_path):
    """One 'unknown' among stays in days would make a class of each stay."""
    path = csv(tmp_path / "stays.csv", days=[*map(str, range(59)), "unknown"])
    named = "line 61", "'unknown'", "most are numbers", "--task classification"
    refusal(lambda: load(path, label="days"), *named)
    assert len(load(path, label="days", task="classification").classes) == 60


def test_an_infinite_label_is_refused_in_one_line(tmp_path, recwarn):
    path = csv(tmp_path / "stays.csv", days=[*(f"{i}.5" for i in range(59)), "inf"])
    refusal(lambda: load(path, label="days"), "no finite number", "row 60")
    assert not recwarn.list


def test_files_and_objects_are_decided_alike(tmp_path):
    y = PRICES
    frame = pd.DataFrame({"a": np.arange(60), "price": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", x=np.arange(60.0)[:, None], y=y)
    sources = [
        load(str(tmp_path / "t.csv"), label="price"),
        load(str(tmp_path / "t.parquet"), label="price"),
        load(str(tmp_path / "t.npz")),
        source_of(frame, label="price"),
        source_of({"here": (frame[["a"]].to_numpy(), y)}),
    ]
    for source in sources:
        assert source.task == "regression" and source.classes == ()
        assert source.labels.dtype == np.float64 and np.array_equal(source.labels, y)
    assert "label 'price'" in sources[0].decided and sources[0].label == "price"


def test_the_user_decides_otherwise(tmp_path):
    few = csv(tmp_path / "few.csv", y=np.arange(60) % 4)
    forced = load(few, task="regression")
    assert forced.task == "regression" and forced.labels[:5].tolist() == [0, 1, 2, 3, 0]
    assert forced.decided == ""
    halves = csv(tmp_path / "halves.csv", y=np.arange(60) % 4 / 2)
    named = load(halves, task="classification")
    assert named.classes == ("0", "0.5", "1", "1.5") and named.labels[:4].tolist() == [0, 1, 2, 3]


def test_what_is_no_number_is_refused_where_it_stands(tmp_path):
    path = write_text(tmp_path / "t.csv", "a,y\n1,2.5\n2,high\n")
    refusal(lambda: load(str(path), task="regression"), "line 3", "'high'", "--task classification")
    same = write_text(tmp_path / "s.csv", "a,y\n1,2.5\n2,2.5\n")
    refusal(lambda: load(str(same), task="regression"), "only the label 2.5")
    refusal(lambda: load(str(path), task="regresion"), "'regresion'", "'regression'")
    refusal(lambda: decided([1, -1, 1]), "row 2", "'-1'", "--task regression")
    refusal(lambda: decided([1.0, np.inf]), "row 2", "inf")


def test_names_of_folders_are_classes_and_known_sets_say_their_task(tmp_path):
    for i in range(30):
        write_image(tmp_path / "faces" / str(i) / "a.png", images(1, 4, 4)[0])
    assert load(str(tmp_path / "faces")).task == "classification"
    refusal(lambda: load(str(tmp_path / "faces"), task="regression"), "folders", "classes")
    refusal(lambda: load("digits", task="regression"), "digits", "classification")


def test_a_class_of_its_own_for_most_rows_is_refused():
    names = source_of({"here": (np.arange(60)[:, None], [f"id{i}" for i in range(60)])})
    refusal(lambda: refuse_as_many_classes_as_rows(names), "60 classes in 60 rows", "--label")
    many = source_of({"here": (np.arange(60)[:, None], np.arange(60))}, task="classification")
    refusal(lambda: refuse_as_many_classes_as_rows(many), "--task regression")
    two = source_of({"here": (np.arange(2)[:, None], ["yes", "no"])})
    refuse_as_many_classes_as_rows(two)


# Survival.


def test_times_and_events_of_tables_and_arrays(tmp_path):
    path = csv(tmp_path / "t.csv", T=DAYS, E=SEEN.astype(int))
    want = np.stack([DAYS, SEEN], axis=1)
    table = load(path, time="T", event="E")
    assert table.task == "survival" and table.classes == () and table.raw.names == ("a",)
    frame = pd.DataFrame({"a": np.arange(60), "time": DAYS, "event": SEEN})
    pairs = list(zip(DAYS, SEEN.astype(float), strict=True))
    np.savez(tmp_path / "t.npz", x=np.arange(60.0)[:, None], y=want)
    for source in (
        table,
        source_of(frame, task="survival"),
        source_of({"here": (np.arange(60)[:, None], pairs)}, task="survival"),
        load(str(tmp_path / "t.npz"), task="survival"),
    ):
        assert source.labels.dtype == np.float64 and np.array_equal(source.labels, want)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"time": "T"}, ["event column", "--event-column"]),
        ({"event": "E"}, ["time column", "--time-column"]),
        ({"time": "T", "event": "E", "label": "y"}, ["--label 'y'"]),
        ({"time": "T", "event": "E", "task": "regression"}, ["regression", "--task survival"]),
        ({"time": "T", "event": "T"}, ["'T'", "different columns"]),
        ({"time": "T", "event": "words"}, ["line 2", "'words'", "0 and 1"]),
        ({"time": "T", "event": "a"}, ["line 4", "'2.0'", "else 0"]),
        ({"time": "minus", "event": "E"}, ["line 3", "'-10.0'", "times from 0 upwards"]),
        ({"task": "survival"}, ["time column", "--time-column"]),
    ],
)
def test_wrong_times_and_events(tmp_path, options, named):
    path = csv(
        tmp_path / "t.csv",
        T=DAYS,
        E=SEEN.astype(int),
        y=1,
        words="yes",
        minus=-DAYS,
    )
    refusal(lambda: load(path, **options), *named)


# What rows are dealt out by.


def test_strata_are_classes_tenths_or_events():
    classes = source_of({"here": (np.zeros((4, 1)), [0, 1, 1, 0])})
    assert np.array_equal(classes.strata, classes.labels) and classes.strata_names == ("0", "1")
    prices = source_of({"here": (np.zeros((60, 1)), PRICES)})
    assert np.bincount(prices.strata).tolist() == [5, *[6] * 8, 7]
    assert len(prices.strata_names) == 10 and prices.strata_names[0].startswith("below ")
    mostly_none = np.r_[np.zeros(95), np.arange(1, 6)]
    skewed = source_of({"here": (np.zeros((100, 1)), mostly_none)}, task="regression")
    assert np.bincount(skewed.strata).tolist() == [95, 5] and len(skewed.strata_names) == 2
    times = source_of({"here": (np.zeros((2, 1)), [[3, 1], [4, 0]])}, task="survival")
    assert times.strata.tolist() == [1, 0] and times.strata_names == ("no event", "event")
