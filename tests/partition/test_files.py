"""A partition on disk."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import BadInput
from fedtailor.partition import (
    Partition,
    load_partition,
    permute_targets,
    save_partition,
    split_rows,
)
from tests.partition.partitions import (
    DIGITS,
    RECIPES,
    assert_one_line,
    digits_split,
    parts,
    same,
)


def test_a_saved_partition_comes_back(tmp_path):
    partition = split_rows(
        RECIPES["dirichlet"](0),
        DIGITS,
        [f"Zoë {i}" for i in range(20)],
        val=0,
        seed=2**80,
        scheme="dirichlet:0.1",
    )
    path = tmp_path / "partition.npz"
    path.write_text("an older file")
    save_partition(partition, path)
    back = load_partition(path, rows=DIGITS.size)
    assert (back.names, back.scheme, back.seed) == (
        partition.names,
        partition.scheme,
        partition.seed,
    )
    for part in ("train", "val", "test"):
        assert same(getattr(back, part), getattr(partition, part))
        assert all(r.dtype == np.int64 for r in getattr(back, part))
    assert list(tmp_path.iterdir()) == [path]
    first = path.read_bytes()
    save_partition(partition, path)
    assert path.read_bytes() == first


def test_permuted_targets_can_be_saved_too(tmp_path):
    permuted = permute_targets(digits_split(), seed=0)
    save_partition(permuted, tmp_path / "p.npz")
    assert same(load_partition(tmp_path / "p.npz", rows=DIGITS.size).test, permuted.test)


def test_saving_where_one_cannot(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "p.npz", tmp_path / "file" / "p.npz", tmp_path):
        with pytest.raises(BadInput) as error:
            save_partition(digits_split(), path)
        assert_one_line(error, str(path))
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def one_client(train=(0, 1), val=(2,), test=(3,), name="Ann"):
    make = lambda rows: (np.array(rows, np.int64),)
    return Partition((name,), make(train), make(val), make(test), "x", 0)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (one_client(test=(10,)), ("'Ann'", "row 10", "10 rows")),
        (one_client(train=(-1, 1)), ("'Ann'", "row -1")),
        (one_client(val=(1,)), ("'Ann'", "row 1 ", "two places")),
        (one_client(train=(4, 4)), ("'Ann'", "row 4 ")),
        (one_client(train=()), ("'Ann'", "train")),
        (one_client(test=()), ("'Ann'", "test")),
        (one_client(name=""), ("not an intact",)),
    ],
)
def test_partitions_that_make_no_sense_are_not_loaded(tmp_path, partition, words):
    save_partition(partition, tmp_path / "p.npz")
    with pytest.raises(BadInput) as error:
        load_partition(tmp_path / "p.npz", rows=10)
    assert_one_line(error, *words)


def arrays_of(path):
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize(
    "change",
    [
        {"about": np.frombuffer(b"{", np.uint8)},
        {"about": np.frombuffer(b"[]", np.uint8)},
        {"about": np.frombuffer(b"[" * 100_000, np.uint8)},
        {"about": np.frombuffer(b'{"format": "other"}', np.uint8)},
        {"train": np.array([0.5, 1.0])},
        {"train": np.array([[0, 1]])},
        {"train_ends": np.array([3])},
        {"train_ends": np.array([1, 2])},
        {"val_ends": np.array([], np.int64)},
        {"test": None},
        {"test": np.array([{}], object)},
    ],
)
def test_changed_files_are_refused(tmp_path, change):
    path = tmp_path / "p.npz"
    save_partition(one_client(), path)
    arrays = {k: v for k, v in (arrays_of(path) | change).items() if v is not None}
    np.savez(path, **arrays)
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "p.npz", "not an intact")


@pytest.mark.parametrize("repeated", [["a", "a"], ["a", 3], [], "ab", ["a", ""]])
def test_names_must_be_distinct_texts(tmp_path, repeated):
    path = tmp_path / "p.npz"
    two = split_rows([np.arange(5), np.arange(5, 10)], np.zeros(10), "ab", seed=0, scheme="x")
    save_partition(two, path)
    arrays = arrays_of(path)
    about = json.loads(arrays["about"].tobytes()) | {"names": repeated}
    np.savez(path, **arrays | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "not an intact")


def test_foreign_broken_and_missing_files(tmp_path):
    path = tmp_path / "p.npz"
    with pytest.raises(BadInput) as error:
        load_partition(path, rows=10)
    assert_one_line(error, "p.npz", "No such file", "check the path")
    with pytest.raises(BadInput) as error:
        load_partition(tmp_path, rows=10)
    assert_one_line(error, str(tmp_path), f"give a file, e.g. '{tmp_path / 'partition.npz'}'")
    np.save(tmp_path / "plain.npy", np.arange(3))
    save_partition(digits_split(), path)
    intact = path.read_bytes()
    for content in (b"", b"hello", intact[:-30], (tmp_path / "plain.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(BadInput) as error:
            load_partition(path, rows=DIGITS.size)
        assert_one_line(error, "p.npz")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_is_bad_input_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.npz"
    save_partition(one_client(), path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        back = load_partition(path, rows=10)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert same(parts(back, 0), parts(one_client(), 0))
